package query

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

func (r *rig) EntityParams(_ context.Context, of []schemas.Entity) ([]map[string]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := make([]map[string]string, len(of))
	for i, e := range of {
		found[i] = r.params[e]
	}
	return found, r.paramsErr
}

// Items returns no items, because no facet of the test is a collection.
func (r *rig) Items(context.Context, schemas.Entity, collection.Range) ([]collection.Item, error) {
	return nil, nil
}

// openParams changes the facet of the test: each entity must be registered with a value for the param
// "token". The key "known" is registered with a value.
func openParams(r *rig) {
	r.settings = func(f *source.Facet) {
		f.Params = source.TextParams(map[string]string{"token": "", "lang": "en"})
		f.Documents = map[string]source.Document{"d": {Path: "/{key}?token={token}&lang={lang}"}}
	}
	r.params = map[schemas.Entity]map[string]string{entity("known"): {"token": "t"}, entity("other"): {"lang": "ko"}}
}

func TestMissingParams_AreAnsweredAtTheRead(t *testing.T) {
	for name, c := range map[string]struct {
		method, path string
		status       int
		text         string
	}{
		"a registered entity":          {http.MethodGet, "/known", 202, "UPDATING"},
		"an unknown entity":            {http.MethodGet, "/unknown", 400, `"code":"missing-params"`},
		"the text names the param":     {http.MethodGet, "/unknown", 400, "token has no value"},
		"registered without the param": {http.MethodGet, "/other", 400, "missing-params"},
		"a read with a wait":           {http.MethodGet, "/unknown?wait=1s", 400, "missing-params"},
		"a stream":                     {http.MethodHead, "/unknown/events", 400, ""},
		"a refresh":                    {http.MethodPost, "/unknown/refresh", 400, "missing-params"},
		"a registered refresh":         {http.MethodPost, "/known/refresh", 202, `"queued":true`},
		"a stale snapshot":             {http.MethodGet, "/stale", 200, `"reason":"MISSING_PARAMS"`},
		"a fresh snapshot":             {http.MethodGet, "/fresh", 200, `"freshness":"FRESH"`},
	} {
		r := newRig(t, openParams)
		r.putSnapshot("stale", 2*time.Hour)
		r.putSnapshot("fresh", time.Minute)
		a := r.do(c.method, "/v1/nexon/character"+c.path)
		if a.StatusCode != c.status {
			t.Errorf("%s: got status %d %s, want %d", name, a.StatusCode, a.text, c.status)
		}
		if !strings.Contains(a.text, c.text) {
			t.Errorf("%s: got %s, want %q in it", name, a.text, c.text)
		}
		want := 0
		if strings.Contains(name, "registered") && c.status == 202 {
			want = 1
		}
		if got := len(r.enqueued()); got != want {
			t.Errorf("%s: got %d update requests, want %d", name, got, want)
		}
	}
}

// If one key of a batch has no params, the other keys must still be enqueued.
func TestMissingParams_OfOneKeyLeaveTheOthers(t *testing.T) {
	r := newRig(t, openParams)
	a := r.do(http.MethodGet, "/v1/nexon/character?key=unknown&key=known")
	if want := `"status":400`; !strings.Contains(a.text, want) {
		t.Errorf("batch: got %s, want %s in it", a.text, want)
	}
	if want := `"status":202`; !strings.Contains(a.text, want) {
		t.Errorf("batch: got %s, want %s in it", a.text, want)
	}
	a = r.post("/v1/nexon/character/refresh", `{"keys":["known","unknown"]}`)
	if want := `{"key":"unknown","status":400,"refresh":{"queued":false,"reason":"MISSING_PARAMS"`; !strings.Contains(a.text, want) {
		t.Errorf("refresh: got %s, want %s in it", a.text, want)
	}
	for _, req := range r.enqueued() {
		if req.Entity.Key != "known" {
			t.Errorf("update requests: got key %s, want only known", req.Entity.Key)
		}
	}
}

func TestMissingParams_AreUnknownWhileTheStoreFails(t *testing.T) {
	r := newRig(t, openParams)
	r.paramsErr = errors.New("connection refused")
	a := r.get("known")
	if a.StatusCode != 503 {
		t.Errorf("status: got %d, want 503", a.StatusCode)
	}
	if got := a.body.Refresh.Reason; got != ReasonDown {
		t.Errorf("reason: got %s, want %s", got, ReasonDown)
	}
	if got := len(r.enqueued()); got != 0 {
		t.Errorf("update requests: got %d, want 0", got)
	}
}
