package limiter

import (
	"cmp"
	"slices"
	"testing"
	"time"
)

// timedCall is a call to an upstream with a reported limit. Its times are from the begin of the test.
type timedCall struct {
	slot, end time.Duration
	outcome   callOutcome
	remaining int64         // in the response; -1: not reported
	until     time.Duration // reported end of the window; 0: not reported
}

// reportedAt returns a call whose response reports this number of remaining units, and the end of the window.
func reportedAt(slot, end time.Duration, remaining int64, until time.Duration) timedCall {
	return timedCall{slot, end, callReported, remaining, until}
}

// play requests and ends the calls at their times. It returns the remaining units after the last end (-1:
// unknown), and the end of the window (0: unknown).
func (r *reportedRig) play(calls ...timedCall) (remaining int64, until time.Duration) {
	r.Helper()
	type step struct {
		at  time.Duration
		run func()
	}
	start := r.at
	granted := make([]reportedCall, len(calls))
	var steps []step
	for i, c := range calls {
		steps = append(steps, step{c.slot, func() { granted[i] = r.one() }})
	}
	for i, c := range calls {
		steps = append(steps, step{c.end, func() {
			state := r.ends(granted[i], c.outcome, c.remaining, max(0, c.until-c.end))
			remaining, until = state.remaining, 0
			if state.until > 0 {
				until = time.UnixMicro(state.until).Sub(start)
			}
		}})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	for _, s := range steps {
		r.at = start.Add(s.at)
		s.run()
	}
	return remaining, until
}

// A response reports the units of its own window. It can arrive after the end of that window, and the known
// end can be too late by twice the slack.
func TestReported_NextWindowBeginsWithALaterReport(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		slack time.Duration
		calls []timedCall // after a call at 0 s that reported 5 units until 10 s
		want  int64
	}{
		"after the end":                      {0, []timedCall{reportedAt(10100*ms, 10100*ms, 59, 70*s)}, 59},
		"after the end, which is inexact":    {60 * s, []timedCall{reportedAt(10100*ms, 10100*ms, 59, 70*s)}, 59},
		"shortly before the end":             {s, []timedCall{reportedAt(8*s, 8*s, 59, 68*s)}, 59},
		"long before the end":                {s, []timedCall{reportedAt(7*s, 7*s, 59, 67*s)}, 5},
		"nearly the same end":                {0, []timedCall{reportedAt(9950*ms, 9950*ms, 30, 10050*ms)}, 5},
		"slow response, window not ended":    {s, []timedCall{reportedAt(s, 8*s, 30, 18*s)}, 5},
		"slow response, window ended":        {0, []timedCall{reportedAt(9*s, 11*s, 3, 11900*ms)}, -1},
		"response of an ended window":        {0, []timedCall{reportedAt(9950*ms, 10050*ms, 4, 10060*ms)}, -1},
		"same slot, window not ended":        {s, []timedCall{reportedAt(8*s, 8*s, 4, 10*s), reportedAt(8*s, 8010*ms, 59, 68*s)}, 4},
		"same slot, window ended":            {0, []timedCall{reportedAt(9*s, 9*s, 4, 10*s), reportedAt(9*s, 10050*ms, 59, 70*s)}, -1},
		"same slot, both of the next window": {s, []timedCall{reportedAt(8*s, 8*s, 59, 68*s), reportedAt(8*s, 8010*ms, 40, 68*s)}, 40},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReportedRig(t)
			r.slack = c.slack
			if got, _ := r.play(append([]timedCall{reportedAt(0, 0, 5, 10*s)}, c.calls...)...); got != c.want {
				t.Errorf("remaining units: got %d, want %d", got, c.want)
			}
		})
	}
}

// A call that was sent directly before the end of a window can arrive in the next window. If its
// response reports nothing, it counts there.
func TestReported_CallAtTheEndOfAWindowCountsInTheNext(t *testing.T) {
	const s = time.Second
	atEnd, early := reportedAt(10010*ms, 10010*ms, 59, 20*s), reportedAt(8*s, 8*s, 59, 68*s)
	for name, c := range map[string]struct {
		slack   time.Duration
		slot    time.Duration // slot of the late call
		outcome callOutcome
		next    timedCall // the first call of the next window
		want    int64
	}{
		"shortly before the end":            {0, 9950 * ms, callOutcomeUnknown, atEnd, 58},
		"shortly before the end, not sent":  {0, 9950 * ms, callNotSent, atEnd, 59},
		"before the end":                    {0, 9850 * ms, callOutcomeUnknown, atEnd, 59},
		"shortly before the unexpected end": {s, 7950 * ms, callOutcomeUnknown, early, 58},
		"before the unexpected end":         {s, 7850 * ms, callOutcomeUnknown, early, 59},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReportedRig(t)
			r.slack = c.slack
			late := timedCall{c.slot, 10100 * ms, c.outcome, -1, 0}
			if got, _ := r.play(reportedAt(0, 0, 10, 10*s), late, c.next); got != c.want {
				t.Errorf("remaining units after the end of the late call: got %d, want %d", got, c.want)
			}
		})
	}
}

// Reported ends of a window are exact or too late, so the earliest applies. If no units are left, a clearly
// later end applies.
func TestReported_EarliestEndApplies(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		slack time.Duration
		call  timedCall // after a call that reported the end 10 s
		want  time.Duration
	}{
		"earlier":                           {0, reportedAt(s, s, 4, 9*s), 9 * s},
		"later":                             {0, reportedAt(s, s, 4, 60*s), 10 * s},
		"later, no units left":              {0, reportedAt(s, s, 0, 60*s), 60 * s},
		"slightly later, no units left":     {0, reportedAt(s, s, 0, 10050*ms), 10 * s},
		"later by the slack, no units left": {s, reportedAt(s, s, 0, 11*s), 10 * s},
		"later by two slacks":               {s, reportedAt(s, s, 0, 12050*ms), 12050 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReportedRig(t)
			r.slack = c.slack
			if _, got := r.play(reportedAt(0, 0, 5, 10*s), c.call); got != c.want {
				t.Errorf("end of the window: got %v, want %v", got, c.want)
			}
		})
	}
}

// The configured limit applies from the first response that reports no units.
func TestReported_ResponseWithoutReportBeginsAWindow(t *testing.T) {
	for name, c := range map[string]struct {
		outcomes []callOutcome
		want     int64
		until    time.Duration
	}{
		"no response":            {[]callOutcome{callOutcomeUnknown}, -1, 0},
		"a response":             {[]callOutcome{callAnsweredWithout}, 59, time.Minute + horizon},
		"two responses":          {[]callOutcome{callAnsweredWithout, callAnsweredWithout}, 58, time.Minute + horizon},
		"a response, then none":  {[]callOutcome{callAnsweredWithout, callOutcomeUnknown}, 58, time.Minute + horizon},
		"a response and no call": {[]callOutcome{callAnsweredWithout, callNotSent}, 59, time.Minute + horizon},
	} {
		t.Run(name, func(t *testing.T) {
			var calls []timedCall
			for i, outcome := range c.outcomes {
				at := time.Duration(i) * time.Second
				calls = append(calls, timedCall{at, at, outcome, -1, 0})
			}
			got, until := newReportedRig(t).play(calls...)
			if got != c.want {
				t.Errorf("remaining units: got %d, want %d", got, c.want)
			}
			if until != c.until {
				t.Errorf("end of the window: got %v, want %v", until, c.until)
			}
		})
	}
}

// After a loss of state, reports about slots that were granted before it have no effect. These slots can be in
// the future.
func TestReported_IgnoresSlotsFromBeforeALoss(t *testing.T) {
	for _, slot := range []time.Duration{-time.Second, horizon - ms} {
		r := newReportedRig(t)
		late := reportedCall{r.one().ticket, r.at.Add(slot).UnixMicro()}
		r.redis.FlushAll()
		if got, want := r.ends(late, callReported, 50, time.Minute).remaining, int64(-1); got != want {
			t.Errorf("remaining units after a report about a slot %v after the loss: got %d, want %d", slot, got, want)
		}
	}
}

// A call whose lease has expired is subtracted only from the reports of calls that could have arrived before it.
func TestReported_ExpiredCallIsNotSubtractedLater(t *testing.T) {
	r := newReportedRig(t)
	r.ends(r.one(), callReported, 50, time.Minute)
	r.one()
	r.at = r.at.Add(11 * time.Second)
	if got, want := r.ends(r.one(), callReported, 48, 49*time.Second).remaining, int64(48); got != want {
		t.Errorf("remaining units after a report of 48: got %d, want %d", got, want)
	}
}
