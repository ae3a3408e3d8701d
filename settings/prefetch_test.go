package settings

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestPrefetch_PatchSetsMembers(t *testing.T) {
	r := newRig(t)
	for i, step := range []struct{ patch, override string }{
		{`{"prefetch":{"enabled":false}}`, `{"prefetch":{"enabled":false}}`},
		{`{"prefetch":{"facets":{"character":{"hot":"30m","maxInterval":"100h"}}}}`, `{"prefetch":{"enabled":false,"facets":{"character":{"hot":"30m","maxInterval":"100h"}}}}`},
		{`{"prefetch":{"enabled":null,"facets":{"character":{"maxInterval":null}}}}`, `{"prefetch":{"facets":{"character":{"hot":"30m"}}}}`},
		{`{"policies":{"second":{"target":400}}}`, `{"policies":{"second":{"target":400}},"prefetch":{"facets":{"character":{"hot":"30m"}}}}`},
		{
			`{"policies":null,"prefetch":{"facets":{"character":{"active":{"status":{"path":"d.s","block":["x"]},"params":["ocid"]}}}}}`,
			`{"prefetch":{"facets":{"character":{"hot":"30m","active":{"status":{"path":"d.s","block":["x"]},"params":["ocid"]}}}}}`,
		},
		{`{"prefetch":{"facets":{"character":{"active":{}}}}}`, `{"prefetch":{"facets":{"character":{"hot":"30m","active":{}}}}}`},
		{`{"prefetch":{"facets":{"character":null}}}`, `{}`},
		{`{"prefetch":{"enabled":true,"facets":{"character":{"hot":"1h","warm":"90m"}}}}`, `{"prefetch":{"enabled":true,"facets":{"character":{"hot":"1h","warm":"1h30m"}}}}`},
		{`{"prefetch":{"facets":null}}`, `{"prefetch":{"enabled":true}}`},
		{`{"prefetch":null}`, `{}`},
	} {
		a := r.patch(step.patch)
		if a.StatusCode != http.StatusOK || r.override(a) != step.override || a.Revision != int64(i+1) {
			t.Fatalf("%s: got %d, revision %d, %s, want 200, revision %d, %s", step.patch, a.StatusCode, a.Revision, r.override(a), i+1, step.override)
		}
	}
}

func TestPrefetch_EffectiveIsConfiguredPlusOverride(t *testing.T) {
	r := newRig(t)
	a := r.patch(`{"prefetch":{"enabled":false,"facets":{"character":{"cold":"48h"}}}}`)
	before, now := a.Configured.Prefetch, a.Effective.Prefetch
	if !before.Enabled || before.Facets["character"].Cold != 24*hour {
		t.Errorf("configured: got %+v, want enabled and cold every 24h", before)
	}
	if now.Enabled || now.Facets["character"].Cold != 48*hour || now.Facets["character"].Hot != hour {
		t.Errorf("effective: got %+v, want disabled and cold every 48h", now)
	}
	o, err := r.Prefetch(t.Context(), "nexon")
	if err != nil || *o.Enabled || *o.Facets["character"].Cold != 48*hour {
		t.Errorf("for a scheduler: got %+v, %v, want disabled and cold every 48h", o, err)
	}
}

func TestPrefetch_RejectsInvalidValues(t *testing.T) {
	r := newRig(t)
	for patch, words := range map[string]string{
		`{"prefetch":{"facets":{"character":{"hot":"7h"}}}}`: "they must rise",
		`{"prefetch":{"facets":{"other":{"hot":"1h"}}}}`:     "there is no such facet",
	} {
		if a := r.patch(patch); a.StatusCode != http.StatusUnprocessableEntity || a.Code != "prefetch-refused" || !strings.Contains(a.Detail, words) {
			t.Errorf("%s: got %d %s, want 422 prefetch-refused with %q", patch, a.StatusCode, a.text, words)
		}
	}
	for patch, words := range map[string]string{
		`{"prefetch":{"enabled":"no"}}`:                                          "got string, want true or false",
		`{"prefetch":{"facets":{"character":{"hot":"soon"}}}}`:                   `"soon" must be a duration`,
		`{"prefetch":{"facets":{"character":{"hot":60}}}}`:                       "a duration",
		`{"prefetch":{"facets":{"character":{"mode":"off"}}}}`:                   `unknown field "mode"`,
		`{"prefetch":{"facets":{"character":{"active":{"state":"x"}}}}}`:         `unknown field "state"`,
		`{"prefetch":{"facets":{"character":{"active":{"status":{"path":5}}}}}}`: "text",
		`{"prefetch":[]}`: "object",
	} {
		if a := r.patch(patch); a.StatusCode != http.StatusBadRequest || a.Code != "bad-body" || !strings.Contains(a.Detail, words) {
			t.Errorf("%s: got %d %s, want 400 with %q", patch, a.StatusCode, a.text, words)
		}
	}
	if a := r.get(); a.Revision != 0 {
		t.Errorf("revision: got %d, want 0", a.Revision)
	}
}

// An emergency stop must keep the prefetch settings of the override. The stop is stored in the same
// override, so a mistake would overwrite these settings.
func TestPrefetch_StopKeepsOverride(t *testing.T) {
	r := newRig(t)
	r.patch(`{"prefetch":{"enabled":false}}`)
	if a := r.act("stop", ""); r.override(a) != `{"stopped":true,"prefetch":{"enabled":false}}` {
		t.Errorf("override: got %s, want both", r.override(a))
	}
	if o, revision, err := r.Quota(t.Context(), "nexon"); err != nil || revision != 2 || !o.Stopped {
		t.Errorf("limiter: got %+v, %d, %v, want stopped at revision 2", o, revision, err)
	}
}

func TestDuration_TextIsShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Minute: "1m", time.Hour: "1h", 90 * time.Minute: "1h30m", 168 * time.Hour: "168h", 90 * time.Second: "1m30s", 0: "0s", 10 * time.Second: "10s", 100 * time.Minute: "1h40m",
	} {
		if got := Duration(d).String(); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

func TestParseActive_RoundTrip(t *testing.T) {
	for _, text := range []string{`{}`, `{"status":{"path":"a.b","allow":["x"]},"unless":["a.c"],"params":["p"]}`} {
		if a, err := ParseActive(text); err != nil || a.String() != text {
			t.Errorf("got %s, %v, want %s", a, err, text)
		}
	}
	for _, text := range []string{"", "none", "[]", "{", `{"x":1}`} {
		if a, err := ParseActive(text); err == nil {
			t.Errorf("%q: got %s, want an error", text, a)
		}
	}
}
