package console

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/store/deadletters"
)

// paths are the paths of all pages below /console. Their query parameters select content that
// fillRig adds to the rig.
var paths = []string{
	"", "/lookup", "/lookup?facet=nexon/character&key=somebody", "/queues", "/limiter", "/dlq", "/dlq?source=nexon&handled=all&after=1769515230000000:3:120",
	"/dlq/nexon/3/120", "/dlq/plan?source=nexon&kind=REPLAY&lane=LOW", "/dlq/plan?source=nexon&kind=PURGE", "/dlq/jobs/0198b2c0-0000-7000-8000-000000000001", "/settings", "/activity", "/schedule",
	"/items", "/items?facet=nexon/character&prefix=a&show=failing", "/calls", "/calls?show=failed", "/processes", "/runs", "/runs?source=nexon&state=FAILED",
	"/collection?facet=nexon/character&key=somebody", "/collection?facet=nexon/character&key=somebody&prefix=1&item=7",
}

// wellFormed fails the test if the page contains an inline script or style, or a form control
// without a label.
func (d document) wellFormed(t *testing.T, where string) {
	t.Helper()
	labelled := map[string]bool{}
	d.each(func(n *html.Node) {
		if n.Data == "label" {
			labelled[attr(n, "for")] = true
		}
	})
	headings := 0
	d.each(func(n *html.Node) {
		for _, a := range n.Attr {
			if a.Key == "style" || strings.HasPrefix(a.Key, "on") || (a.Key == "href" || a.Key == "src" || a.Key == "action") && !strings.HasPrefix(a.Val, "/console") && !strings.HasPrefix(a.Val, "#") && !strings.HasPrefix(a.Val, runbookURL) {
				t.Errorf("%s: got <%s %s=%q>, want no inline style or handler, and only links to the console and the runbook", where, n.Data, a.Key, a.Val)
			}
		}
		switch n.Data {
		case "script":
			if attr(n, "src") == "" || n.FirstChild != nil {
				t.Errorf("inline scripts of %s: got one, want none", where)
			}
		case "style", "iframe", "object", "base":
			t.Errorf("%s: got a <%s>, want none", where, n.Data)
		case "h1":
			headings++
		case "input", "select", "textarea":
			if attr(n, "type") != "hidden" && !labelled[attr(n, "id")] {
				t.Errorf("label for %s on %s: got none, want one", attr(n, "name"), where)
			}
		}
	})
	if headings != 1 {
		t.Errorf("h1 headings of %s: got %d, want 1", where, headings)
	}
	h := d.header
	if h.Get("Content-Security-Policy") != contentSecurityPolicy || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "same-origin" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("headers of %s: got %v, want nosniff, same-origin, no-store and the policy %s", where, h, contentSecurityPolicy)
	}
}

func TestPages_RenderFullAndEmpty(t *testing.T) {
	if strings.Contains(contentSecurityPolicy, "unsafe") || !strings.HasPrefix(contentSecurityPolicy, "default-src 'none'; ") {
		t.Errorf("got %q, want default-src none and nothing unsafe", contentSecurityPolicy)
	}
	for _, filled := range []bool{true, false} {
		for _, faultScenarios := range []bool{true, false} {
			r := newRig(t)
			if faultScenarios {
				r = newRig(t, withScenarios)
			}
			if filled {
				fillRig(r)
			}
			for _, path := range paths {
				want := 200
				if !filled && strings.Contains(path, "/jobs/") {
					want = 404
				}
				d := r.get(root + path)
				if d.status != want {
					t.Errorf("status of %q: got %d, want %d: %s", path, d.status, want, d.textByID("main"))
				}
				d.wellFormed(t, path)
			}
		}
	}
}

func TestPages_ReportUnavailableServices(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	r.readErr = errBroken
	for path, want := range map[string]string{
		"": "github: the limiter could not be read; without Redis no calls are made.", "/limiter": "The budget of nexon is unknown", "/queues": "Not available: the read failed.",
		"/lookup?facet=nexon/character&key=a": "The entity can't be read. See the log of this process", "/collection?facet=nexon/character&key=a": "The collection can't be read.", "/dlq": "The dead letters can't be read.",
		"/dlq/nexon/3/120": "The dead letter nexon/3:120 can't be read. See the log of this process", "/dlq/plan?source=nexon&kind=REPLAY&lane=LOW": "The dead letters can't be counted.",
		"/dlq/jobs/0198b2c0-0000-7000-8000-000000000001": "The jobs can't be read.", "/settings": "The settings of nexon can't be read", "/activity": "The audit can't be read.",
	} {
		d := r.get(root + path)
		if !strings.Contains(d.text(), want) || strings.Contains(d.text(), errBroken.Error()) {
			t.Errorf("%q: got %s, want %q in it, and not %q", path, d.text(), want, errBroken.Error())
		}
		d.wellFormed(t, path)
	}
}

func TestPages_AnswerInNamedElements(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	if got := r.get(root + "/lookup?facet=nexon/character&key=3fa8b1c2d4").textByID("why-stale"); got != "It is stale: checked 3 h ago, and fresh for 1 h. It is held: its last request failed 2 min ago (UPSTREAM_5XX: GET /character/item-equipment: "+
		`the upstream answered 503 three times in a row: {"error":{"name":"OPENAPI00009" …), and the next retry is at 12:04.` {
		t.Errorf("why-stale: got %q, want checked 3 h ago, failed 2 min ago with the error, and the next retry at 12:04", got)
	}
	// A rate needs two samples. This request takes the first sample.
	r.get(root)
	r.views["nexon"] = testView("nexon", 3*time.Second)
	for _, path := range []string{"", "/limiter"} {
		const want = "nexon uses 312 of 450 calls a second (HIGH 12, LOW 300); 3.1 M of 20 M calls of the day are left for 8 h 59 min; nothing blocks calls."
		if got := r.get(root + path).textByID("budget"); !strings.Contains(got, want) {
			t.Errorf("got %s, want %q in it", got, want)
		}
	}
	d := r.get(root + "/dlq?source=nexon")
	for _, want := range []string{"12,268 dead letters since yesterday 12:00, with 3 causes", "UPSTREAM_5XX", "11,920", "The upstream failed repeatedly for these entities", "OPENAPI00004: Please input valid parameter"} {
		if got := d.textByID("recent-dead-letters"); !strings.Contains(got, want) {
			t.Errorf("recent-dead-letters: got %s, want %q in it", got, want)
		}
	}
	for _, want := range []string{
		"Source healthy yes The limiter of nexon is flowing, at 100 % of its rate.",
		"Budget left yes LOW has 2.3 M of 20 M calls of the day left until 21:00; the replay needs 12,268 calls at least.",
		"Cause fixed after the failures yes A later fetch has succeeded for 1 of the 20 newest dead letters; the newest fetch was 4 min ago.",
		"Earlier replays ended no A replay of nexon is running, with 4,112 of 12,254 done.",
	} {
		if got := d.textByID("safe-to-replay"); !strings.Contains(got, want) {
			t.Errorf("safe-to-replay: got %q, want %q in it", got, want)
		}
	}
	for _, want := range []string{"The upstream failed repeatedly for these entities", "9 calls, the last with status 503", "STALE, HIGH lane, correlation id 0198b2c0-4711", "nexon/character/3fa8b1c2d4", "OPENAPI00009"} {
		if got := r.get(root + "/dlq/nexon/3/120").text(); !strings.Contains(got, want) {
			t.Errorf("dead letter: got %s, want %q in it", got, want)
		}
	}
}

func TestPages_EscapeHostileContent(t *testing.T) {
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(2)>' {{.}} ` + "\u202eevil\u2066\x00"
	text := evil + strings.Repeat("z", 4096)
	r := newRig(t)
	fillRig(r)
	r.message = text
	r.entity.Status.Error, r.entity.Status.Reason, r.entity.State.Visibility = text, text, text
	r.entity.Payload = []byte(text)
	for i := range r.list {
		r.list[i].Error, r.list[i].Entity.Key, r.list[i].Handled = text, text, text
	}
	r.entity.DeadLetters = r.list[:3]
	for i := range r.groups {
		r.groups[i].Error, r.groups[i].Facet, r.groups[i].Reason, r.groups[i].Fingerprint = text, text, schemas.DeadLetterReason(text), text
	}
	r.shown.Error, r.shown.Value, r.shown.Sample, r.shown.Topic, r.shown.Reason = text, []byte(text), []byte(text), text, schemas.DeadLetterReason(text)
	r.shown.Headers = []schemas.Header{{Key: text, Value: []byte(text)}}
	r.jobs[0].Note, r.jobs[0].CreatedBy, r.jobs[0].Error, r.jobs[0].Filter.Key = text, text, text, text
	r.jobs[0].Refused = map[string]int64{text: 1}
	r.audit = []settings.Entry{{Action: text, Actor: text, Source: text, Note: text, Before: []byte(text), After: []byte(text)}}
	r.dependencies = []Dependency{{text, text}}
	r.planned.Routes[0].Facet, r.planned.Routes[1].Refused = text, text
	view := r.views["nexon"]
	view.Policies[0].Name, view.Processes[0].Process, view.Processes[0].Low.Reason = text, text, limiter.WaitReason(text)
	r.views["nexon"] = view
	r.sched["nexon"].Schedulers.Value[0].Process = text
	all := append(slices.Clone(paths), "/lookup?facet=nexon/character&key="+url.QueryEscape(evil), "/dlq?key="+url.QueryEscape(text), "/dlq?since="+url.QueryEscape(text), "/dlq?after="+url.QueryEscape(text), "/dlq?source="+url.QueryEscape(text), "/dlq/plan?source=nexon&kind="+url.QueryEscape(text))
	for _, path := range all {
		d := r.get(root + path)
		d.wellFormed(t, path)
		if d.status >= 500 {
			t.Errorf("status of %s: got %d, want below 500", path, d.status)
		}
		d.each(func(n *html.Node) {
			if n.Data == "img" || n.Data == "script" && !strings.HasPrefix(attr(n, "src"), root+"/assets/") {
				t.Errorf("%s: got a <%s>, want no image, and only scripts of the console", path, n.Data)
			}
		})
		// Text from outside must be shown with a limited length and without characters that change
		// the direction of text.
		if text := d.text(); strings.ContainsAny(text, "\u202e\u2066\x00") || path != paths[7] && strings.Contains(text, strings.Repeat("z", 3000)) && !strings.HasPrefix(path, "/lookup") && !strings.HasPrefix(path, "/activity") {
			t.Errorf("text of %s: got %q, want limited lengths and no unsafe characters", path, text[:500])
		}
	}
	d := r.open("POST", root+"/lookup", url.Values{"source": {"nexon"}, "facet": {"character"}, "key": {"a"}})
	if text := d.textByID("refresh-result"); d.status != 200 || !strings.HasPrefix(text, `"><script>alert(1)`) || len(text) > 400 {
		t.Errorf("refresh-result: got %d %s, want 200 and the message in at most 400 bytes", d.status, text)
	}
}

func TestPages_RejectInvalidInput(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	for path, want := range map[string]string{
		"/lookup?facet=nowhere/x&key=a": "There is no such source.", "/lookup?facet=nexon/nothing&key=a": "nexon has no such facet.", "/lookup?facet=nexon/character&key=..": "Invalid entity",
		"/dlq?source=nowhere": "unknown source", "/dlq?reason=NONE": `unknown reason of dead letters: "NONE"`, "/dlq?handled=x": "handled is", "/dlq?since=soon": `"soon" is not a time`, "/dlq?attempts=x": "whole number",
		"/dlq?offset=3": "partition:offset", "/dlq?after=x": "start with the first", "/dlq/plan?kind=REPLAY&lane=MIDDLE": "the lane must be HIGH or LOW", "/dlq/plan?lane=LOW": "choose replay or purge",
		"/dlq/plan?kind=PURGE&rate=x": "the rate must be", "/dlq/plan?kind=PURGE&rate=NaN": "the rate must be", "/dlq/plan?kind=PURGE&max=-1": "whole number", "/dlq/plan?kind=PURGE&note=a%0Ab": "one line",
	} {
		d := r.get(root + path)
		if d.status != 400 || !strings.Contains(d.text(), want) {
			t.Errorf("%s: got %d %s, want 400 and a text that contains %q", path, d.status, d.textByID("main"), want)
		}
		d.wellFormed(t, path)
	}
	for _, path := range []string{"/nowhere", "/dlq/nowhere/3/120", "/dlq/nexon/x/120", "/dlq/jobs/none", "/assets/none.js"} {
		if d := r.get(root + path); d.status != 404 || d.byID("rejected") == nil {
			t.Errorf("%s: got %d %s, want 404 and a reason", path, d.status, d.text())
		}
	}
}

func TestDLQ_RejectsUnreadableForm(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	for _, path := range []string{"/dlq?source=nexon&reason=%zz", "/dlq?source=nexon&key=a;facet=b", "/dlq/plan?source=nexon&kind=PURGE&key=%4", "/live?source=%"} {
		if d := r.get(root + path); d.status != 400 || len(r.filters) > 0 {
			t.Errorf("%s: got %d and the filters %+v, want 400 and none", path, d.status, r.filters)
		}
	}
	send := func(kind, body string) int {
		q := httptest.NewRequestWithContext(t.Context(), "POST", root+"/dlq/start", strings.NewReader(body))
		q.Header.Set("Content-Type", kind)
		w := httptest.NewRecorder()
		r.ServeHTTP(w, q)
		return w.Code
	}
	const form, order = "application/x-www-form-urlencoded", "source=nexon&kind=PURGE&until=2026-01-27T12:00:00Z&counted=99999"
	for _, c := range []struct {
		kind, body string
		want       int
	}{
		{form, order + "&key=%zz", 400},
		{form, order + "&note=" + strings.Repeat("x", maxFormBytes), 413},
		{"multipart/form-data; boundary=x", "--x--", 415},
		{"text/plain", order, 415},
		{form + "; charset=utf-8", order, 303},
	} {
		if got := send(c.kind, c.body); got != c.want || len(r.ordered) != map[bool]int{true: 1}[got == 303] {
			t.Errorf("%s %.60q: got %d and the jobs %+v, want %d, and a job only with 303", c.kind, c.body, got, r.ordered, c.want)
		}
	}
}

func TestDLQ_KeepsFilterAcrossPages(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	const filter = "source=nexon&reason=UPSTREAM_5XX&fingerprint=ab&facet=character&key=a%2Fb&since=2026-01-26T10:00&until=2026-01-27T10:00:00.123456Z&attempts=9&offset=3:120&handled=all"
	d := r.get(root + "/dlq?" + filter)
	f := r.filters[0]
	if f.Reason != schemas.Upstream5xx || f.Fingerprint != "ab" || f.Facet != "character" || f.Key != "a/b" || !f.Since.Equal(testNow.Add(-26*time.Hour-30*time.Second)) || f.Until.Nanosecond() != 123456000 ||
		*f.Attempts != 9 || *f.Partition != 3 || *f.Offset != 120 || f.Handled != "" {
		t.Errorf("filter: got %+v, want all values of the query", f)
	}
	next := ""
	d.each(func(n *html.Node) {
		if attr(n, "rel") == "next" {
			next = attr(n, "href")
		}
	})
	r.filters = nil
	if r.get(next); len(r.filters) == 0 || r.filters[0].Key != "a/b" || r.filters[0].Until != f.Until || *r.filters[0].Offset != 120 {
		t.Errorf("filters of %s: got %+v, want the key a/b, until %v and the offset 120", next, r.filters, f.Until)
	}
	r.filters = nil
	if r.get(root + "/dlq"); len(r.filters) == 0 || r.filters[0].Handled != deadletters.Open || r.filters[0].Source != "github" {
		t.Errorf("filters without a query: got %+v, want open dead letters of github", r.filters)
	}
}

// The console must describe each action that an audit entry can have, by the OpenAPI document.
func TestActivity_DescribesEachAction(t *testing.T) {
	_, entry, _ := strings.Cut(string(schemas.OpenAPI), "\n    AuditEntry:\n")
	_, list, _ := strings.Cut(entry, "action: {type: string, enum: [")
	list, _, _ = strings.Cut(list, "]")
	actions := strings.Split(list, ", ")
	if len(actions) < 20 {
		t.Fatalf("actions in the OpenAPI document: got %q, want at least 20", actions)
	}
	for _, action := range actions {
		if actionLabels[action] == "" {
			t.Errorf("action %s: got no description, want one", action)
		}
	}
}

func TestActivity_PagesOlderEntries(t *testing.T) {
	r := newRig(t)
	r.audit = make([]settings.Entry, 450)
	for path, next := range map[string]string{"": "400", "?limit=x": "400", "?limit=-7": "400", "?limit=400": "600", "?limit=600": "", "?limit=999999": ""} {
		d := r.get(root + "/activity" + path)
		if links := d.linksTo(root + "/activity?limit=" + next); d.status != 200 || links != map[bool]int{true: 1}[next != ""] {
			t.Errorf("%q: got %d and %d links, want 200 and 1 link to the limit %q, or none if it is empty", path, d.status, links, next)
		}
	}
}

func TestAssets_CachedByHashOnly(t *testing.T) {
	r := newRig(t)
	for name := range assets {
		by := r.do("GET", assetURL(name), nil)
		plain := r.do("GET", root+"/assets/"+name, nil)
		if by.status != 200 || by.header.Get("Cache-Control") != "public, max-age=31536000, immutable" || plain.header.Get("Cache-Control") != "no-store" || by.header.Get("Content-Type") == "" {
			t.Errorf("asset %s: got %d %v and %v, want 200, a type, immutable, and no-store at its plain path",
				name, by.status, by.header, plain.header)
		}
	}
	for name, want := range map[string]string{
		"vendor/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
		"vendor/uPlot.min.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
		"vendor/LICENSE":           "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
	} {
		sum := sha256.Sum256(assets[name].body)
		if got := hex.EncodeToString(sum[:]); got != want {
			t.Errorf("SHA-256 of %s: got %s, want %s as its authors published it; see vendor/README.txt", name, got, want)
		}
	}
}
