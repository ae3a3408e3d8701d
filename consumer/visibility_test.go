package consumer_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

func TestWhatIsFetchedKeepsTheVisibilityThatItWasFetchedWithin(t *testing.T) {
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
		{"partner", 1, 1, false}, // who may see all may be narrowed down by "not modified"
		{"partner", 2, 1, false},
		{"staff", 3, 2, false}, // but nobody is given by it what others were
		{"", 4, 3, false},
		{"partner", 4, 3, true},
	} {
		r.upstreamOf(answer, func(c *source.Config) {
			f := c.Facets["character"]
			f.Conditional = true
			c.Facets = map[string]source.Facet{"character": f}
			c.Rules = []source.Rule{{Status: http.StatusNotFound, Class: source.Absent}}
			c.Auth.Header = "X-Key"
			c.Credentials = []source.Credential{{Name: "only", SecretEnv: "UNSET", Visibility: round.visibility}}
		})
		if round.gone {
			gone.Store(1)
		}
		stop := r.work(schemas.High)
		before, _ := r.snapshot("a")
		r.wish("a", schemas.High, schemas.UserRequest)
		r.until("a later check", func() bool { s, ok := r.snapshot("a"); return ok && s.Version > before.Version })
		r.untilCommitted(schemas.High)
		stop()
		s, _ := r.snapshot("a")
		if s.Visibility != round.visibility || s.Absent != round.gone || s.HasContent() == round.gone || conditional.Load() != round.conditional || full.Load() != round.full {
			t.Errorf("%+v after %d conditional calls and %d full ones: %+v", round, conditional.Load(), full.Load(), s.State)
		}
	}
	if l := r.letters(); len(l) != 0 {
		t.Errorf("letters %+v", l)
	}
}
