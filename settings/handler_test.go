package settings

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestGet_UnchangedEqualsConfigured(t *testing.T) {
	r := newRig(t)
	a := r.get()
	if a.StatusCode != 200 || a.Stopped || a.Revision != 0 || a.ChangedAt != nil || a.ChangedBy != nil || r.override(a) != "{}" ||
		a.Header.Get("ETag") != `"0"` || a.Effective.Policies[0].Target != 450 || a.Configured.Policies[1].TimeZone != "Asia/Seoul" {
		t.Errorf("%d %s %v", a.StatusCode, a.text, a.Header)
	}
	all := r.do(http.MethodGet, "/admin/v1/settings", "").Settings
	if len(all) != 2 || all[0].Source != "nexon" || all[1].Source != "other" {
		t.Errorf("got %+v", all)
	}
	if entries := r.do(http.MethodGet, "/admin/v1/audit", "").Entries; entries == nil || len(entries) != 0 {
		t.Errorf("audit %+v", entries)
	}
}

func TestPatch_SetsMembersAndNullResets(t *testing.T) {
	r := newRig(t)
	for i, step := range []struct{ patch, override string }{
		{`{"policies":{"second":{"target":400,"highReserve":120}}}`, `{"policies":{"second":{"target":400,"highReserve":120}}}`},
		{`{"policies":{"second":{"highReserve":null},"day":{"limit":15000000,"highReserve":"90/m"}}}`, `{"policies":{"day":{"limit":15000000,"highReserve":"1.5/s"},"second":{"target":400}}}`},
		{`{"policies":{"second":{"target":null}}}`, `{"policies":{"day":{"limit":15000000,"highReserve":"1.5/s"}}}`},
		{`{"policies":{"day":null,"second":{"lowReserve":10}}}`, `{"policies":{"second":{"lowReserve":10}}}`},
		{` {"policies":null} `, `{}`},
	} {
		a := r.patch(step.patch)
		if a.StatusCode != 200 || r.override(a) != step.override || a.Revision != int64(i+1) || *a.ChangedBy != "somebody" ||
			time.Since(*a.ChangedAt).Abs() > time.Minute {
			t.Fatalf("%s gave %d %s", step.patch, a.StatusCode, a.text)
		}
		if got := r.get(); got.text != a.text || got.Header.Get("ETag") != a.Header.Get("ETag") {
			t.Errorf("PATCH responded %s, GET %s", a.text, got.text)
		}
	}
}

func TestEffective_IsConfiguredPlusOverride(t *testing.T) {
	r := newRig(t)
	a := r.patch(`{"policies":{"second":{"target":400}}}`)
	if a.Configured.Policies[0].Target != 450 || a.Effective.Policies[0].Target != 400 || a.Effective.Policies[0].HighReserve.Calls != 100 {
		t.Error(a.text)
	}
}

func TestPatch_RejectsInvalidQuota(t *testing.T) {
	r := newRig(t)
	for patch, words := range map[string]string{
		`{"policies":{"second":{"target":600}}}`:                         `target: 600 is above the limit of 500`,
		`{"policies":{"second":{"target":500}}}`:                         `could reach the upstream`,
		`{"policies":{"second":{"highReserve":450}}}`:                    `0 reserve all 450 calls`,
		`{"policies":{"minute":{"limit":5}}}`:                            `there is no policy "minute"; the quota has second, day`,
		`{"policies":{"day":{"limit":0}}}`:                               `limit: 0 is too small`,
		`{"policies":{"day":{"target":5}}}`:                              "not allowed in a policy with `window: day`",
		`{"policies":{"second":{"limit":300}}}`:                          `target: 450 is above the limit of 300`,
		`{"policies":{"second":{"lowReserve":-1}}}`:                      `must not be negative`,
		`{"policies":{"second":{"target":400},"day":{"limit":1000000}}}`: `policies[1] "day"`,
	} {
		a := r.patch(patch)
		if a.StatusCode != 422 || a.Code != "quota-refused" || !strings.Contains(a.Detail, words) {
			t.Errorf("%s gave %d %s", patch, a.StatusCode, a.text)
		}
	}
	if a := r.get(); a.Revision != 0 || r.override(a) != "{}" {
		t.Errorf("settings changed: %s", a.text)
	}
}

func TestPatch_RejectsMalformedBody(t *testing.T) {
	r := newRig(t)
	for body, words := range map[string]string{
		``:                                       "must be an object",
		`null`:                                   "must be an object",
		`[]`:                                     "must be an object",
		`{`:                                      "unexpected EOF",
		`{} {}`:                                  "unexpected data after",
		`{"stopped":true}`:                       `unknown field "stopped"; the members are note, policies.{name}.limit`,
		`{"policies":[]}`:                        "got array, want an object",
		`{"policies":{"second":{"traget":400}}}`: `unknown field "traget"`,
		`{"policies":{"second":{"traget":null}}}`:           `unknown field "traget"`,
		`{"policies":{"second":{"target":"400"}}}`:          "got string, want a whole number",
		`{"policies":{"second":{"target":4.5}}}`:            "want a whole number",
		`{"policies":{"second":{"highReserve":"a lot"}}}`:   "a number of calls a window, or a rate",
		`{"policies":{"second":{"window":"2s"}}}`:           `unknown field "window"`,
		`{"policies":{"second":{"target":400},"second":1}}`: "want an object",
	} {
		a := r.patch(body)
		if a.StatusCode != 400 || a.Code != "bad-body" || !strings.Contains(a.Detail, words) {
			t.Errorf("%s gave %d %s", body, a.StatusCode, a.text)
		}
	}
	large := `{"policies":{"` + strings.Repeat("x", 64<<10) + `":null}}`
	if a := r.patch(large); a.StatusCode != 413 || a.Code != "body-too-large" {
		t.Errorf("a large body: %d %s", a.StatusCode, a.text)
	}
	if a := r.get(); a.Revision != 0 {
		t.Errorf("settings changed: %s", a.text)
	}
}

func TestPatch_NoChangeKeepsRevision(t *testing.T) {
	r := newRig(t)
	r.patch(`{"policies":{"second":{"target":400}}}`)
	for _, patch := range []string{`{}`, `{"policies":{"second":{"target":400}}}`, `{"policies":{"day":null}}`} {
		if a := r.patch(patch); a.StatusCode != 200 || a.Revision != 1 {
			t.Errorf("%s: %d %s", patch, a.StatusCode, a.text)
		}
	}
	if n := len(r.do(http.MethodGet, "/admin/v1/audit", "").Entries); n != 1 {
		t.Errorf("audit entries: got %d, want 1", n)
	}
}

func TestPatch_IfMatchMustEqualRevision(t *testing.T) {
	r := newRig(t)
	target := func(n string) string { return `{"policies":{"second":{"target":` + n + `}}}` }
	for _, step := range []struct {
		ifMatch, target string
		status          int
		code            string
	}{
		{`"0"`, "401", 200, ""},
		{`"0"`, "402", 412, "revision-conflict"},
		{`"7"`, "402", 412, "revision-conflict"},
		{"1", "402", 200, ""},
		{"*", "403", 200, ""},
		{"none", "404", 200, ""},
		{"", "405", 400, "bad-if-match"},
		{`"4`, "405", 400, "bad-if-match"},
		{`""4""`, "405", 400, "bad-if-match"},
		{"+4", "405", 400, "bad-if-match"},
		{strings.Repeat("9", 19), "405", 400, "bad-if-match"},
		{`"3", "4"`, "405", 400, "bad-if-match"},
		{`W/"4"`, "405", 400, "bad-if-match"},
		{"abc", "405", 400, "bad-if-match"},
	} {
		headers := []string{"If-Match", step.ifMatch}
		if step.ifMatch == "none" {
			headers = nil
		}
		if a := r.patch(target(step.target), headers...); a.StatusCode != step.status || a.Code != step.code {
			t.Errorf("If-Match: %s gave %d %s", step.ifMatch, a.StatusCode, a.text)
		}
	}
	if a := r.patch(target("405"), "If-Match", `"4"`, "If-Match", `"3"`); a.StatusCode != 400 {
		t.Errorf("two lines of If-Match gave %d %s", a.StatusCode, a.text)
	}
	if a := r.get(); a.Revision != 4 || a.Effective.Policies[0].Target != 404 {
		t.Error(a.text)
	}
}

func (r *rig) act(what, body string) response {
	r.Helper()
	return r.do(http.MethodPost, "/admin/v1/sources/nexon/"+what, body)
}

func TestStopResume_IdempotentAndKeepOverride(t *testing.T) {
	r := newRig(t)
	r.patch(`{"policies":{"second":{"target":400}}}`)
	for _, step := range []struct {
		what, body string
		revision   int64
	}{
		{"resume", "", 1},
		{"stop", `{"note":"the upstream asked us to"}`, 2},
		{"stop", "", 2},
		{"stop", "{}", 2},
		{"stop", `{"note":null}`, 2},
		{"stop", `{"note":"` + strings.Repeat("유", 1000) + `"}`, 2},
		{"resume", `{"note":"they are done"}`, 3},
		{"resume", "", 3},
	} {
		a := r.act(step.what, step.body)
		if a.StatusCode != 200 || a.Revision != step.revision || a.Stopped != (step.what == "stop") || a.Effective.Policies[0].Target != 400 {
			t.Errorf("%s: %d %s", step.what, a.StatusCode, a.text)
		}
	}
	entries := r.do(http.MethodGet, "/admin/v1/audit?limit=2", "").Entries
	if len(entries) != 2 || entries[0].Action != "resume" || entries[0].Note != "they are done" || entries[1].Action != "stop" ||
		entries[1].Note != "the upstream asked us to" || entries[1].Actor != "somebody" || entries[1].Source != "nexon" ||
		string(entries[1].Before) != `{"policies":{"second":{"target":400}}}` || string(entries[1].After) != `{"stopped":true,"policies":{"second":{"target":400}}}` {
		t.Errorf("audit %+v", entries)
	}
	for _, body := range []string{`{"why":"x"}`, `{"note":5}`, `{"note":"a\u0000b"}`, `{"note":"a\nb"}`, `{"note":"` + strings.Repeat("x", 1001) + `"}`, `x`, `null`, ` `, `[]`} {
		if a := r.act("stop", body); a.StatusCode != 400 || a.Code != "bad-body" {
			t.Errorf("%.40s: %d %s", body, a.StatusCode, a.text)
		}
	}
}

func TestPatch_NoteIsInAudit(t *testing.T) {
	r := newRig(t)
	if a := r.patch(`{"note":"the upstream asked for less","policies":{"second":{"target":400}}}`); a.StatusCode != 200 || a.Effective.Policies[0].Target != 400 {
		t.Fatalf("got %d %s, want 200 and a target of 400", a.StatusCode, a.text)
	}
	entries := r.do(http.MethodGet, "/admin/v1/audit?limit=1", "").Entries
	if got, want := entries[0].Note, "the upstream asked for less"; got != want {
		t.Errorf("note in the audit: got %q, want %q", got, want)
	}
	for _, note := range []string{`"a\nb"`, `"` + strings.Repeat("x", 1001) + `"`, `5`} {
		if a := r.patch(`{"note":` + note + `,"policies":{"second":{"target":300}}}`); a.StatusCode != 400 || a.Code != "bad-body" {
			t.Errorf("note %.20s: got %d %s, want 400 bad-body", note, a.StatusCode, a.text)
		}
	}
}

func TestHandler_RejectsCrossSiteRequest(t *testing.T) {
	r := newRig(t)
	for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://evil.example"}} {
		for _, a := range []response{
			r.do(http.MethodPost, "/admin/v1/sources/nexon/stop", "", headers...), r.patch(`{"policies":{"second":{"target":400}}}`, headers...),
		} {
			if a.StatusCode != 403 || a.Code != "cross-site" {
				t.Errorf("%v: %d %s", headers, a.StatusCode, a.text)
			}
		}
	}
	if a := r.do(http.MethodPost, "/admin/v1/sources/nexon/stop", "", "Sec-Fetch-Site", "same-origin"); a.StatusCode != 200 {
		t.Errorf("same origin: %d %s", a.StatusCode, a.text)
	}
}

func TestHandler_AllowListsMethods(t *testing.T) {
	r := newRig(t)
	for path, want := range map[string]string{"settings": "GET, HEAD", "settings/nexon": "GET, PATCH, HEAD", "sources/nexon/stop": "POST"} {
		if got := r.do(http.MethodDelete, "/admin/v1/"+path, "").Header.Get("Allow"); got != want {
			t.Errorf("%s: Allow: got %s, want %s", path, got, want)
		}
	}
}

func TestHandler_ErrorsAreProblems(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/admin/v1/settings/github", 404, "no-such-source"},
		{"GET", "/admin/v1/settings/nexon%2Fx", 404, "no-such-source"},
		{"PATCH", "/admin/v1/settings/github", 404, "no-such-source"},
		{"POST", "/admin/v1/sources/github/stop", 404, "no-such-source"},
		{"GET", "/admin/v1/limiter/github", 404, "no-such-source"},
		{"GET", "/admin/v1/nothing", 404, "no-such-path"},
		{"GET", "/admin/v1/settings/", 404, "no-such-path"},
		{"DELETE", "/admin/v1/settings/nexon", 405, "method-not-allowed"},
		{"GET", "/admin/v1/sources/nexon/stop", 405, "method-not-allowed"},
		{"GET", "/admin/v1/audit?limit=", 400, "bad-limit"},
		{"GET", "/admin/v1/audit?limit=0", 400, "bad-limit"},
		{"GET", "/admin/v1/audit?limit=1001", 400, "bad-limit"},
		{"GET", "/admin/v1/audit?limit=all", 400, "bad-limit"},
	} {
		if a := r.do(c.method, c.path, "{}"); a.StatusCode != c.status || a.Code != c.code || (c.status == 405) != (a.Header.Get("Allow") != "") {
			t.Errorf("%s %s: %d %s", c.method, c.path, a.StatusCode, a.text)
		}
	}
}

func TestHandler_DatabaseErrorHidesDetail(t *testing.T) {
	r := newRig(t)
	r.before = func() error { return errDown }
	a := r.act("stop", "")
	if a.StatusCode != 503 || a.Code != "store-unavailable" || a.Header.Get("Retry-After") != "1" || strings.Contains(a.text, "secret") {
		t.Errorf("got %d %s", a.StatusCode, a.text)
	}
	if !strings.Contains(r.log.String(), errDown.Error()) {
		t.Errorf("log: got %s, want the error", r.log.String())
	}
}

func TestHandler_ReadsLimiter(t *testing.T) {
	r := newRig(t)
	getLimiter := func() response { t.Helper(); return r.do(http.MethodGet, "/admin/v1/limiter/nexon", "") }
	if a := getLimiter(); a.StatusCode != 200 || !strings.HasPrefix(a.text, `{"source":"nexon","state":"unused",`) {
		t.Errorf("got %d %s", a.StatusCode, a.text)
	}
	r.readLimiter = func(context.Context, string) (any, error) { return nil, errDown }
	if a := getLimiter(); a.StatusCode != 503 || a.Code != "limiter-unavailable" || strings.Contains(a.text, "secret") || !strings.Contains(r.log.String(), "secret") {
		t.Errorf("got %d %s", a.StatusCode, a.text)
	}
	r.handler = r.Handler(nil, nil, nil)
	if a := getLimiter(); a.StatusCode != 501 || a.Code != "limiter-unsupported" {
		t.Errorf("got %d %s", a.StatusCode, a.text)
	}
}
