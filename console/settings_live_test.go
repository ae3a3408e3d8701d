package console

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/settings"
)

func TestSettings_ShowSetAndConfigured(t *testing.T) {
	r := newRig(t)
	changed, by := testNow.Add(-50*time.Minute), "key:1 on-call"
	s := r.states["nexon"]
	s.Revision, s.ChangedAt, s.ChangedBy = 7, &changed, &by
	s.Effective.Policies[0].HighReserve = limiter.Reserve{Calls: 60}
	r.states["nexon"] = s
	v := r.views["nexon"]
	v.Revision, v.NewestRevision = 6, 7
	r.views["nexon"] = v
	d := r.get(root + "/settings")
	d.wantRows(t, "force.nexon", "second (1s) | 500 | 450 | 60 (configured 100) | 0", "day | 20,000,000 | derived from the limit | 25/s | 0")
	if got, want := d.itemText("force.nexon"), "Revision 7, by key:1 on-call, 11:10; revision 6 is in force; all processes apply the new one within two seconds."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := d.itemText("set.nexon"); got != "not stopped" {
		t.Errorf("got %q, want %q", got, "not stopped")
	}
	for want, change := range map[string]func(){
		"; but Redis has the newer revision 9, and that revision is in force. The database was restored to an older state.": func() { v.Revision = 9 },
		"; revision 6 is in force in Redis, and no worker is running to apply the new one.":                                 func() { v.Revision, v.Processes = 6, nil },
	} {
		change()
		r.views["nexon"] = v
		if got := r.get(root + "/settings").itemText("force.nexon"); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := d.itemText("force.github"); !strings.HasPrefix(got, "As configured; in force.") {
		t.Errorf("got %q, want the prefix %q", got, "As configured; in force.")
	}
	for _, want := range []string{"changed; configured 100", "configured 450"} {
		if !strings.Contains(d.text(), want) {
			t.Errorf("settings page: got %s, want %q in it", d.text(), want)
		}
	}
	v.State = limiter.StateUnused
	r.views["nexon"] = v
	if got := r.get(root + "/settings").itemText("force.nexon"); !strings.Contains(got, "no process has called the source yet") {
		t.Errorf("got %s, want %q in it", got, "no process has called the source yet")
	}
	r.readErr = errBroken
	d = r.get(root + "/settings")
	if d.itemText("set.nexon") != "not known" || !strings.Contains(d.itemText("force.nexon"), "can't be read") {
		t.Errorf("unreadable settings: got %q, %q, want not known, can't be read", d.itemText("set.nexon"), d.itemText("force.nexon"))
	}
}

func TestSettings_OpenPageShowsStop(t *testing.T) {
	r := newRig(t)
	l := follow(t, r.serve()+"/live?source=nexon")
	if f, ok := l.next(); !ok || f.Items["set.nexon"].Text != "not stopped" {
		t.Fatalf("first event: got %+v, want nexon not stopped", f.Items)
	}
	r.mu.Lock()
	s := r.states["nexon"]
	s.Stopped = true
	r.states["nexon"] = s
	r.mu.Unlock()
	servicetest.WaitFor(t, 30*time.Second, "the stop", func() bool {
		f, ok := l.next()
		return ok && f.Items["set.nexon"] == statusItem{Text: "stopped", Tone: toneBad}
	})
}

func TestSettings_ShowsStopAfterRedirect(t *testing.T) {
	r := newRig(t)
	l := follow(t, r.serve()+"/live")
	if _, ok := l.next(); !ok {
		t.Fatal("there is no viewer")
	}
	r.mu.Lock()
	s := r.states["nexon"]
	s.Stopped = true
	r.states["nexon"] = s
	r.mu.Unlock()
	// The cached sample is older than the emergency stop, but the page must show that nexon is
	// stopped.
	d := r.get(root + "/settings?notice=stopped")
	if got := d.itemText("set.nexon"); got != "stopped" || !strings.Contains(d.text(), "Resume nexon") {
		t.Errorf("settings of nexon: got %q and %s, want stopped and Resume nexon", got, d.text())
	}
	if got := d.itemText("set.github"); got != "not stopped" {
		t.Errorf("got %q, want %q", got, "not stopped")
	}
}

func TestStop_NeedsNeitherNoteNorRevision(t *testing.T) {
	r := newRig(t)
	note := " they\r\n\tcalled \xff\x00" + strings.Repeat("é", admin.MaxNoteLength)
	d := r.open("POST", root+"/settings/nexon/stop", url.Values{"note": {note}, "revision": {"x"}})
	if d.status != 303 || len(r.orders) != 1 {
		t.Fatalf("stop: got %d and %d changes, want 303 and 1: %s", d.status, len(r.orders), d.text())
	}
	o := r.orders[0]
	if !strings.HasPrefix(o.Note, "they called \uFFFD éé") || len([]rune(o.Note)) != admin.MaxNoteLength || admin.CheckNote(o.Note) != nil || o.Revision != nil {
		t.Errorf("stop: got the note %q and the revision %v, want %d valid characters and no revision", o.Note, o.Revision, admin.MaxNoteLength)
	}
}

func TestStop_WorksWithUnreadableSettings(t *testing.T) {
	r := newRig(t)
	r.readErr = errBroken
	d := r.get(root + "/settings")
	if d.status != 200 || !strings.Contains(d.text(), "Stop all calls of nexon") || !strings.Contains(d.text(), "The settings of nexon can't be read") || strings.Contains(d.text(), "Change the settings") {
		t.Errorf("settings page: got %d %s, want 200, only the stop, and that the settings can't be read", d.status, d.text())
	}
	d = r.open("POST", root+"/settings/nexon/stop", url.Values{"note": {"x"}})
	if len(r.orders) != 1 || d.status != 503 || !strings.Contains(d.text(), "nexon was not stopped: its settings can't be written. Calls continue.") {
		t.Errorf("stop: got %d %s and %d changes, want 503, its failure and 1", d.status, d.text(), len(r.orders))
	}
	if d = r.open("POST", root+"/settings/nexon/resume", nil); d.status != 503 || strings.Contains(d.text(), "called on") {
		t.Errorf("resume: got %d %s, want 503 and no success", d.status, d.text())
	}
}

func TestStop_PendingStopIsAProblem(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	v := r.views["nexon"]
	v.State = limiter.StateStopping
	r.views["nexon"] = v
	d := r.get(root)
	const pending = "a stop is set; all processes apply it within two seconds"
	if got := d.textByID("budget"); !strings.Contains(got, pending) {
		t.Errorf("got %s, want %q in it", got, pending)
	}
	if d.itemText("state.nexon") != "stopping" || !strings.Contains(d.text(), "nexon: "+pending) {
		t.Errorf("state of nexon: got %s and %s, want stopping and %q in it", d.itemText("state.nexon"), d.text(), pending)
	}
	if got := r.get(root + "/dlq?source=nexon").textByID("safe-to-replay"); !strings.Contains(got, "no nexon is not called now: "+pending) {
		t.Errorf("got %q, want the blocker %q", got, pending)
	}
	v.Policies = nil
	if got := budgetMessage("nexon", &v, rates{}, testNow); got != "nexon has not been called yet; "+pending+"." {
		t.Errorf("got %q, want %q in it", got, pending)
	}
}

func TestSettings_ShowPrefetchAsConfiguredAndChanged(t *testing.T) {
	r := newRig(t)
	s := r.states["nexon"]
	now := testQuota()
	now.Prefetch.Enabled = false
	facet := now.Prefetch.Facets["character"]
	facet.Hot, facet.Active = hours(1)/2, settings.Active{Params: []string{"ocid"}}
	now.Prefetch.Facets["character"] = facet
	s.Effective = &now
	r.states["nexon"] = s
	text := r.get(root + "/settings").text()
	for _, want := range []string{"Prefetching of character: intervals by tier", "changed; configured 1h", "changed; configured on", "changed; configured {}", "configured 168h"} {
		if !strings.Contains(text, want) {
			t.Errorf("settings page: got %s, want %q in it", text, want)
		}
	}
}

// If a form is rejected, the page must show the form again with the submitted values.
func TestSettings_KeepPrefetchInput(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	d := r.open("POST", root+"/settings/nexon", quotaForm("prefetch", "off", "prefetch.character.hot", "often"))
	if d.status != 400 {
		t.Fatalf("got %d, want 400", d.status)
	}
	found := ""
	d.each(func(n *html.Node) {
		if attr(n, "name") == "prefetch.character.hot" {
			found += attr(n, "value") + " "
		}
	})
	if !strings.Contains(found, "often") {
		t.Errorf("the field's values: got %q, want often among them", found)
	}
}

func TestSchedule_ShowsPrefetchSwitchedOff(t *testing.T) {
	r := newRig(t)
	s := testSchedule()
	s.Disabled = true
	r.sched["nexon"] = s
	d := r.get(root + "/schedule")
	if got := d.itemText("prefetch.nexon"); got != "switched off" {
		t.Errorf("state: got %q, want switched off", got)
	}
	if !strings.Contains(d.text(), "Prefetching of nexon is disabled in the settings") {
		t.Error("the page does not show that prefetching is disabled")
	}
}

func TestSettings_ErrorNamesThePolicy(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	r.actionErr = &settings.InvalidError{Reason: errors.New(`policies[0] "second": target: 450 is above the limit of 250`)}
	if got, want := r.open("POST", root+"/settings/nexon", quotaForm("limit.second", "250")).text(), `Policy "second": target: 450 is above the limit of 250.`; !strings.Contains(got, want) {
		t.Errorf("got %q, want %q in it", got, want)
	}
}
