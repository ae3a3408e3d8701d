package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/simulator"
)

func (d *dev) stats() (s simulator.Stats) {
	d.Helper()
	if _, text := d.do(http.MethodGet, d.upstream+"/_stats"); json.Unmarshal(text, &s) != nil {
		d.Fatalf("statistics of the simulator: got %s, want JSON", text)
	}
	return s
}

// view returns the decoded JSON output of `freshet limiter`.
func (d *dev) view() (v limiter.View) {
	d.Helper()
	if err := json.Unmarshal([]byte(d.mustRun(0, nil, "limiter", "-o", "jsonl")), &v); err != nil {
		d.Fatal(err)
	}
	return v
}

// obeyed is the time within which every limiter must apply a change of settings. slack is the
// additional time for a slow test machine.
const (
	obeyed = 2 * time.Second
	slack  = 5 * time.Second
)

// inForce waits until the workers have written the limits of this settings revision to Redis.
func (d *dev) inForce(revision int64, limit, target int) {
	d.Helper()
	servicetest.WaitFor(d, obeyed+slack, fmt.Sprintf("revision %d", revision), func() bool {
		v := d.view()
		return v.Revision == revision && v.Policies[0].Name == "second" && v.Policies[0].Limit == limit && v.Policies[0].Target == target
	})
}

func TestSource_ChangeStopResumeLosesNothing(t *testing.T) {
	d := startDev(t, "--no-demo", "--simulate", "--config", smallDocument(t))
	d.until("a fresh answer", "first", isFresh)
	d.mustRun(0, nil, "settings", "set", "second.limit=110", "second.target=20", "second.highReserve=5")
	d.inForce(1, 110, 20)

	keys := characters("k", 120) // 120 calls take six seconds, so some requests still wait when the source is stopped
	queued := func(r read) bool { return isFresh(r) || (r.status == 202 && r.body.Refresh.Queued) }
	for _, key := range keys {
		d.until("a promise", key, queued)
	}
	servicetest.WaitFor(t, eventTimeout, "the first calls", func() bool { return d.stats().Arrivals >= 20 })
	d.mustRun(0, []string{"nexon is stopped (revision 2)"}, "stop", "--yes", "--note", "try it")
	servicetest.WaitFor(t, obeyed+slack, "the state stopped", func() bool { v := d.view(); return v.State == limiter.StateStopped && v.Revision == 2 })
	<-time.After(obeyed)
	before := d.stats()
	if before.Arrivals >= len(keys) {
		t.Fatalf("calls before the stop: got %d, want less than %d", before.Arrivals, len(keys))
	}

	// While the source is stopped, reads are served and refreshes are queued.
	if r := d.read("first"); !isFresh(r) {
		t.Errorf("known key while stopped: got %d %s, want a fresh answer", r.status, r.body.Freshness)
	}
	if r := d.until("a promise while stopped", "another", queued); r.status != 202 {
		t.Errorf("new key while stopped: got %+v, want status 202", r)
	}
	d.until("the reason STOPPED", "another", func(r read) bool { return r.body.Refresh.Reason == "STOPPED" })
	servicetest.WaitFor(t, eventTimeout, "the report of the waiting calls", func() bool {
		v := d.view()
		return len(v.Processes) == 1 && v.Processes[0].High.Waiting > 10 && v.Processes[0].High.Reason == limiter.ReasonStopped
	})
	for _, words := range []string{"nexon: stopped; stopped by an operator, until it is resumed; settings at revision 2", "second  110 in 1s", "20,000,000 a day", "HIGH", "stopped"} {
		d.mustRun(0, []string{words}, "limiter")
	}
	<-time.After(time.Second)
	if after := d.stats(); after.Arrivals != before.Arrivals {
		t.Errorf("calls later than two seconds after the stop: got %d, want 0", after.Arrivals-before.Arrivals)
	}

	// A rejected change must leave the revision and the limits unchanged.
	d.mustRun(1, []string{"target: 600 is above the limit of 110"}, "settings", "set", "second.target=600")
	if v := d.view(); v.Revision != 2 || v.NewestRevision != 2 || v.Policies[0].Limit != 110 {
		t.Errorf("after a rejected change: got %+v, want revision 2, newest revision 2, limit 110", v)
	}

	d.mustRun(0, []string{"nexon is running (revision 3)"}, "resume")
	d.inForce(3, 110, 20)
	servicetest.WaitFor(t, obeyed+slack, "a call", func() bool { return d.stats().Arrivals > before.Arrivals })
	if s := d.stats(); s.MaxInSlidingSecond > 110 {
		t.Errorf("calls in a sliding second: got %d, want at most 110", s.MaxInSlidingSecond)
	}
	d.mustRun(0, nil, "settings", "set", "second.limit=", "second.target=440", "second.highReserve=")
	d.inForce(4, 500, 440)
	for _, key := range append(keys, "another") {
		d.until("a fresh answer", key, isFresh)
	}
	// The upstream gets one call for each entity. On a slow machine a request may wait until its
	// lock has expired, and is enqueued a second time. So up to eight more calls are allowed.
	all := len(keys) + 2
	if s := d.stats(); s.Arrivals < all || s.Arrivals > all+8 || s.DistinctKeys != all || s.ByStatus[429] != 0 || s.Refused != 0 {
		t.Errorf("got %d calls for %d entities, by status %v, %d refused; want %d to %d calls for %d entities, none 429, none refused",
			s.Arrivals, s.DistinctKeys, s.ByStatus, s.Refused, all, all+8, all)
	}

	var entries []settings.Entry
	if err := json.Unmarshal([]byte(d.mustRun(0, nil, "settings", "audit", "-o", "json")), &entries); err != nil {
		t.Fatal(err)
	}
	var actions []string
	for _, e := range entries {
		actions = append(actions, e.Action)
	}
	if strings.Join(actions, " ") != "set resume stop set" || entries[2].Note != "try it" || !strings.Contains(string(entries[0].After), "440") {
		t.Errorf("audit: got %v, entries %+v, newest %s; want set resume stop set, %s", actions, entries, entries[0].After,
			`the note "try it" in the third entry, 440 in the newest`)
	}
	if code, stderr := d.stop(); code != 0 { // print stderr if the test fails: the log in it shows whether permits expired on a slow machine
		t.Errorf("stop: got exit %d, want 0: %s", code, stderr)
	}
}

func TestLimiter_PrintsTableAndJSON(t *testing.T) {
	d := startDev(t, "--no-demo")
	d.until("a fresh answer", "first", isFresh)
	servicetest.WaitFor(t, eventTimeout, "a report of an idle worker", func() bool {
		v := d.view()
		return len(v.Processes) == 1 && v.Processes[0].High.Waiting == 0 && v.Processes[0].High.Granted == 2
	})
	table := strings.Join(strings.Fields(d.mustRun(0, nil, "limiter", "--source", "nexon")), " ")
	for _, part := range []string{
		"nexon: flowing; nothing blocks calls; settings at revision 0", "POLICY LIMIT TARGET USED REMAINING FOR LOW RESETS",
		"second 500 in 1s 450 - ", "day 20,000,000 a day - 2 19,999,998 ", "PROCESS LANE WAITING OLDEST GRANTED REJECTED REASON REPORTED", " HIGH 0 - ", " ago LOW 0 - 0 0 -",
	} {
		if !strings.Contains(table, part) {
			t.Errorf("got %[2]s, want %[1]q in it", part, table)
		}
	}
	var all []limiter.View
	if err := json.Unmarshal([]byte(d.mustRun(0, nil, "limiter", "-o", "json")), &all); err != nil || len(all) != 1 || *all[0].Policies[1].Used != 2 {
		t.Errorf("limiters: got %+v, %v, want one with 2 used of its second policy", all, err)
	}
	d.mustRun(3, []string{`unknown source "github"; the configuration has nexon`}, "limiter", "--source", "github")
	_, text := d.do(http.MethodGet, d.api+"/metrics")
	for _, want := range []string{
		`freshet_rate_limiter_limit{policy="second",source="nexon"} 500`, `freshet_rate_limiter_remaining{policy="day",priority="HIGH",source="nexon"} `,
		`freshet_rate_limiter_state{source="nexon",state="`, `freshet_rate_limiter_waiting{priority="LOW",source="nexon"} 0`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("metrics: got none that contains %s, want one", want)
		}
	}
}

func TestLimiterState_NamesStateReasonAndRevision(t *testing.T) {
	until := time.Date(2026, 11, 20, 15, 0, 12, 0, time.UTC)
	const want = "backing-off; backing off until 15:00:12 UTC, because the upstream rejected calls; settings at revision 7"
	if got := limiterState(limiter.View{State: limiter.StateBackingOff, Until: &until, Revision: 7}); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 1234 * time.Millisecond: "1.23s", 83*time.Second + 400*time.Millisecond: "1m23s", 25*time.Hour + 119*time.Second: "25h01m",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

func TestLimiter_PrintsScopes(t *testing.T) {
	at := time.Date(2026, 11, 20, 15, 0, 0, 0, time.UTC)
	soon, passed, left, none := at.Add(90*time.Second), at.Add(-time.Second), int64(4_987), int64(0)
	var said strings.Builder
	p := &program{app.NewProcess(nil, &said, io.Discard)}
	v := limiter.View{Source: "api", State: limiter.StateFlowing, At: at, Scopes: []limiter.ScopeView{
		{Policy: "core", Scope: `"acme"`, Remaining: &left, InFlight: 12, Until: &soon},
		{Policy: "core", Scope: `"spent"`, Remaining: &none, Until: &soon},
		{Policy: "core", Scope: `"new"`, InFlight: 1},
		{Policy: "credential breaker", Scope: `"old"`, BreakerOpen: true, Until: &passed},
		{Policy: "concurrent", Remaining: &left},
	}}
	if err := printLimiter(p, v); err != nil {
		t.Fatal(err)
	}
	want := "  POLICY              SCOPE    REMAINING     IN FLIGHT  NEXT IN\n" +
		"  core                \"acme\"   4,987         12         1m30s\n" +
		"  core                \"spent\"  0             0          1m30s\n" +
		"  core                \"new\"    unknown       1          -\n" +
		"  credential breaker  \"old\"    breaker open  0          0s\n" +
		"  concurrent          -        4,987         0          -\n"
	if !strings.Contains(said.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", said.String(), want)
	}
	said.Reset()
	v.Scopes = nil
	if err := printLimiter(p, v); err != nil || strings.Contains(said.String(), "IN FLIGHT") {
		t.Errorf("without scopes: got %s, %v, want a text without IN FLIGHT", said.String(), err)
	}
}
