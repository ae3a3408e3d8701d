package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/schemas"
)

// fakeAdminAPI is an admin API with scripted responses by method and path.
type fakeAdminAPI struct {
	*testing.T
	answers map[string]func(*http.Request) (status int, body any)
	asked   []string
}

// dlq runs a dlq command against the fake API.
func (s *fakeAdminAPI) dlq(args ...string) (code int, stdout, stderr string) {
	s.Helper()
	return s.command(append([]string{"dlq"}, args...)...)
}

// command runs a command against the fake API.
func (s *fakeAdminAPI) command(args ...string) (code int, stdout, stderr string) {
	s.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		what := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/admin/v1")
		s.asked = append(s.asked, what)
		status, body := http.StatusNotFound, any(nil)
		if answer := s.answers[what]; answer != nil {
			status, body = answer(r)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(body); err != nil {
			s.Error(err)
		}
	}))
	defer server.Close()
	var out, errs bytes.Buffer
	code = run(context.Background(), args, []string{"FRESHET_ADDR=" + server.URL}, &out, &errs)
	return code, out.String(), errs.String()
}

func respondWith(body any) func(*http.Request) (int, any) {
	return func(*http.Request) (int, any) { return http.StatusOK, body }
}

// A dead letter may hold a request that an older release could not decode. The plan counts such
// dead letters separately, because only a replay shows whether this release can decode them.
func TestDLQReplay_PossiblyReadableOnly(t *testing.T) {
	t.Parallel()
	s := &fakeAdminAPI{T: t, answers: map[string]func(*http.Request) (int, any){
		"POST /dlq/nexon/plan": respondWith(dlq.Plan{Total: 3, IfReadable: 2, Routes: []dlq.Route{
			{Reason: schemas.UnknownMajor, Count: 2, Topic: "nexon.update-priority-low", IfReadable: true},
			{Reason: schemas.UnknownMajor, Count: 1, Refused: dlq.RefusedLimit},
		}}),
		"POST /dlq/nexon/jobs": respondWith(map[string]any{"state": "DONE", "kind": "REPLAY", "id": "j", "done": 2, "total": 3}),
	}}
	code, out, errs := s.dlq("replay", "--source", "nexon", "--reason", "UNKNOWN_MAJOR", "--yes")
	for _, want := range []string{"nexon.update-priority-low, if this release can read them", "0 of 3 dead letters, and 2 more if this release can read them", "2 of 3 dead letters replayed"} {
		if !strings.Contains(out, want) {
			t.Errorf("got exit %d, stdout %s, stderr %s; want a text that contains %q", code, out, errs, want)
		}
	}
	s.answers["POST /dlq/nexon/plan"] = respondWith(dlq.Plan{Total: 1, Routes: []dlq.Route{{Reason: schemas.Upstream5xx, Count: 1, Refused: dlq.RefusedLimit}}})
	s.asked = nil
	if code, _, errs := s.dlq("replay", "--source", "nexon", "--yes"); code != 3 || !strings.Contains(errs, "none of 1 dead letters can be replayed") || len(s.asked) != 1 {
		t.Errorf("replay: got exit %d, %q, requests %v; want 3, a text that contains %q, 1 request",
			code, errs, s.asked, "none of 1 dead letters can be replayed")
	}
}

// Dead letters that are newer than the plan must not be part of the job, because the user has not
// seen them in the plan.
func TestDLQReplay_OrdersWhatPlanShowed(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 1, 27, 12, 0, 0, 1000, time.UTC)
	var ordered struct{ Filter map[string]string }
	s := &fakeAdminAPI{T: t, answers: map[string]func(*http.Request) (int, any){
		"POST /dlq/nexon/plan": respondWith(dlq.Plan{Total: 1500, Count: 1500, More: true, Until: until, Routes: []dlq.Route{{Reason: schemas.Upstream5xx, Count: 1000}}}),
		"POST /dlq/nexon/jobs": func(r *http.Request) (int, any) {
			if err := json.NewDecoder(r.Body).Decode(&ordered); err != nil {
				t.Error(err)
			}
			return http.StatusOK, map[string]any{"state": "DONE", "kind": "PURGE", "id": "j"}
		},
	}}
	code, out, errs := s.dlq("purge", "--source", "nexon", "--reason", "upstream_5xx", "--yes")
	if code != 0 || !strings.Contains(out, "1500 of 1500 dead letters") || !strings.Contains(errs, "the table does not show all rows") {
		t.Errorf("purge: got exit %d, stdout %q, stderr %q; want 0, texts that contain %q, %q",
			code, out, errs, "1500 of 1500 dead letters", "the table does not show all rows")
	}
	if f := ordered.Filter; f["until"] != "2026-01-27T12:00:00.000001Z" || f["reason"] != "UPSTREAM_5XX" {
		t.Errorf("filter: got %v, want until 2026-01-27T12:00:00.000001Z, reason UPSTREAM_5XX", f)
	}
}

// The index may list dead letters that Kafka has deleted already. With a filter, `dlq show` must
// report them to stderr and still print the others.
func TestDLQShow_ContinuesAfterMissingRecord(t *testing.T) {
	t.Parallel()
	refused := func(status int, code string) func(*http.Request) (int, any) {
		return func(*http.Request) (int, any) { return status, map[string]any{"code": code, "detail": code} }
	}
	there := respondWith(map[string]any{"reason": "UPSTREAM_4XX", "headers": []any{}, "time": "2026-01-27T12:00:00Z"})
	s := &fakeAdminAPI{T: t, answers: map[string]func(*http.Request) (int, any){
		"GET /dlq/nexon":     respondWith(dlq.DeadLetterList{DeadLetters: []dlq.Entry{{ID: "3:1"}, {ID: "3:2"}, {ID: "3:3"}}}),
		"GET /dlq/nexon/3/1": refused(http.StatusNotFound, "no-such-dead-letter"),
		"GET /dlq/nexon/3/2": refused(http.StatusUnprocessableEntity, "unreadable-dead-letter"),
		"GET /dlq/nexon/3/3": there,
	}}
	for output, want := range map[string]string{"table": "id        3:3", "json": `"UPSTREAM_4XX"`} {
		code, out, errs := s.dlq("show", "--source", "nexon", "--key", "k", "-o", output)
		if code != 4 || !strings.Contains(out, want) || strings.HasPrefix(out, "\n") || !strings.Contains(errs, "dead letter 3:1: no-such-dead-letter\ndead letter 3:2: unreadable-dead-letter\n") || !strings.Contains(errs, "2 of 3 dead letters") {
			t.Errorf("%s: got exit %d, stdout %q, stderr %q; want 4, %q in stdout without an empty first line, %q and %q in stderr",
				output, code, out, errs, want,
				"dead letter 3:1: no-such-dead-letter\ndead letter 3:2: unreadable-dead-letter\n", "2 of 3 dead letters")
		}
	}
	if code, _, errs := s.dlq("show", "--source", "nexon", "3:1"); code != 3 || !strings.Contains(errs, "no-such-dead-letter") {
		t.Errorf("show: got exit %d, output %q; want 3, a text that contains %q", code, errs, "no-such-dead-letter")
	}
	s.answers["GET /dlq/nexon/3/2"] = refused(http.StatusServiceUnavailable, "unavailable")
	if code, out, errs := s.dlq("show", "--source", "nexon"); code != 1 || strings.Contains(out, "3:3") || !strings.Contains(errs, "unavailable") {
		t.Errorf("without an answer: got exit %d, stdout %q, stderr %q; want 1, no 3:3 in stdout, %q in stderr",
			code, out, errs, "unavailable")
	}
}

// The text in a dead letter can come from anywhere. When it is printed, it must not move the
// terminal's cursor or change the text direction.
func TestDLQShow_EscapesUnprintableText(t *testing.T) {
	t.Parallel()
	const evil = "a\x1b[2J\u009b1m\u202e\u200b\x7f\xff \"b\\\u00fc"
	const shown = `a\x1b[2J\u009b1m\u202e\u200b\x7f\xff "b\ü`
	if got := shorten(evil); got != shown {
		t.Errorf("shortened: got %q, want %q", got, shown)
	}
	if got := formatPayload([]byte(evil + "\r\n" + evil)); got != "  "+shown+"\n  "+shown {
		t.Errorf("payload of two lines: got %q, want %q", got, "  "+shown+"\n  "+shown)
	}
	if got := formatPayload([]byte(`{"a":"` + "\u009b\u202e\x7f" + `"}`)); got != "  {\n    \"a\": \"\\u009b\\u202e\\x7f\"\n  }" {
		t.Errorf("JSON payload: got %q, want its control characters escaped", got)
	}
	var out bytes.Buffer
	d := schemas.DeadLetter{
		Key: []byte(evil), Reason: evil, Error: evil, Topic: evil, Group: evil, Worker: evil, Value: []byte(evil), Sample: []byte(evil), SampleType: evil,
		Headers: []schemas.Header{{Key: evil, Value: []byte(evil)}},
	}
	if err := showDeadLetter(&out, "3:1", d); err != nil || strings.ContainsAny(out.String(), "\x1b\u009b\u202e\u200b\x7f") || strings.Count(out.String(), shown) != 11 {
		t.Errorf("got error %v, %d escaped texts, output %q; want none, 11, no control characters",
			err, strings.Count(out.String(), shown), out.String())
	}
}

func TestDLQList_PagesShareOneHeader(t *testing.T) {
	t.Parallel()
	s := &fakeAdminAPI{T: t, answers: map[string]func(*http.Request) (int, any){
		"GET /dlq/nexon": func(r *http.Request) (int, any) {
			next := map[string]string{"": "1", "1": "2", "2": ""}[r.URL.Query().Get("after")]
			return http.StatusOK, dlq.DeadLetterList{DeadLetters: []dlq.Entry{{ID: "3:1"}, {ID: "3:2"}}, Next: next}
		},
	}}
	if code, out, _ := s.dlq("list", "--source", "nexon", "--limit", "0"); code != 0 || strings.Count(out, "\n") != 7 || strings.Contains(out, "\n\n") || strings.Count(out, "HANDLED") != 1 {
		t.Errorf("list: got exit %d, output %s; want 0, 7 lines, none empty, HANDLED once", code, out)
	}
}

func TestAdminClient_RejectsOversizedResponse(t *testing.T) {
	t.Parallel()
	s := &fakeAdminAPI{T: t, answers: map[string]func(*http.Request) (int, any){"GET /dlq/nexon": respondWith(strings.Repeat("x", 16<<20))}}
	if code, _, errs := s.dlq("list", "--source", "nexon"); code != 1 || !strings.Contains(errs, "larger than 16 MiB") {
		t.Errorf("list: got exit %d, output %q; want 1, a text that contains %q", code, errs, "larger than 16 MiB")
	}
}
