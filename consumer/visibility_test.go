package consumer_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store/deadletters"
)

func TestVisibility_IsStoredWithSnapshot(t *testing.T) {
	r := newRig(t)
	var conditional, full, gone atomic.Int64
	answer := func(w http.ResponseWriter, req *http.Request) {
		if gone.Load() > 0 {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("ETag", `"v1"`)
		if req.Header.Get("If-None-Match") == `"v1"` {
			conditional.Add(1)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		full.Add(1)
		_, _ = w.Write([]byte(`{"x":1}`))
	}
	for _, round := range []struct {
		visibility        string
		conditional, full int64
		gone              bool
	}{
		{"", 0, 1, false},
		{"partner", 1, 1, false}, // still one full response: the stored snapshot is visible to all, so the response "not modified" is accepted
		{"partner", 2, 1, false},
		{"staff", 3, 2, false}, // a second full response: the stored snapshot has another visibility, so the response "not modified" is not enough
		{"", 4, 3, false},
		{"partner", 4, 3, true},
	} {
		r.upstreamOf(answer, func(c *source.Config) {
			f := c.Facets["character"]
			f.Conditional = true
			c.Facets = map[string]source.Facet{"character": f}
			c.Rules = []source.Rule{{Status: http.StatusNotFound, Class: source.NotFound}}
			c.Auth.Header = "X-Key"
			c.Credentials = []source.Credential{{Name: "only", SecretEnv: "UNSET", Visibility: round.visibility}}
		})
		if round.gone {
			gone.Store(1)
		}
		stop := r.work(schemas.High)
		before, _ := r.snapshot("a")
		r.enqueue("a", schemas.High, schemas.UserRequest)
		r.until("a later check", func() bool { s, ok := r.snapshot("a"); return ok && s.Version > before.Version })
		r.untilCommitted(schemas.High)
		stop()
		s, _ := r.snapshot("a")
		if s.Visibility != round.visibility || s.NotFound != round.gone || s.HasContent() == round.gone || conditional.Load() != round.conditional || full.Load() != round.full {
			t.Errorf("%+v: got %d conditional and %d full calls, %+v, want %d and %d, the visibility %q, and content unless gone",
				round, conditional.Load(), full.Load(), s.State, round.conditional, round.full, round.visibility)
		}
	}
	if l := r.deadLetters(); len(l) != 0 {
		t.Errorf("dead letters: got %+v, want none", l)
	}
}

func TestDeadLetterIndex_KeepsNoSampleOfLimitedContent(t *testing.T) {
	for visibility, indexed := range map[string]bool{"": true, "hr": false} {
		t.Run("visibility "+visibility, func(t *testing.T) {
			r := newRig(t)
			r.facet(func(f *source.Facet) { f.Retry = nil })
			r.upstreamOf(func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Query().Get("ocid") != "kim" { // calls for keys other than "kim" succeed, so the worker attributes the failure to the entity "kim"
					_, _ = w.Write([]byte(`{"x":1}`))
					return
				}
				w.WriteHeader(http.StatusBadRequest)
				_, _ = w.Write([]byte(`{"employee":"Kim","salary":123456}`))
			}, func(c *source.Config) {
				c.Auth.Header = "X-Key"
				c.Credentials = []source.Credential{{Name: "only", SecretEnv: "UNSET", Visibility: visibility}}
			})
			r.work(schemas.High)
			r.enqueue("kim", schemas.High, schemas.UserRequest)
			r.enqueue("other", schemas.High, schemas.UserRequest)
			r.until("a dead letter", func() bool { return len(r.deadLetters()) == 1 })
			r.untilCommitted(schemas.High)
			all, err := r.db.DeadLetters(t.Context(), deadletters.Filter{Source: "nexon"}, deadletters.DeadLetter{}, 10)
			if err != nil || len(all) != 1 {
				t.Fatalf("visibility %q: got %d dead letters in the index, %v, want 1", visibility, len(all), err)
			}
			if got := all[0].Visibility; got != visibility {
				t.Errorf("visibility %q: got %q in the index, want %q", visibility, got, visibility)
			}
			if got := strings.Contains(all[0].Error, "123456"); got != indexed {
				t.Errorf("visibility %q: got %q in the index, want the sample: %v", visibility, all[0].Error, indexed)
			}
			if got := r.status("kim").Error; strings.Contains(got, "123456") {
				t.Errorf("visibility %q: got %q in the status, want no sample", visibility, got)
			}
			if got := r.deadLetters()[0].Sample; !strings.Contains(string(got), "123456") {
				t.Errorf("visibility %q: got the sample %q in the dead letter, want it whole", visibility, got)
			}
		})
	}
}

func TestWorker_StoresNoCredential(t *testing.T) {
	for travels, auth := range map[string]source.Auth{"query": {Query: "api_key"}, "header": {Header: "X-Api-Key"}} {
		t.Run(travels, func(t *testing.T) {
			r := newRig(t)
			r.upstreamOf(func(w http.ResponseWriter, req *http.Request) {
				_, _ = w.Write([]byte(`{"links":{"self":"` + req.URL.String() + `"},"sent":"` + req.Header.Get("X-Api-Key") + `"}`))
			}, func(c *source.Config) { c.Auth = auth })
			if err := r.source.SetCredential("", "TopSecretCredential42"); err != nil {
				t.Fatal(err)
			}
			r.work(schemas.High)
			r.enqueue("a", schemas.High, schemas.CacheMiss)
			r.untilStored("a")
			s, _ := r.snapshot("a")
			text, err := s.Decode(nil)
			if err != nil || strings.Contains(string(text), "TopSecret") || !strings.Contains(string(text), "REDACTED") {
				t.Errorf("got %s, %v, want REDACTED in the place of the credential", text, err)
			}
			want := "# HELP credentials_redacted_total Credentials of the source that were replaced in content before it was stored.\n" +
				"# TYPE credentials_redacted_total counter\n" + `credentials_redacted_total{priority="HIGH",source="nexon"} 1` + "\n"
			if err := testutil.GatherAndCompare(r.metrics, strings.NewReader(want), "credentials_redacted_total"); err != nil {
				t.Error(err)
			}
		})
	}
}
