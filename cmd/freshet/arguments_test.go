package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/entities"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
)

func TestDLQReplay_TakesIDsAsArguments(t *testing.T) {
	t.Parallel()
	var planned []string
	s := &fakeAdminAPI{T: t}
	s.answers = map[string]func(*http.Request) (int, any){
		"POST /dlq/nexon/plan": func(r *http.Request) (int, any) {
			var order struct {
				Filter map[string]string `json:"filter"`
			}
			if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
				t.Error(err)
			}
			planned = append(planned, order.Filter["offset"])
			return http.StatusOK, dlq.Plan{Total: 1, Count: 1, Routes: []dlq.Route{{Reason: schemas.Upstream5xx, Count: 1, Topic: "nexon.update-priority-low"}}}
		},
		"POST /dlq/nexon/jobs": respondWith(map[string]any{"state": "DONE", "kind": "REPLAY", "id": "j", "done": 1, "total": 1}),
	}
	code, out, errs := s.dlq("replay", "--source", "nexon", "--yes", "3:120", "1:45")
	if want := []string{"3:120", "1:45"}; code != 0 || !slices.Equal(planned, want) {
		t.Errorf("got exit %d, plans for %v, stdout %s, stderr %s; want 0, %v", code, planned, out, errs, want)
	}
	if got := strings.Count(out, "1 of 1 dead letters replayed"); got != 2 {
		t.Errorf("finished jobs: got %d, want 2 in %s", got, out)
	}
}

func TestDLQReplay_RejectsWrongArgumentsBeforeAnyReplay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want string
		args []string
	}{
		{"PARTITION:OFFSET, as in 3:120", []string{"3:120", "4"}},
		{"--reason and PARTITION:OFFSET exclude each other", []string{"3:120", "--reason", "UPSTREAM_5XX"}},
		{"--offset and PARTITION:OFFSET exclude each other", []string{"3:120", "--offset", "3:121"}},
		{"--resume and PARTITION:OFFSET exclude each other", []string{"3:120", "--resume", "j"}},
	} {
		s := &fakeAdminAPI{T: t}
		if code, _, errs := s.dlq(append([]string{"replay", "--source", "nexon", "--yes"}, c.args...)...); code != 2 || !strings.Contains(errs, c.want) || len(s.asked) != 0 {
			t.Errorf("%q: got exit %d, stderr %s, requests %v; want 2, %q, none", c.args, code, errs, s.asked, c.want)
		}
	}
}

func TestSettingsSet_SendsNote(t *testing.T) {
	t.Parallel()
	var got map[string]any
	s := &fakeAdminAPI{T: t, answers: map[string]func(*http.Request) (int, any){
		"PATCH /settings/nexon": func(r *http.Request) (int, any) {
			if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
				t.Error(err)
			}
			return http.StatusOK, settings.State{Source: "nexon"}
		},
	}}
	code, _, errs := s.command("settings", "set", "--source", "nexon", "second.target=400", "--note", "they asked")
	if code != 0 || got["note"] != "they asked" || got["policies"] == nil {
		t.Errorf("got exit %d, stderr %s, body %v; want 0, a body with the note and the policies", code, errs, got)
	}
}

func TestEntitiesShow_PrintsState(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Date(2026, 3, 1, 12, minute, 0, 0, time.UTC) }
	changed, retry := at(2), at(9)
	registration := &entities.Entity{Source: "nexon", Facet: "character", Key: "a/b", Tier: "hot", Pinned: true, Enabled: true, DueAt: at(7)}
	snapshot := &entities.SnapshotState{CheckedAt: at(5), UpdatedAt: &changed, Bytes: 120}
	failure := &entities.Failure{State: "RETRYING", Reason: "UPSTREAM_5XX", Error: "502 Bad Gateway", Since: at(6), LastAt: at(8), Until: &retry}
	for name, c := range map[string]struct {
		state entities.State
		want  []string
	}{
		"healthy": {entities.State{Registration: registration, Snapshot: snapshot}, []string{
			"entity nexon/character/a/b state healthy", "last fetch 2026-03-01T12:05:00Z, content of 120 bytes",
			"last change 2026-03-01T12:02:00Z", "next check 2026-03-01T12:07:00Z", "tier hot", "pinned true", "last read never",
		}},
		"failing": {entities.State{Registration: registration, Snapshot: snapshot, Failure: failure}, []string{
			"state RETRYING", "last fetch 2026-03-01T12:08:00Z, UPSTREAM_5XX: 502 Bad Gateway", "failing since 2026-03-01T12:06:00Z",
			"last success 2026-03-01T12:05:00Z", "next check 2026-03-01T12:09:00Z at the earliest",
		}},
		"not found":   {entities.State{Snapshot: &entities.SnapshotState{CheckedAt: at(5), NotFound: true}}, []string{"12:05:00Z, not found", "last change never", "next check on a read", "registered no"}},
		"no fetch":    {entities.State{Registration: registration}, []string{"state no fetch has ended last fetch never"}},
		"suspended":   {entities.State{Failure: &entities.Failure{State: "SUSPENDED"}}, []string{"next check after an operator enables it"}},
		"unprintable": {entities.State{Failure: &entities.Failure{State: "FAILED", Error: "\x1b[31m"}}, []string{`\x1b[31m`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &fakeAdminAPI{T: t, answers: map[string]func(*http.Request) (int, any){"GET /snapshots/nexon/character/a/b": respondWith(c.state)}}
			code, out, errs := s.command("entities", "show", "nexon/character/a/b")
			for _, want := range c.want {
				if code != 0 || !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
					t.Errorf("got exit %d, stdout %s, stderr %s; want 0, %q", code, out, errs, want)
				}
			}
		})
	}
}

func TestEntitiesShow_RefusesBadOutput(t *testing.T) {
	t.Parallel()
	s := &fakeAdminAPI{T: t}
	if code, _, errs := s.command("entities", "show", "nexon/character/a/b", "-o", "xml"); code != 2 {
		t.Errorf("-o xml: got exit %d, stderr %s, want 2", code, errs)
	}
}

func TestEntitiesShow_ExitsWithNotFound(t *testing.T) {
	t.Parallel()
	s := &fakeAdminAPI{T: t, answers: map[string]func(*http.Request) (int, any){
		"GET /snapshots/nexon/character/a": func(*http.Request) (int, any) {
			return http.StatusNotFound, map[string]any{"status": 404, "code": "no-such-snapshot", "detail": "Nothing is stored of nexon/character/a, and it is not registered."}
		},
	}}
	if code, out, errs := s.command("entities", "show", "nexon/character/a"); code != 3 || out != "" || !strings.Contains(errs, "it is not registered") {
		t.Errorf("got exit %d, stdout %q, stderr %s; want 3, nothing, that it is not registered", code, out, errs)
	}
}
