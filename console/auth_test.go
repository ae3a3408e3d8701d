package console

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/freshet/freshet/access"
)

// posts has a valid form for each action of the console, by path.
var posts = map[string]url.Values{
	"/lookup":          {"source": {"nexon"}, "facet": {"character"}, "key": {"a"}},
	"/refresh":         {"facet": {"nexon/character"}, "keys": {"a"}},
	"/dlq/start":       {"source": {"nexon"}, "kind": {"REPLAY"}, "lane": {"LOW"}, "until": {"2026-01-27T12:00:00Z"}, "counted": {"12254"}},
	"/dlq/jobs/1/stop": {}, "/dlq/jobs/1/resume": {},
	"/settings/nexon": {"revision": {"7"}, "target.second": {"410"}}, "/settings/nexon/stop": {"note": {"x"}}, "/settings/nexon/resume": {},
	"/fault-scenario": {"scenario": {"storm"}},
}

// actionsDone returns the number of actions that the fakes of the rig have recorded.
func (r *rig) actionsDone() int {
	n := len(r.refreshed) + len(r.orders) + len(r.ordered) + len(r.switched)
	if r.scenario != "fair" {
		n++
	}
	return n
}

func TestAuthorize_Matrix(t *testing.T) {
	for _, c := range []struct {
		token              string
		look, refresh, act int
	}{
		{"", 303, 401, 401},
		{"wrong", 303, 401, 401},
		{"read", 403, 403, 403},
		{"read,refresh", 403, 403, 403},
		{"see:a", 403, 403, 403},
		{"inspect", 200, 403, 403},
		{"inspect,refresh", 200, 200, 403},
		{"admin", 200, 200, 303},
	} {
		for _, locked := range []bool{false, true} {
			r := newRig(t, withScenarios, func(n *Deps) { n.ReadOnly = locked })
			fillRig(r)
			r.loginRequired = true
			for _, path := range paths {
				if d := r.get(root+path, "Authorization", "Bearer "+c.token); d.status != c.look {
					t.Errorf("GET %q with the token %q: got %d, want %d", path, c.token, d.status, c.look)
				}
			}
			for path, form := range posts {
				want, before := c.act, r.actionsDone()
				if path == "/lookup" || path == "/refresh" {
					want = c.refresh
				}
				if allowed := want < 400; locked && allowed {
					want = 403
				}
				d := r.open("POST", root+path, form, "Authorization", "Bearer "+c.token)
				if d.status != want || (r.actionsDone() > before) != (want < 400) {
					t.Errorf("POST %s with %q, read-only %v: got %d %s, want %d, and an action only below 400",
						path, c.token, locked, d.status, d.textByID("rejected"), want)
				}
				if d.status == 403 && d.textByID("rejected") == "" {
					t.Errorf("reason of the 403 of %s: got none, want one", path)
				}
				if d.status != 303 {
					d.wellFormed(t, path)
				}
			}
		}
	}
}

// offeredActions returns the number of forms and buttons on the page that start an action.
func (d document) offeredActions() int {
	n := 0
	d.each(func(e *html.Node) {
		if e.Data == "form" && attr(e, "method") == "post" && attr(e, "action") != root+"/logout" {
			for c := range e.Descendants() {
				if c.Data == "button" {
					n++
				}
			}
		}
	})
	return n
}

func TestPages_OfferOnlyPermittedActions(t *testing.T) {
	for _, path := range paths {
		open, locked, inspector := newRig(t, withScenarios), newRig(t, withScenarios, readOnly), newRig(t, withScenarios)
		inspector.loginRequired = true
		for _, r := range []*rig{open, locked, inspector} {
			fillRig(r)
		}
		if n := locked.get(root + path).offeredActions(); n != 0 {
			t.Errorf("actions on %q, read-only: got %d, want none", path, n)
		}
		if n := inspector.get(root+path, "Authorization", "Bearer inspect").offeredActions(); n != 0 {
			t.Errorf("actions on %q for an inspector: got %d, want none", path, n)
		}
		acts := strings.HasPrefix(path, "/lookup") || strings.Contains(path, "/plan") || strings.Contains(path, "/jobs/") || path == "/settings" || path == ""
		if n := open.get(root + path).offeredActions(); (n > 0) != acts {
			t.Errorf("actions on %q: got %d, want some: %v", path, n, acts)
		}
	}
	if d := newRig(t, readOnly).get(root); !strings.Contains(d.text(), "read-only") {
		t.Error("the page does not show that the console is read-only")
	}
}

func TestConsole_RejectsCrossSiteRequests(t *testing.T) {
	for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}} {
		r := newRig(t, withScenarios)
		fillRig(r)
		for path, form := range posts {
			if d := r.open("POST", root+path, form, headers...); d.status != 403 || r.actionsDone() > 0 {
				t.Errorf("POST %s with %v: got %d and %d actions, want 403 and none", path, headers, d.status, r.actionsDone())
			}
		}
		r.loginRequired = true
		if answer := r.do("POST", root+"/login", url.Values{"token": {"admin"}}, headers...); answer.status != 403 || len(answer.cookies) > 0 {
			t.Errorf("login with %v: got %d and %d cookies, want 403 and none", headers, answer.status, len(answer.cookies))
		}
	}
	if d := newRig(t).get("http://evil.example/console"); d.status != http.StatusMisdirectedRequest || !strings.Contains(d.textByID("rejected"), "By this name") {
		t.Errorf("request by a strange name: got %d %s, want %d and a text that contains %q",
			d.status, d.text(), http.StatusMisdirectedRequest, "By this name")
	}
}

func TestLogin_LastsUntilLogout(t *testing.T) {
	r := newRig(t)
	r.loginRequired = true
	answer := r.do("GET", root+"/dlq?source=nexon&key=a%26b", nil)
	to := answer.header.Get("Location")
	if answer.status != 303 || to != "/console/login?to=%2Fconsole%2Fdlq%3Fsource%3Dnexon%26key%3Da%2526b" {
		t.Fatalf("got status %d and location %s, want a redirect to the login page", answer.status, to)
	}
	d := r.get(to)
	if d.wellFormed(t, "login"); d.status != 200 || d.byID("token") == nil || !strings.Contains(d.text(), "Log in") {
		t.Fatalf("got status %d, want 200 and the login form: %s", d.status, d.text())
	}
	if strings.Contains(d.text(), "Go on") {
		t.Error("the page treats the request as cross-site")
	}
	if d := r.get(to, "Sec-Fetch-Site", "cross-site"); d.linksTo("/console/dlq?source=nexon&key=a%26b") == 0 {
		t.Error("the login page has no link to continue")
	}
	in := func(token, to string, headers ...string) reply {
		return r.do("POST", root+"/login", url.Values{"token": {token}, "to": {to}}, headers...)
	}
	for token, want := range map[string]int{"": 401, "wrong": 401, "read": 403, strings.Repeat("x", 3000): 401} {
		if answer := in(token, ""); answer.status != want || len(answer.cookies) > 0 {
			t.Errorf("login with %.20q: got %d and the cookies %v, want %d and none", token, answer.status, answer.cookies, want)
		}
	}
	for _, c := range []struct {
		to, want, origin string
		secure           bool
	}{
		{"/console/dlq?source=nexon", "/console/dlq?source=nexon", "", false},
		{"https://evil.example/console", "/console", "https://example.com", true},
		{"//evil.example/console", "/console", "http://example.com", false},
		{`/\evil.example`, "/console", "", false},
		{"/console/../v1", "/console", "", false},
		{"/consoles", "/console", "", false},
		{"", "/console", "", false},
	} {
		var headers []string
		if c.origin != "" {
			headers = []string{"Origin", c.origin, "Sec-Fetch-Site", "same-origin"}
		}
		answer := in(`inspect,"; é`, c.to, headers...)
		cookies := answer.cookies
		if answer.status != 303 || answer.header.Get("Location") != c.want || len(cookies) != 1 {
			t.Fatalf("login %+v: got %d %v and %d cookies, want 303 to %s and 1", c, answer.status, answer.header, len(cookies), c.want)
		}
		k := cookies[0]
		if !k.HttpOnly || k.SameSite != http.SameSiteStrictMode || k.Secure != c.secure || strings.Contains(k.Value, "inspect") {
			t.Errorf("cookie of %+v: got %s, want HttpOnly, SameSite=Strict, Secure %v and no token in it", c, k, c.secure)
		}
		d := r.get(root, "Cookie", k.Name+"="+k.Value)
		if d.status != 200 || !strings.Contains(d.text(), `key:1 inspect,"; é`) || !strings.Contains(d.text(), "Log out") {
			t.Errorf("page with the cookie: got %d %s, want 200, the name of the client and Log out", d.status, d.text())
		}
		// If the bearer token is invalid, the request must be redirected to the login page, even if
		// the cookie is valid.
		if d := r.get(root, "Cookie", k.Name+"="+k.Value, "Authorization", "Bearer wrong"); d.status != 303 {
			t.Errorf("cookie with an invalid token: got %d, want 303", d.status)
		}
	}
	out := r.do("POST", root+"/logout", url.Values{})
	if k := out.cookies; out.status != 303 || len(k) != 1 || k[0].MaxAge >= 0 || k[0].Path != "/console" {
		t.Errorf("logout: got %d and the cookies %v, want 303 and one expired cookie of /console", out.status, k)
	}
	r.loginRequired = false
	if answer := r.do("GET", root+"/login?to=/console/queues", nil); answer.status != 303 || answer.header.Get("Location") != "/console/queues" {
		t.Errorf("login without need: got %d to %q, want 303 to /console/queues", answer.status, answer.header.Get("Location"))
	}
}

func TestCookie_WorksBehindBasicAuthProxy(t *testing.T) {
	r := newRig(t)
	r.loginRequired = true
	k := r.do("POST", root+"/login", url.Values{"token": {"inspect"}}, "Authorization", "Basic b3BzOnB3").cookies
	if len(k) != 1 {
		t.Fatal("the login failed")
	}
	for header, want := range map[string]int{"Basic b3BzOnB3": 200, "bearer wrong": 303, "Bearer inspect": 200} {
		if d := r.get(root, "Authorization", header, "Cookie", k[0].Name+"="+k[0].Value); d.status != want {
			t.Errorf("status with %s: got %d, want %d", header, d.status, want)
		}
	}
}

func TestLogin_MissingTokenIsNoFailure(t *testing.T) {
	r := newRig(t)
	r.loginRequired = true
	for _, headers := range [][]string{nil, {"Authorization", "Basic b3BzOnB3"}, {"Cookie", cookieName + "=!"}} {
		if d := r.get(root, headers...); d.status != 303 || r.identified > 0 {
			t.Errorf("%v: got %d and %d calls of the guard, want 303 and none", headers, d.status, r.identified)
		}
	}
	r.loginRequired = false // even if no login is required, the guard must check host names and origins
	if d := r.get(root); d.status != 200 || r.identified != 1 {
		t.Errorf("no login required: got %d and %d calls of the guard, want 200 and 1", d.status, r.identified)
	}
}

func TestCrossSiteLink_OffersToContinue(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	const path = root + "/dlq?source=nexon&key=a%26b"
	d := r.get(path, "Sec-Fetch-Site", "cross-site")
	if d.wellFormed(t, "rejected"); d.status != 403 || d.linksTo(path) != 1 || len(r.filters) > 0 {
		t.Errorf("cross-site page: got %d, %d links to it and the filters %+v, want 403, 1 and none: %s",
			d.status, d.linksTo(path), r.filters, d.text())
	}
	if d := r.get(root+"/live", "Sec-Fetch-Site", "cross-site"); d.status != 403 || d.linksTo(root+"/live") > 0 {
		t.Errorf("cross-site stream: got %d and %d links to it, want 403 and none", d.status, d.linksTo(root+"/live"))
	}
	if d := r.get(root + "/nowhere"); d.linksTo(root+"/nowhere") > 0 {
		t.Error("the error page links to itself")
	}
}

func TestCookie_ExpiresWithTokenOrAfter12h(t *testing.T) {
	r := newRig(t)
	r.loginRequired = true
	for expires, want := range map[time.Time]int{{}: 12 * 3600, testNow.Add(time.Hour): 3600, testNow.Add(13 * time.Hour): 12 * 3600, testNow.Add(time.Millisecond): 1} {
		r.expires = expires
		answer := r.do("POST", root+"/login", url.Values{"token": {"inspect"}, "to": {root + "/dlq?source=nexon"}})
		if k := answer.cookies; len(k) != 1 || k[0].MaxAge != want || answer.header.Get("Location") != root+"/dlq?source=nexon" {
			t.Errorf("login with a token that ends at %v: got %v to %q, want one cookie with MaxAge %d, to the page",
				expires, k, answer.header.Get("Location"), want)
		}
	}
	answer := r.do("POST", root+"/login", url.Values{"token": {"admin"}, "to": {root + "/dlq?source=nexon"}})
	if d := r.get(answer.header.Get("Location"), "Authorization", "Bearer admin"); !strings.Contains(d.text(), "An API key with the scope admin identifies you") {
		t.Errorf("page for the admin token: got %s, want a warning in it", d.text())
	}
	if text := r.get(root + "/login").text(); !strings.Contains(text, "for 12 hours at most") {
		t.Errorf("got %s, want %q in it", text, "for 12 hours at most")
	}
}

func TestContent_ShownOnlyWithPermission(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	r.loginRequired, r.entity.State.Visibility = true, "partner"
	for token, want := range map[string]bool{"inspect": false, "inspect,see:other": false, "inspect,see:partner": true, "admin": true} {
		d := r.get(root+"/lookup?facet=nexon/character&key=a", "Authorization", "Bearer "+token)
		if got := strings.Contains(d.text(), "item_equipment"); d.status != 200 || got != want {
			t.Errorf("%s: got %d and content %v, want 200 and %v", token, d.status, got, want)
		}
	}
	for token, want := range map[string]bool{"inspect": false, "admin": true} {
		text := r.get(root+"/dlq/nexon/3/120", "Authorization", "Bearer "+token).text()
		if got := strings.Contains(text, `"name": "OPENAPI00009"`); got != want || strings.Contains(text, "only to administrators") == want {
			t.Errorf("%s: record shown: got %v, want %v", token, got, want)
		}
	}
	if access.Inspect != "inspect" {
		t.Errorf("got the scope %q, want inspect", access.Inspect)
	}
}

func TestLoginPage_HidesVersion(t *testing.T) {
	r := newRig(t, func(n *Deps) { n.Version = "v9.8.7" })
	fillRig(r)
	r.loginRequired = true
	for token, shows := range map[string]bool{"": false, "read": false, "inspect": true} {
		for _, path := range []string{root + "/login", root} {
			text := r.get(path, "Authorization", "Bearer "+token).text()
			if got := strings.Contains(text, "v9.8.7"); got && !shows || !got && shows && path == root {
				t.Errorf("%s with %q shows the version: %v, want %v", path, token, got, shows)
			}
		}
	}
}
