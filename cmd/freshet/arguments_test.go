package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

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

func TestEntitiesShow_PrintsRegistration(t *testing.T) {
	t.Parallel()
	s := &fakeAdminAPI{T: t, answers: map[string]func(*http.Request) (int, any){
		"GET /entities": func(r *http.Request) (int, any) {
			if got, want := r.URL.RawQuery, "facet=character&limit=1&prefix=a%2Fb&source=nexon"; got != want {
				t.Errorf("query: got %s, want %s", got, want)
			}
			return http.StatusOK, entities.Page{Entities: []entities.Entity{{Source: "nexon", Facet: "character", Key: "a/b", Tier: "hot", Pinned: true}}}
		},
	}}
	code, out, errs := s.command("entities", "show", "nexon/character/a/b")
	for _, want := range []string{"key a/b", "tier hot", "pinned true", "enabled false", "last read never"} {
		if code != 0 || !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("got exit %d, stdout %s, stderr %s; want 0, %q", code, out, errs, want)
		}
	}
	if code, _, errs := s.command("entities", "show", "nexon/character/a/b", "-o", "xml"); code != 2 {
		t.Errorf("-o xml: got exit %d, stderr %s, want 2", code, errs)
	}
}

func TestEntitiesShow_FindsExactKeyOnly(t *testing.T) {
	t.Parallel()
	s := &fakeAdminAPI{T: t, answers: map[string]func(*http.Request) (int, any){
		"GET /entities": respondWith(entities.Page{Entities: []entities.Entity{{Source: "nexon", Facet: "character", Key: "ab"}}}),
	}}
	if code, out, errs := s.command("entities", "show", "nexon/character/a"); code != 3 || out != "" || !strings.Contains(errs, "nexon/character/a is not registered") {
		t.Errorf("got exit %d, stdout %q, stderr %s; want 3, nothing, that it is not registered", code, out, errs)
	}
}
