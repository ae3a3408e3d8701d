package console

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/store/deadletters"
)

// quotaForm returns the settings form of the source nexon with the current values. "changes" are
// pairs of a field name and a new value.
func quotaForm(changes ...string) url.Values {
	form := url.Values{
		"revision": {"7"}, "note": {"tonight"}, "limit.second": {"500"}, "target.second": {"400"}, "high.second": {"100"}, "low.second": {"0"},
		"limit.day": {"20000000"}, "target.day": {"0"}, "high.day": {"25/s"}, "low.day": {"0"},
	}
	for i := 0; i < len(changes); i += 2 {
		form.Set(changes[i], changes[i+1])
	}
	return form
}

func TestSettings_PatchHoldsChangedFieldsOnly(t *testing.T) {
	for _, c := range []struct {
		form   url.Values
		status int
		patch  string // expected patch of the settings; empty: no change
		says   string
	}{
		{quotaForm(), 303, "", "notice=unchanged"},
		{quotaForm("target.second", "300"), 303, `{"policies":{"second":{"target":300}}}`, "notice=changed"},
		{quotaForm("target.second", "450"), 303, `{"policies":{"second":{"target":null}}}`, "notice=changed"},
		{quotaForm("target.second", ""), 303, `{"policies":{"second":{"target":null}}}`, "notice=changed"},
		{quotaForm("limit.second", " 480 ", "low.second", "5", "high.day", "90/m"), 303, `{"policies":{"day":{"highReserve":"1.5/s"},"second":{"limit":480,"lowReserve":5}}}`, "notice=changed"},
		{quotaForm("high.day", "25", "high.second", ""), 303, `{"policies":{"day":{"highReserve":25},"second":{"highReserve":null}}}`, "notice=changed"},
		{quotaForm("reset", "yes"), 303, `{"policies":null,"prefetch":null}`, "notice=changed"},
		{quotaForm("prefetch", "off"), 303, `{"prefetch":{"enabled":false}}`, "notice=changed"},
		{quotaForm("prefetch", "on", "prefetch.character.hot", "1h"), 303, "", "notice=unchanged"},
		{quotaForm("prefetch.character.hot", " 30m ", "prefetch.character.maxInterval", "72h"), 303, `{"prefetch":{"facets":{"character":{"hot":"30m","maxInterval":"72h"}}}}`, "notice=changed"},
		{quotaForm("prefetch.character.hot", ""), 303, `{"prefetch":{"facets":{"character":{"hot":null}}}}`, "notice=changed"},
		{quotaForm("prefetch.character.active", `{"params":["p"]}`, "target.second", "300"), 303, `{"policies":{"second":{"target":300}},"prefetch":{"facets":{"character":{"active":{"params":["p"]}}}}}`, "notice=changed"},
		{quotaForm("prefetch", "maybe"), 400, "", "must be on or off"},
		{quotaForm("prefetch.character.cold", "often"), 400, "", `Tier cold, every: "often" must be a duration`},
		{quotaForm("prefetch.character.active", "all"), 400, "", "must be an object"},
		{quotaForm("target.second", "many"), 400, "", `Target: "many" must be a whole number.`},
		{quotaForm("limit.second", "-5"), 400, "", "whole number"},
		{quotaForm("high.second", "x"), 400, "", "Reserved for HIGH:"},
		{quotaForm("revision", "6", "target.second", "300"), 412, "", "because another change was made"},
		{quotaForm("revision", ""), 400, "", "The revision is missing"},
		{quotaForm("revision", "x"), 400, "", "The revision is not a number"},
		{quotaForm("note", "a\nb", "target.second", "300"), 400, "", "one line"},
	} {
		r := newRig(t)
		fillRig(r)
		d := r.open("POST", root+"/settings/nexon", c.form)
		if d.status != c.status || !strings.Contains(d.header.Get("Location")+d.textByID("main"), c.says) {
			t.Errorf("settings %v: got %d %s %.300s, want %d and a text that contains %q",
				c.form, d.status, d.header.Get("Location"), d.textByID("main"), c.status, c.says)
		}
		if (c.patch != "") != (len(r.patches) == 1) {
			t.Errorf("patches of %v: got %+v, want %q", c.form, r.patches, c.patch)
			continue
		}
		if c.patch != "" {
			text, err := json.Marshal(r.patches[0])
			o := r.orders[0]
			if err != nil || string(text) != c.patch || o.Source != "nexon" || *o.Revision != 7 || o.Note != "tonight" || o.Actor != "unauthenticated@192.0.2.7" {
				t.Errorf("change: got %s, %+v, %v, want %s of nexon with the revision 7 and the note tonight", text, o, err, c.patch)
			}
		}
	}
}

func TestSettings_RejectedFormKeepsItsInput(t *testing.T) {
	for want, err := range map[int]error{
		422: &settings.InvalidError{Reason: errors.New("the target 900 is above the limit 500")}, 412: &settings.ConflictError{Source: "nexon", Expected: 7, Actual: 8},
		404: &settings.UnknownSourceError{Source: "nexon"}, 409: settings.ErrBusy, 503: errBroken,
	} {
		r := newRig(t)
		fillRig(r)
		r.actionErr = err
		d := r.open("POST", root+"/settings/nexon", quotaForm("target.second", "900"))
		if d.status != want {
			t.Errorf("status after %v: got %d, want %d", err, d.status, want)
		}
		if want == 503 {
			continue
		}
		if field := d.byID("nexon-target.second"); attr(field, "value") != "900" || attr(d.byID("github-target.second"), "value") != "450" || attr(d.byID("note-nexon"), "value") != "tonight" {
			t.Errorf("form after %v: got the target %q, want 900 for nexon, 450 for github, and the note tonight",
				err, attr(field, "value"))
		}
		if text := strings.ToLower(d.text()); !strings.Contains(text, strings.ToLower(err.Error())) {
			t.Errorf("page after %v: got %s, want the error in it", err, text)
		}
		if d := r.open("POST", root+"/settings/nexon/stop", url.Values{"note": {"x"}}); d.status != want {
			t.Errorf("status of a stop after %v: got %d, want %d", err, d.status, want)
		}
	}
	r := newRig(t)
	s := r.states["nexon"]
	s.Effective, s.Problem = nil, "there is no policy hour"
	r.states["nexon"] = s
	if d := r.get(root + "/settings"); !strings.Contains(d.text(), "The changed settings no longer fit the configuration: there is no policy hour.") {
		t.Errorf("got %s, want %q in it", d.text(), "The changed settings no longer fit the configuration: there is no policy hour.")
	}
}

func TestSettings_StopsAndResumesWithNote(t *testing.T) {
	r := newRig(t)
	for i, act := range []string{"stop", "resume"} {
		d := r.open("POST", root+"/settings/nexon/"+act, url.Values{"note": {" they called "}})
		if o := r.orders[i]; d.status != 303 || o.Source != "nexon" || o.Note != "they called" || o.Actor != "unauthenticated@192.0.2.7" || o.Revision != nil {
			t.Errorf("%s: got %d and %+v, want 303, and nexon with the note but no revision", act, d.status, o)
		}
		if d := r.get(d.header.Get("Location")); !strings.Contains(d.text(), map[string]string{"stop": "The emergency stop is set. All processes stop calling the source within two seconds", "resume": "The emergency stop is lifted"}[act]) {
			t.Errorf("page after the action %s: got %s, want its notice in it", act, d.text())
		}
	}
	if d := r.open("POST", root+"/settings/nowhere/stop", nil); d.status != 404 || len(r.orders) != 2 {
		t.Errorf("got status %d, want 404: %s", d.status, d.text())
	}
	if d := r.open("POST", root+"/settings/nowhere", quotaForm()); d.status != 404 {
		t.Errorf("got status %d, want 404", d.status)
	}
	s := r.states["nexon"]
	s.Stopped = true
	r.states["nexon"] = s
	if d := r.get(root + "/settings"); !strings.Contains(d.text(), "Resume nexon") || strings.Contains(d.text(), "Stop all calls of nexon") {
		t.Error("the page has no button to resume a stopped source")
	}
	if d := r.get(root + "/settings?notice=<b>"); strings.Contains(d.text(), "<b>") {
		t.Error("the page shows text from its URL")
	}
}

func TestPlan_StartsExactlyWhatWasCounted(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	d := r.get(root + "/dlq/plan?source=nexon&reason=UPSTREAM_5XX&handled=all&kind=REPLAY&lane=HIGH&rate=50&max=100&note=a+note")
	if got := d.textByID("plan-count"); d.status != 200 || got != "12,254" || len(r.ordered) > 0 {
		t.Fatalf("got status %d and count %s, want 200 and 12,254", d.status, got)
	}
	if !strings.Contains(d.text(), "At that rate the job takes 4 min at least.") || !strings.Contains(d.text(), "Stays open. These dead letters have reached the maximum number of replays.") {
		t.Errorf("plan: got %s, want the duration and the refusals in it", d.text())
	}
	form := d.formOf(root + "/dlq/start")
	if got := form.Get("until"); got != testNow.Format(time.RFC3339) || form.Get("handled") != "open" {
		t.Errorf("plan form: got %v, want open until %s", form, testNow.Format(time.RFC3339))
	}
	answer := r.open("POST", root+"/dlq/start", form)
	if answer.status != 303 || answer.header.Get("Location") != "/console/dlq/jobs/job-1?notice=started" || len(r.ordered) != 1 {
		t.Fatalf("got status %d and headers %v, want a redirect to the job", answer.status, answer.header)
	}
	o := r.ordered[0]
	if o.Kind != deadletters.ReplayJob || o.Lane != schemas.High || o.Rate != 50 || o.Max != 100 || o.Note != "a note" || o.Filter.Reason != schemas.Upstream5xx || !o.Filter.Until.Equal(testNow) ||
		o.Filter.Handled != deadletters.Open || o.Filter.Source != "nexon" || r.actors[0] != "unauthenticated@192.0.2.7" {
		t.Errorf("job: got %+v by %v, want the job of the form by unauthenticated@192.0.2.7", o, r.actors)
	}
	shown := form.Get("counted")
	for _, counted := range []string{"", "many", "12253"} {
		form.Set("counted", counted)
		if d := r.open("POST", root+"/dlq/start", form); d.status != map[bool]int{true: 409, false: 400}[counted == "12253"] || len(r.ordered) != 1 {
			t.Errorf("start with the count %q: got %d and %d jobs, want 409 for 12253, else 400, and 1 job: %s",
				counted, d.status, len(r.ordered), d.text())
		}
	}
	form.Set("counted", shown)
	form.Del("until")
	if d := r.open("POST", root+"/dlq/start", form); d.status != 400 || len(r.ordered) != 1 || !strings.Contains(d.text(), "make a dry run first") {
		t.Errorf("start without a dry run: got %d and %d jobs, want 400 and 1: %s", d.status, len(r.ordered), d.text())
	}
	purge := r.get(root + "/dlq/plan?source=nexon&kind=PURGE&until=2026-01-27T10:00:00Z")
	if form := purge.formOf(root + "/dlq/start"); form.Get("until") != "2026-01-27T10:00:00Z" || form.Get("kind") != "PURGE" || purge.byID("safe-to-replay") != nil {
		t.Errorf("purge form: got %v, want PURGE until 2026-01-27T10:00:00Z, and no checks", form)
	}
	r.planned = dlq.Plan{Total: 2, IfReadable: 2, Routes: []dlq.Route{{Reason: schemas.UnknownMajor, Count: 2, Topic: "nexon.update-priority-low", IfReadable: true}}}
	old := r.get(root + "/dlq/plan?source=nexon&kind=REPLAY&lane=LOW")
	if form := old.formOf(root + "/dlq/start"); form.Get("kind") != "REPLAY" || !strings.Contains(old.text(), "low, if this release can read them") {
		t.Errorf("plan of UNKNOWN_MAJOR: got %v and %s, want REPLAY and the condition of its route", form, old.text())
	}
	form = old.formOf(root + "/dlq/start")
	r.planned.Total, r.planned.IfReadable = 3, 3
	if d := r.open("POST", root+"/dlq/start", form); d.status != 409 || form.Get("counted") != "2" {
		t.Errorf("start of a changed plan: got %d and the count %s, want 409 and 2", d.status, form.Get("counted"))
	}
	r.planned = dlq.Plan{}
	if d := r.get(root + "/dlq/plan?source=nexon&kind=REPLAY&lane=LOW"); d.offeredActions() != 0 {
		t.Error("the page offers a replay of no dead letter")
	}
	none := r.get(root + "/dlq/plan?source=nexon&kind=PURGE")
	if form := none.formOf(root + "/dlq/start"); form.Get("counted") != "0" || !strings.Contains(none.text(), "Delete handled records") {
		t.Error("the page has no button to delete handled records")
	}
}

func TestJob_StopsAndResumes(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	id := r.jobs[0].ID
	for i, act := range []string{"stop", "resume"} {
		d := r.open("POST", root+"/dlq/jobs/"+id+"/"+act, nil)
		if want := []deadletters.JobState{deadletters.JobStopped, deadletters.JobRunning}[i]; d.status != 303 || r.switched[i] != want {
			t.Errorf("%s: got %d and the states %v, want 303 and %v", act, d.status, r.switched, want)
		}
		if d := r.get(d.header.Get("Location")); d.byID("job-progress") == nil || d.textByID("job-progress") != "4,112 of 12,254 replayed, 16 stay open" {
			t.Errorf("job-progress: got %s, want 4,112 of 12,254 replayed, 16 stay open", d.text())
		}
	}
	r.readErr = deadletters.ErrJobNotFound
	if d := r.open("POST", root+"/dlq/jobs/"+id+"/stop", nil); d.status != 404 {
		t.Errorf("got status %d, want 404", d.status)
	}
	r.readErr = errBroken
	if d := r.open("POST", root+"/dlq/jobs/"+id+"/stop", nil); d.status != 503 {
		t.Errorf("got status %d, want 503", d.status)
	}
}

func TestRefresh_EnqueuesAndReports(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	r.message = "It is asked for in the HIGH lane."
	form := r.get(root + "/lookup?facet=nexon/character&key=a%2Fb+%26%23x").formOf(root + "/lookup")
	d := r.open("POST", root+"/lookup", form)
	if want := (schemas.Entity{Source: "nexon", Facet: "character", Key: "a/b &#x"}); d.status != 200 || len(r.refreshed) != 1 || r.refreshed[0] != want || d.textByID("refresh-result") != r.message {
		t.Errorf("refresh: got %d %+v %q, want 200 %+v %q", d.status, r.refreshed, d.textByID("refresh-result"), want, r.message)
	}
	r.keyError = errors.New("it does not match")
	if d := r.open("POST", root+"/lookup", form); d.status != 400 || len(r.refreshed) != 1 || !strings.Contains(d.text(), "Invalid entity: it does not match.") {
		t.Errorf("refresh of an invalid key: got %d and %d refreshes, want 400 and 1: %s", d.status, len(r.refreshed), d.text())
	}
	r.keyError, r.readErr = nil, errBroken
	if d := r.open("POST", root+"/lookup", form); d.status != 503 {
		t.Errorf("got status %d, want 503", d.status)
	}
}

func TestFaultScenario_IsSetAndShown(t *testing.T) {
	r := newRig(t, withScenarios)
	if d := r.open("POST", root+"/fault-scenario", url.Values{"scenario": {"storm"}}); d.status != 303 || r.scenario != "storm" {
		t.Errorf("got status %d and scenario %q, want 303 and storm", d.status, r.scenario)
	}
	if d := r.get(root); !strings.Contains(d.text(), "Current scenario: 429 storm") {
		t.Errorf("got %s, want %q in it", d.text(), "Current scenario: 429 storm")
	}
	if d := r.open("POST", root+"/fault-scenario", url.Values{"scenario": {"snow"}}); d.status != 400 || r.scenario != "storm" {
		t.Errorf("got status %d and scenario %q, want 400 and storm", d.status, r.scenario)
	}
	if d := newRig(t).open("POST", root+"/fault-scenario", url.Values{"scenario": {"storm"}}); d.status != 404 {
		t.Errorf("got status %d, want 404", d.status)
	}
	r.readErr = errBroken
	if d := r.open("POST", root+"/fault-scenario", url.Values{"scenario": {"fair"}}); d.status != 503 {
		t.Errorf("got status %d, want 503", d.status)
	}
}

func TestOverview_ListsWorstProblemFirst(t *testing.T) {
	r := newRig(t)
	if d := r.get(root); d.textByID("problems") != "Nothing is wrong." {
		t.Error(d.textByID("problems"))
	}
	fillRig(r)
	r.views["github"] = backingOffView(0)
	r.lanes["nexon"] = []LaneLag{{Lane: schemas.Low}}
	r = withNewConsole(r)
	d := r.get(root)
	if got := d.textByID("problems"); got != "8 problems need attention." {
		t.Errorf("got %q, want %q", got, "8 problems need attention.")
	}
	text, last := d.text(), -1
	for _, want := range []string{
		"Kafka does not answer: dial tcp", "github: the lag of its LOW lane is 26 min, with 41,207 records.", "github: backing off until 12:01:12, because the upstream rejected calls.",
		"github: 1 scope has an open circuit breaker: credential of token-c until 12:02:00.", "github: 1 scope has no calls left: core of token-b until 12:12.", "nexon: the lag of its LOW lane is unknown.", "nexon: 12,268 dead letters of the last 24 h are open.",
	} {
		if at := strings.Index(text, want); at <= last {
			t.Errorf("position of %q: got %d, want more than %d", want, at, last)
		} else {
			last = at
		}
	}
	for state, tone := range map[limiter.State]string{
		limiter.StateFlowing: "ok", limiter.StateUnused: "", limiter.StateStopped: "bad", limiter.StateBreakerOpen: "bad", limiter.StateBackingOff: "warn", limiter.StateRamping: "warn",
	} {
		if got := limiterState(&limiter.View{State: state, Processes: make([]limiter.ProcessView, 1)}); got.Tone != tone {
			t.Errorf("tone of %s: got %s, want %s", state, got.Tone, tone)
		}
	}
}
