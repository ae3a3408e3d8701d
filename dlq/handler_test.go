package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/schemas/openapitest"
	"github.com/freshet/freshet/store/deadletters"
)

// client is a client of the admin API that checks each response against the OpenAPI document.
type client struct {
	*rig
	of      *process
	handler http.Handler
}

func newClient(t *testing.T) *client {
	t.Helper()
	c := &client{rig: newRig(t)}
	c.of = c.process()
	c.handler = c.of.Handler()
	return c
}

// do sends a request and compares the response's status with `want`. It checks the response against
// the OpenAPI document, and also the request if the handler accepted it. It stores the decoded
// response in the parameter `into`, unless `into` is nil.
func (c *client) do(method, target, body string, want int, into any) (text string) {
	c.Helper()
	req := httptest.NewRequestWithContext(c.Context(), method, target, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	c.handler.ServeHTTP(rec, req)
	text = rec.Body.String()
	if rec.Code != want {
		c.Errorf("%s %s %s: got status %d, want %d: %s", method, target, body, rec.Code, want, text)
	}
	if into != nil {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			c.Fatalf("%s %s: %s: %v", method, target, text, err)
		}
	}
	if !openapitest.Check(c, openapitest.Exchange{Request: req, Body: body, Status: rec.Code, Header: rec.Header(), Response: text}) {
		c.Fatalf("%s %s is not in the OpenAPI document", method, target)
	}
	return text
}

const dlqPath = "/admin/v1/dlq/" + theSource

// fill writes five dead letters: one is handled, one is at the replay limit, one has a request
// that can't be decoded, and one has a record that can't be parsed.
func (c *client) fill() {
	c.deadLetter(idOf(0, 1), func(l *deadletters.DeadLetter, r *ReadResult) {
		l.Status, l.Attempts, l.CorrelationID = 500, 4, "c"
		r.DeadLetter.Headers = []schemas.Header{{Key: "a", Value: []byte("b")}, {Key: "none"}}
		r.DeadLetter.Sample, r.DeadLetter.SampleType, r.DeadLetter.Status = []byte("oh"), "text/plain", 500
	})
	c.deadLetter(idOf(0, 2))
	c.deadLetter(idOf(1, 3), func(_ *deadletters.DeadLetter, r *ReadResult) {
		r.DeadLetter.Headers = schemas.ReplayMark{ID: "x", Count: schemas.MaxReplays}.Headers()
	})
	c.deadLetter(idOf(1, 4), func(l *deadletters.DeadLetter, r *ReadResult) {
		l.Entity, l.Fingerprint, l.Reason = schemas.Entity{Source: theSource}, "", schemas.Undecodable
		r.DeadLetter.Value = nil
	})
	c.deadLetter(idOf(2, 5), func(_ *deadletters.DeadLetter, r *ReadResult) { r.Err = errors.New("header x is no number") })
	j := c.of.start(JobSpec{Kind: deadletters.PurgeJob, Filter: deadletters.Filter{Key: "0-2", Until: time.Now().Add(time.Second)}})
	j.State = deadletters.JobDone
	if _, err := c.db.SaveJobProgress(c.Context(), j, []deadletters.ID{idOf(0, 2)}, deadletters.Disposition{Outcome: deadletters.Purged, By: "me", Job: j.ID, At: time.Now()}, nil); err != nil {
		c.Fatal(err)
	}
}

func TestHandler_MatchesOpenAPI(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	c.do(http.MethodGet, dlqPath, "", 200, nil)
	c.do(http.MethodGet, dlqPath+"/groups", "", 200, nil)
	c.do(http.MethodGet, "/admin/v1/dlq-jobs", "", 200, nil)
	c.fill()
	var seen []string
	for after := ""; ; {
		var list DeadLetterList
		c.do(http.MethodGet, dlqPath+"?limit=2&after="+after, "", 200, &list)
		for _, e := range list.DeadLetters {
			seen = append(seen, e.ID)
		}
		if after = list.Next; after == "" {
			break
		}
	}
	if got := fmt.Sprint(seen); got != "[2:5 1:4 1:3 0:2 0:1]" {
		t.Errorf("offsets of the pages: got %s", got)
	}
	for query, want := range map[string]string{
		"handled=open": "[2:5 1:4 1:3 0:1]", "handled=purged": "[0:2]", "handled=replayed": "[]", "handled=all&reason=UNDECODABLE": "[1:4]", "offset=1:3": "[1:3]",
		"attempts=4": "[0:1]", "key=0-1": "[0:1]", "key=character/0-1": "[0:1]", "facet=character&key=character/0-1": "[0:1]", "key=other/0-1": "[]", "facet=character&fingerprint=f&handled=handled": "[0:2]", "since=2999-01-01T00:00:00Z": "[]",
		"until=2999-01-01T00:00:00%2B09:00&limit=1": "[2:5]", "key=%27%22%25_": "[]",
	} {
		var list DeadLetterList
		c.do(http.MethodGet, dlqPath+"?"+query, "", 200, &list)
		ids := []string{}
		for _, e := range list.DeadLetters {
			ids = append(ids, e.ID)
		}
		if got := fmt.Sprint(ids); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
	var groups Groups
	c.do(http.MethodGet, dlqPath+"/groups?handled=open", "", 200, &groups)
	if groups.Total != 4 || len(groups.Groups) != 2 || groups.Groups[0].AtReplayLimit != 1 {
		t.Errorf("groups: got %+v", groups)
	}
	for _, id := range []string{"/0/1", "/1/3", "/1/4"} {
		c.do(http.MethodGet, dlqPath+id, "", 200, nil)
	}
	if text := c.do(http.MethodGet, dlqPath+"/2/5", "", 422, nil); !strings.Contains(text, "header x") {
		t.Error(text)
	}
	c.do(http.MethodGet, dlqPath+"/9/9", "", 404, nil)
}

func TestHandler_CreatesStopsAndResumesJobs(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	c.fill()
	var plan Plan
	c.do(http.MethodPost, dlqPath+"/plan", `{"kind":"REPLAY","lane":"LOW"}`, 200, &plan)
	if plan.Total != 4 || plan.Count != 2 || plan.IfReadable != 1 || len(plan.Routes) != 3 {
		t.Errorf("plan: got %+v", plan)
	}
	if since := time.Since(plan.Until); since < 0 || since > time.Minute {
		t.Errorf("until: got %v", plan.Until)
	}
	before := plan.Until.Format(time.RFC3339Nano)
	c.deadLetter(idOf(3, 6))
	if c.do(http.MethodPost, dlqPath+"/plan", `{"kind":"PURGE","filter":{"until":"`+before+`"}}`, 200, &plan); plan.Total != 4 || plan.Until.Format(time.RFC3339Nano) != before {
		t.Errorf("plan includes later dead letters: %+v", plan)
	}
	var alone Plan
	c.do(http.MethodPost, dlqPath+"/plan", `{"kind":"REPLAY","lane":"LOW","filter":{"reason":"UNDECODABLE"}}`, 200, &alone)
	if alone.Count != 0 || alone.IfReadable != 1 || len(alone.Routes) != 1 || !alone.Routes[0].IfReadable || alone.Routes[0].Topic == "" {
		t.Errorf("filtered plan: got %+v", alone)
	}
	c.do(http.MethodPost, dlqPath+"/plan", `{"kind":"PURGE","filter":{"handled":"open"},"max":3}`, 200, &plan)
	if plan.Count != 3 {
		t.Errorf("purge plan: got %+v", plan)
	}
	var j deadletters.Job
	c.do(http.MethodPost, dlqPath+"/jobs", `{"kind":"REPLAY","filter":{"reason":"UPSTREAM_5XX","offset":"0:1","attempts":"4"},"lane":"HIGH","rate":0.5,"max":7,"note":"healthy again"}`, 201, &j)
	if j.Lane != schemas.High || j.Rate != 0.5 || j.Max != 7 || j.Note != "healthy again" || j.CreatedBy != "me" || j.Filter.Handled != deadletters.Open || j.Filter.Until.IsZero() {
		t.Errorf("created job: got %+v", j)
	}
	path := "/admin/v1/dlq-jobs/" + j.ID
	c.do(http.MethodPost, path+"/stop", "{}", 200, &j)
	c.do(http.MethodPost, path+"/stop", "", 200, &j)
	if j.State != deadletters.JobStopped {
		t.Errorf("stopped job: got %+v", j)
	}
	c.do(http.MethodPost, path+"/resume", "{}", 200, &j)
	c.do(http.MethodGet, path, "", 200, &j)
	if j.State != deadletters.JobRunning {
		t.Errorf("resumed job: got %+v", j)
	}
	var all struct{ Jobs []deadletters.Job }
	c.do(http.MethodGet, "/admin/v1/dlq-jobs", "", 200, &all)
	if len(all.Jobs) != 2 || all.Jobs[0].ID != j.ID {
		t.Errorf("jobs: got %+v", all)
	}
	for _, id := range []string{"none", "%00", "%ff", "0199c8a0-6f3e-7c41-9d05-3a8f6c1b2e47"} {
		c.do(http.MethodGet, "/admin/v1/dlq-jobs/"+id, "", 404, nil)
		c.do(http.MethodPost, "/admin/v1/dlq-jobs/"+id+"/stop", "", 404, nil)
		c.do(http.MethodPost, "/admin/v1/dlq-jobs/"+id+"/resume", "", 404, nil)
	}
}

// TestHandler_ExplainsBadInput: each input is an error of the client, so the status must be 4xx.
func TestHandler_ExplainsBadInput(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	for query, says := range map[string]string{
		"reason=UPSTREAM_6XX": "must be one of UNDECODABLE", "since=yesterday": "2026-01-27T12:00:00Z", "until=1": "2026-01-27T12:00:00Z",
		"attempts=-1": "whole number", "attempts=4294967296": "whole number", "attempts=x": "whole number",
		"offset=3": "partition:offset", "offset=3:x": "partition:offset", "offset=-1:3": "partition:offset", "offset=3:99999999999999999999": "partition:offset",
		"offset=4294967296:1": "partition:offset", "handled=gone": "open, handled", "colour=red": "valid filters are", "key=a&key=b": "twice",
		"key=%00": "UTF-8", "facet=%ff": "UTF-8",
	} {
		for _, path := range []string{"", "/groups"} {
			if text := c.do(http.MethodGet, dlqPath+path+"?"+query, "", 400, nil); !strings.Contains(text, says) {
				t.Errorf("%s%s: %s", path, query, text)
			}
		}
	}
	for _, query := range []string{"limit=0", "limit=1001", "limit=-1", "limit=x", "after=x", "after=1:2", "after=1:2:3:4", "after=0:2:3", "after=1:-2:3", "after=1:2:3x"} {
		c.do(http.MethodGet, dlqPath+"?"+query, "", 400, nil)
	}
	for _, query := range []string{"limit=1", "after=1:2:3"} {
		c.do(http.MethodGet, dlqPath+"/groups?"+query, "", 400, nil)
	}
	for _, id := range []string{"/x/1", "/1/x", "/-1/1", "/1/-1", "/4294967296/1", "/1/99999999999999999999"} {
		c.do(http.MethodGet, dlqPath+id, "", 400, nil)
	}
	for body, says := range map[string]string{
		"": "must be an object; the body is {", "null": "must be an object", "[]": "must be an object", `{"kind":"REPLAY"}`: "HIGH or LOW", `{"kind":"SHRED"}`: "REPLAY or PURGE",
		`{"kind":"PURGE"}{}`: "unexpected data after", `{"kind":"PURGE","colour":"red"}`: "colour", `{"kind":"REPLAY","lane":"low"}`: "HIGH or LOW",
		`{"kind":"PURGE","rate":-1}`: "1 per minute", `{"kind":"PURGE","rate":0.001}`: "1 per minute", `{"kind":"PURGE","rate":10001}`: "10000", `{"kind":"PURGE","rate":1e999}`: "rate: got number 1e999, want a number",
		`{"kind":"PURGE","max":-1}`: "0 for all", `{"kind":"PURGE","max":1.5}`: "max: got number 1.5, want a whole number", `{"kind":"PURGE","note":"a\nb"}`: "one line",
		`{"kind":"PURGE","note":"` + strings.Repeat("x", 1001) + `"}`: "1000", `{"kind":"PURGE","filter":{"limit":"1"}}`: "valid filters are",
		`{"kind":"PURGE","filter":{"handled":"purged"}}`: "only open", `{"kind":"PURGE","filter":{"attempts":4}}`: "filter: got number, want text",
		`{"kind":"PURGE","filter":{"key":"a\u0000"}}`: "UTF-8", `{"kind":"PURGE","filter":{"since":"now"}}`: "a time",
	} {
		for _, path := range []string{"/plan", "/jobs"} {
			if text := c.do(http.MethodPost, dlqPath+path, body, 400, nil); !strings.Contains(text, says) {
				t.Errorf("%.100s: %s", body, text)
			}
		}
	}
	c.do(http.MethodPost, dlqPath+"/jobs", `{"note":"`+strings.Repeat("x", 70<<10)+`"}`, 413, nil)
	for _, path := range []string{"", "/groups", "/1/2"} {
		c.do(http.MethodGet, "/admin/v1/dlq/nobody"+path, "", 404, nil)
	}
	c.do(http.MethodPost, "/admin/v1/dlq/nobody/jobs", `{"kind":"PURGE"}`, 404, nil)
	if jobs, err := c.db.Jobs(t.Context(), 9); err != nil || len(jobs) != 0 {
		t.Errorf("jobs: got %+v, %v, want none", jobs, err)
	}
}

// slowCount is a store that counts dead letters until the context ends.
type slowCount struct{ Store }

func (slowCount) DeadLetterGroups(ctx context.Context, _ deadletters.Filter, _ int) ([]deadletters.Group, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestPlan_ExplainsACountTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t)
		c.of.Store = slowCount{c.of.Store}
		const order = `{"kind":"REPLAY","lane":"LOW"}`
		for _, text := range []string{
			c.do(http.MethodGet, dlqPath+"/groups", "", http.StatusServiceUnavailable, nil),
			c.do(http.MethodPost, dlqPath+"/plan", order, http.StatusServiceUnavailable, nil),
			c.do(http.MethodPost, dlqPath+"/jobs", order, http.StatusServiceUnavailable, nil),
		} {
			if !strings.Contains(text, "dlq-count-timeout") {
				t.Error(text)
			}
		}
	})
}
