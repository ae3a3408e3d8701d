package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/schemas/openapitest"
	"github.com/freshet/freshet/settings"
)

// unaudited lists the routes that TestAudit_RecordsEveryAction does not call, each with the reason: the
// route needs no audit entry, or another test checks its entry.
var unaudited = map[string]string{
	"POST /admin/v1/runs/{id}/retry":   "TestAdmin_CancelAndRetryAreAudited of package runs/api",
	"POST /console/runs/{id}/retry":    "calls the function of the admin API",
	"POST /admin/v1/dlq/{source}/plan": "a dry run",
	"POST /admin/v1/maintenance/reap":  "ends the holds that have expired, as every query service does each minute; the ledger has an entry for each",
	"POST /console/login":              "sets the cookie of one browser",
	"POST /console/logout":             "deletes the cookie of one browser",
}

// auditedRoutes returns the routes that change state. It reads the admin API's routes from the
// OpenAPI document, and the console's routes from the console's source code.
func auditedRoutes(t *testing.T) (routes []string) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(schemas.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			if strings.HasPrefix(path, "/admin/") && method != http.MethodGet {
				routes = append(routes, method+" "+path)
			}
		}
	}
	source, err := os.ReadFile("../../console/console.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`"(POST|PUT|PATCH|DELETE) " ?\+ ?root ?\+ ?"([^"]*)"`).FindAllSubmatch(source, -1) {
		routes = append(routes, string(found[1])+" /console"+string(found[2]))
	}
	routes = slices.DeleteFunc(routes, func(route string) bool { return unaudited[route] != "" })
	slices.Sort(routes)
	return routes
}

// send sends a request. If body is a url.Values, the request body is a form; otherwise it is JSON.
// send follows no redirects.
func (d *dev) send(method, path string, body any) []byte {
	d.Helper()
	var text []byte
	kind := "application/json"
	switch body := body.(type) {
	case url.Values:
		text, kind = []byte(body.Encode()), "application/x-www-form-urlencoded"
	case string:
		text = []byte(body)
	}
	req, err := http.NewRequestWithContext(d.Context(), method, d.api+path, bytes.NewReader(text))
	if err != nil {
		d.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	resp, err := d.client.Transport.RoundTrip(req)
	if err != nil {
		d.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 400 {
		d.Fatalf("%s %s: got %d %s, %v, want a status below 400", method, path, resp.StatusCode, answer, err)
	}
	return answer
}

func (d *dev) audit() (entries []settings.Entry) {
	d.Helper()
	var all struct {
		Entries []settings.Entry `json:"entries"`
	}
	const path = "/admin/v1/audit?limit=1000"
	answer := d.send(http.MethodGet, path, nil)
	req, err := http.NewRequestWithContext(d.Context(), http.MethodGet, d.api+path, http.NoBody)
	if err != nil {
		d.Fatal(err)
	}
	openapitest.Check(d, openapitest.Exchange{Request: req, Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Response: string(answer)})
	if err := json.Unmarshal(answer, &all); err != nil {
		d.Fatal(err)
	}
	return all.Entries
}

// idOf returns the value of the member "id" in a JSON object. If the value of the member with the
// name `member` is an object, idOf returns the "id" of that inner object instead.
func (d *dev) idOf(text []byte, member string) string {
	d.Helper()
	object := map[string]any{}
	if err := json.Unmarshal(text, &object); err != nil {
		d.Fatalf("%s: %v", text, err)
	}
	if inner, ok := object[member].(map[string]any); ok {
		object = inner
	}
	return fmt.Sprint(object["id"])
}

// hasWords reports whether an audit entry has an actor, the action words[0], and all other words
// in its source, its value after the change, or its note.
func hasWords(e settings.Entry, words []string) bool {
	text := fmt.Sprintf("%s %s %s %s", e.Action, e.Source, e.After, e.Note)
	return e.Actor != "" && e.Action == words[0] &&
		!slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

// Each route that changes state must write an audit entry with the actor, the action and the
// changed object. The test calls each of these routes once.
func TestAudit_RecordsEveryAction(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "freshet.yaml")
	if err := os.WriteFile(config, []byte("credits: {plans: {default: {amount: 100, every: 24h}}}\nsources: {nexon: {preset: nexon, runs: {all: {steps: {character: {}}}}}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDev(t, "--no-demo", "--simulate", "--config", config)
	d.waitForDeadLetters("audited", 3)
	var job, key, grant string
	const slow = `{"kind":"REPLAY","lane":"LOW","rate":0.02}`
	entities := func(members string) string { return `{"source":"nexon","facet":"character",` + members + `}` }
	inTheFuture := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	startRun := func() (id string) {
		body, _ := json.Marshal(map[string][]string{"keys": characters("run", 1000)})
		return d.idOf(d.send("POST", "/v1/runs/nexon/all", string(body)), "")
	}
	revision := func() string { return fmt.Sprint(d.state().Revision) }
	acts := []struct {
		route string
		call  func()
		words []string // the audit entry must have the action words[0], and contain the other words, which name the changed object
	}{
		{"PATCH /admin/v1/settings/{source}", func() {
			d.send("PATCH", "/admin/v1/settings/nexon", `{"policies":{"second":{"target":400}}}`)
		}, []string{"set", "nexon", `"target":400`}},
		{"POST /admin/v1/sources/{source}/stop", func() { d.send("POST", "/admin/v1/sources/nexon/stop", nil) }, []string{"stop", "nexon"}},
		{"POST /admin/v1/sources/{source}/resume", func() { d.send("POST", "/admin/v1/sources/nexon/resume", nil) }, []string{"resume", "nexon"}},
		{"POST /admin/v1/keys", func() {
			key = d.idOf(d.send("POST", "/admin/v1/keys", `{"name":"audited","scopes":["read"]}`), "key")
		}, []string{"key-create", `"audited"`}},
		{"POST /admin/v1/credits/grants", func() {
			grant = d.idOf(d.send("POST", "/admin/v1/credits/grants", `{"client":"key:audited","amount":7,"note":"why"}`), "")
		}, []string{"credits-grant", `"amount":7`}},
		{"DELETE /admin/v1/credits/grants/{id}", func() { d.send("DELETE", "/admin/v1/credits/grants/"+grant, nil) }, []string{"credits-void"}},
		{"POST /admin/v1/maintenance/run", func() { d.send("POST", "/admin/v1/maintenance/run", nil) }, []string{"maintenance-run", `"creditEntries"`}},
		{"DELETE /admin/v1/keys/{id}", func() { d.send("DELETE", "/admin/v1/keys/"+key, nil) }, []string{"key-revoke", `"audited"`}},
		{
			"POST /admin/v1/entities", func() { d.send("POST", "/admin/v1/entities", entities(`"entities":[{"key":"one"},{"key":"two"}]`)) },
			[]string{"entities-register", "nexon", `"entities":2`, `"one"`},
		},
		{
			"POST /admin/v1/entities/disable", func() { d.send("POST", "/admin/v1/entities/disable", entities(`"prefix":"t"`)) },
			[]string{"entities-disable", "nexon", `"entities":1`, `"prefix":"t"`},
		},
		{
			"POST /admin/v1/entities/enable", func() { d.send("POST", "/admin/v1/entities/enable", entities(`"keys":["two"]`)) },
			[]string{"entities-enable", "nexon", `"entities":1`, `"two"`},
		},
		{
			"POST /admin/v1/entities/pin", func() { d.send("POST", "/admin/v1/entities/pin", entities(`"keys":["two"],"tier":"hot"`)) },
			[]string{"entities-pin", "nexon", `"two"`, `"hot"`},
		},
		{
			"POST /admin/v1/entities/unpin", func() { d.send("POST", "/admin/v1/entities/unpin", entities(`"keys":["two"]`)) },
			[]string{"entities-unpin", "nexon", `"two"`},
		},
		{
			"DELETE /admin/v1/snapshots/{source}/{facet}/{key}", func() { d.send("DELETE", "/admin/v1/snapshots/nexon/character/one", nil) },
			[]string{"snapshot-delete", "nexon", `"one"`},
		},
		{
			"POST /admin/v1/dlq/{source}/jobs", func() { job = d.idOf(d.send("POST", "/admin/v1/dlq/nexon/jobs", slow), "") },
			[]string{"replay-started", "nexon", `"total":3`},
		},
		{"POST /admin/v1/dlq-jobs/{id}/stop", func() { d.send("POST", "/admin/v1/dlq-jobs/"+job+"/stop", nil) }, []string{"replay-stopped", "nexon"}},
		{"POST /admin/v1/dlq-jobs/{id}/resume", func() { d.send("POST", "/admin/v1/dlq-jobs/"+job+"/resume", nil) }, []string{"replay-resumed", "nexon"}},
		{"POST /console/dlq/jobs/{id}/stop", func() { d.send("POST", "/console/dlq/jobs/"+job+"/stop", url.Values{}) }, []string{"replay-stopped", "nexon"}},
		{"POST /console/dlq/jobs/{id}/resume", func() { d.send("POST", "/console/dlq/jobs/"+job+"/resume", url.Values{}) }, []string{"replay-resumed", "nexon"}},
		{"POST /console/dlq/start", func() {
			d.send("POST", "/console/dlq/start", url.Values{"source": {"nexon"}, "kind": {"PURGE"}, "rate": {"0.02"}, "until": {inTheFuture}, "counted": {"3"}})
		}, []string{"purge-started", "nexon"}},
		{"POST /console/settings/{source}", func() {
			d.send("POST", "/console/settings/nexon", url.Values{"revision": {revision()}, "target.second": {"410"}})
		}, []string{"set", "nexon", `"target":410`}},
		{"POST /console/settings/{source}/stop", func() { d.send("POST", "/console/settings/nexon/stop", url.Values{"note": {"why"}}) }, []string{"stop", "nexon", "why"}},
		{"POST /console/settings/{source}/resume", func() { d.send("POST", "/console/settings/nexon/resume", url.Values{}) }, []string{"resume", "nexon"}},
		{"POST /console/lookup", func() {
			d.send("POST", "/console/lookup", url.Values{"source": {"nexon"}, "facet": {"character"}, "key": {"three"}})
		}, []string{"refresh", "nexon", `"three"`, `"entities":1`}},
		{"POST /console/refresh", func() {
			d.send("POST", "/console/refresh", url.Values{"facet": {"nexon/character"}, "keys": {"four\nfive"}})
		}, []string{"refresh", "nexon", `"four"`, `"entities":2`}},
		{"POST /admin/v1/runs/{id}/cancel", func() { d.send("POST", "/admin/v1/runs/"+startRun()+"/cancel", nil) }, []string{"run-cancel", "nexon"}},
		{"POST /console/runs/{id}/cancel", func() { d.send("POST", "/console/runs/"+startRun()+"/cancel", url.Values{}) }, []string{"run-cancel", "nexon"}},
		{"POST /console/fault-scenario", func() { d.send("POST", "/console/fault-scenario", url.Values{"scenario": {"slow"}}) }, []string{"fault-scenario", `"slow"`}},
	}
	var walked []string
	seen := map[int64]bool{}
	for _, act := range acts {
		for _, e := range d.audit() {
			seen[e.ID] = true
		}
		act.call()
		walked = append(walked, act.route)
		fresh := slices.DeleteFunc(d.audit(), func(e settings.Entry) bool { return seen[e.ID] })
		if !slices.ContainsFunc(fresh, func(e settings.Entry) bool { return hasWords(e, act.words) }) {
			t.Errorf("%s: got the new audit entries %+v, want one with an actor and %q", act.route, fresh, act.words)
		}
	}
	slices.Sort(walked)
	if routes := auditedRoutes(t); !slices.Equal(walked, routes) {
		t.Errorf("routes that change something:\ngot  %q\nwant %q; call each route here, or say in unaudited why it needs no entry", walked, routes)
	}
}
