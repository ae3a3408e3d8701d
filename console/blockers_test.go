package console

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

func TestBlockers_AreNamed(t *testing.T) {
	day := func(left, low int64) *limiter.View {
		return &limiter.View{State: limiter.StateFlowing, Policies: []limiter.PolicyView{{
			Name: "day", Window: "day", Limit: 20_000_000, Used: new(20_000_000 - left), Remaining: left, RemainingForLow: low, ResetsAt: new(testNow.Add(9 * time.Hour)),
		}}}
	}
	windowLog := func(window string, left, low int64) *limiter.View {
		return &limiter.View{State: limiter.StateFlowing, Policies: []limiter.PolicyView{{Name: "few", Window: window, Limit: 40, Used: new(40 - left), Remaining: left, RemainingForLow: low}}}
	}
	waiting := func(state limiter.State, why limiter.WaitReason, waits time.Duration) *limiter.View {
		l := limiter.LaneView{Waiting: 3, OldestMS: float64(waits.Milliseconds()), Reason: why}
		return &limiter.View{State: state, Processes: []limiter.ProcessView{{Process: "a", Low: limiter.LaneView{OldestMS: 99_000, Reason: "over"}}, {Process: "b", Low: l}}}
	}
	parts := func(all ...limiter.ScopeView) *limiter.View {
		return &limiter.View{State: limiter.StateFlowing, Scopes: all}
	}
	soon, later := new(testNow.Add(5*time.Second)), new(testNow.Add(40*time.Minute))
	breakerOpen := limiter.ScopeView{Policy: "endpoint", Scope: "read", BreakerOpen: true, Until: later}
	scoped := func(scope string, left int64, until *time.Time) limiter.ScopeView {
		return limiter.ScopeView{Policy: "core", Scope: scope, Remaining: &left, Until: until}
	}
	for _, c := range []struct {
		view      *limiter.View
		high, low string // expected messages of each lane; "same": LOW has the messages of HIGH
	}{
		{nil, "", ""},
		{&limiter.View{State: limiter.StateFlowing}, "", ""},
		{&limiter.View{State: limiter.StateStopped}, "stopped by an operator, until it is resumed", "same"},
		{day(100, 10), "", ""},
		{day(0, 0), "all 20 M calls of the day are used up; it resets at 21:00", "same"},
		{day(810_000, 0), "", "LOW has used up its share of the day, and the 810,000 remaining calls are reserved for HIGH; it resets at 21:00"},
		{&limiter.View{State: limiter.StateRestoringCount, Policies: []limiter.PolicyView{{Window: "day"}}}, "calls wait until the daily count is restored", "same"},
		{windowLog("1h0m0s", 0, 0), "all 40 calls of the hour are used up", "same"},
		{windowLog("1h0m0s", 6, 0), "", "LOW has used up its share of the hour, and the 6 remaining calls are reserved for HIGH"},
		{windowLog("1m0s", 0, 0), "", ""}, // no message, because a window of 1 min is too short to be reported
		{waiting(limiter.StateFlowing, "second", time.Minute), "", "the oldest request of the LOW lane has waited 1 min for second"},
		{waiting(limiter.StateFlowing, "second", 2*time.Second), "", ""},
		{waiting(limiter.StateStopped, "stopped", time.Minute), "stopped by an operator, until it is resumed", "same"},
		{parts(breakerOpen), "1 scope has an open circuit breaker: endpoint of read until 12:40", "same"},
		{parts(breakerOpen, breakerOpen, breakerOpen, breakerOpen), "4 scopes have an open circuit breaker: endpoint of read until 12:40, endpoint of read until 12:40, endpoint of read until 12:40, and more on the limiter page", "same"},
		{parts(scoped("a", 0, later), scoped("b", 1, later), scoped("c", 0, soon)), "1 scope has no calls left: core of a until 12:40", "same"},
	} {
		for lane, want := range map[schemas.Lane]string{schemas.High: c.high, schemas.Low: c.low} {
			if want == "same" {
				want = c.high
			}
			var got []string
			for _, h := range blockersOf(c.view, lane, testNow) {
				got = append(got, h.Message)
			}
			if strings.Join(got, " + ") != want {
				t.Errorf("%s: got %q\nwant\n%q", lane, got, want)
			}
		}
	}
}

func TestBlockers_ExhaustedBudgetsAndOpenBreakers(t *testing.T) {
	low := limiter.PolicyView{Name: "day", Window: "day", Limit: 1_000, Used: new(int64(900)), Remaining: 100, ResetsAt: new(testNow.Add(9 * time.Hour))}
	v := &limiter.View{
		State: "flowing", Policies: []limiter.PolicyView{low}, Scopes: []limiter.ScopeView{{Policy: "endpoint", Scope: "read", BreakerOpen: true}},
		Processes: []limiter.ProcessView{{Process: "a", Low: limiter.LaneView{Waiting: 1, OldestMS: 60_000, Reason: "day"}}},
	}
	f := liveStatus{Items: map[string]statusItem{}, Rows: map[string][][]statusItem{}}
	f.addProblems(&sample{At: testNow, Sources: map[string]*sourceSample{"nexon": {Limits: v, Lanes: []LaneLag{testLane(schemas.High, 0, 0), stalledLane(schemas.Low, 9, time.Minute)}}}}, []string{"nexon"})
	var got []string
	for _, row := range f.Rows["problems"] {
		got = append(got, row[0].Tone+" "+row[0].Text)
	}
	const share = "LOW has used up its share of the day, and the 100 remaining calls are reserved for HIGH; it resets at 21:00"
	want := []string{
		"warn nexon: 1 scope has an open circuit breaker: endpoint of read.", "warn nexon: " + share + ".",
		"warn nexon: 9 records wait in its LOW lane, and no worker has processed one for 1 min: " + share + ".",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant\n%q", got, want)
	}

	e := Entity{Entity: schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}, Request: RequestState{Lane: schemas.Low, Number: 5, Issued: 5, Confirmed: true}}
	for lane, text := range map[schemas.Lane]bool{schemas.Low: true, "": true, schemas.High: false} {
		e.Request.Lane = lane
		why := whyStale(e, surroundings{limits: v}, testNow)
		if strings.Contains(why, "Its lane: "+share+". Its lane: the oldest request of the LOW lane has waited 1 min for day.") != text || !strings.Contains(why, "Its call may need a blocked scope of nexon: 1 scope has an open circuit breaker: endpoint of read.") {
			t.Errorf("lane %q: got %s, want the blocked scope in it, and the share of LOW: %v", lane, why, text)
		}
	}
}

func TestBlockers_LowYieldsToHigh(t *testing.T) {
	v := &limiter.View{State: limiter.StateFlowing, Processes: []limiter.ProcessView{{Process: "a"}}}
	low := stalledLane(schemas.Low, 9, time.Minute)
	for _, c := range []struct {
		high      LaneLag
		why, tone string
	}{
		{testLane(schemas.High, 7_000, time.Minute), ": LOW yields while HIGH has 7,000 records waiting", toneWarn},
		{testLane(schemas.High, 1_000, time.Minute), "", toneBad},
	} {
		if why, tone := stallReason(v, []LaneLag{c.high, low}, low, testNow); why != c.why || tone != c.tone {
			t.Errorf("stall beside %+v: got %q, %s, want %q, %s", c.high, why, tone, c.why, c.tone)
		}
	}
	if why, tone := stallReason(v, []LaneLag{stalledLane(schemas.High, 7_000, time.Minute)}, stalledLane(schemas.High, 7_000, time.Minute), testNow); why != "" || tone != toneBad {
		t.Errorf("stall of HIGH: got %q, %s, want none, %s", why, tone, toneBad)
	}
}
