package limiter

import (
	"testing"
	"time"
)

// reportedRig sends events to a bucket with a reported limit.
type reportedRig struct {
	scriptRig
	bucket *bucket
	at     time.Time     // the time of Redis' clock
	slack  time.Duration // how much too late a reported end of the window can be
}

// newReportedRig returns a rig with a limit of 60 calls a minute.
func newReportedRig(t *testing.T) *reportedRig {
	t.Helper()
	return newReportedRigOf(t, Policy{Limit: 60, Window: Window(time.Minute)})
}

func newReportedRigOf(t *testing.T, p Policy) *reportedRig {
	t.Helper()
	p.Name, p.Reported = "core", true
	config := scopedConfig(p)
	config.Breakers = nil
	r := &reportedRig{scriptRig: newScriptRig(t, config), at: time.UnixMilli(1_700_000_000_000)}
	r.bucket = r.firstBucket()
	r.send(r.at, 1)
	r.at = r.at.Add(time.Minute) // the end of the quiet period
	return r
}

// reportedCall is a granted call.
type reportedCall struct {
	ticket string
	slot   int64
}

// one requests one slot, which must be granted.
func (r *reportedRig) one() reportedCall {
	r.Helper()
	d, g := r.send(r.at, 1)
	if got := len(g.queues[0].slots); got != 1 {
		r.Fatalf("slots: got %d, want 1", got)
	}
	s := g.queues[0].slots[0]
	return reportedCall{ticketOf(d, s), g.now + s.wait}
}

// ends reports the end of a call, and returns the state of the bucket.
func (r *reportedRig) ends(c reportedCall, outcome callOutcome, remaining int64, until time.Duration) bucketState {
	r.Helper()
	report := callReport{outcome: outcome, units: 1, slot: c.slot, remaining: remaining, slack: r.slack}
	if until > 0 {
		report.until = r.at.Add(until).UnixMicro()
	}
	_, g := r.send(r.at, 0, reportEvent(r.bucket, c.ticket, report))
	for _, state := range g.states {
		return state
	}
	r.Fatal("the reply has no state of the bucket")
	return bucketState{}
}

func TestReported_CallThatWasNotSentUsesNoUnit(t *testing.T) {
	r := newReportedRig(t)
	r.ends(r.one(), callNotSent, -1, 0)
	if got := r.ends(r.one(), callReported, 10, 30*time.Second).remaining; got != 10 {
		t.Errorf("remaining units after a report of 10: got %d, want 10", got)
	}
}

// The lost units of a call without a report are subtracted from the reports of calls that could have
// arrived before it.
func TestReported_CallWithoutReportIsSubtractedFromReports(t *testing.T) {
	r := newReportedRig(t)
	r.ends(r.one(), callReported, 50, 30*time.Second)
	silent, other := r.one(), r.one()
	if got := r.ends(silent, callOutcomeUnknown, -1, 0).remaining; got != 48 {
		t.Errorf("remaining units with one call in flight: got %d, want 48", got)
	}
	if got := r.ends(other, callReported, 49, 30*time.Second).remaining; got != 48 {
		t.Errorf("remaining units after a report of 49: got %d, want 48", got)
	}
	r.at = r.at.Add(time.Second)
	if got := r.ends(r.one(), callReported, 47, 29*time.Second).remaining; got != 47 {
		t.Errorf("remaining units after a report of a clearly later call: got %d, want 47", got)
	}
}

// A call whose lease has expired counts as used. Its end is reported later, and does not count a second time,
// but the units that its response reports apply.
func TestReported_EndAfterTheLeaseCountsOnce(t *testing.T) {
	for name, c := range map[string]struct {
		outcome  callOutcome
		reported int64
		want     int64
	}{
		"not sent":       {callNotSent, -1, 49},
		"unknown":        {callOutcomeUnknown, -1, 49},
		"without report": {callAnsweredWithout, -1, 49},
		"lower report":   {callReported, 40, 40 - 1}, // the report can be from before the arrival of the expired call
		"higher report":  {callReported, 55, 49},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReportedRig(t)
			r.ends(r.one(), callReported, 50, time.Minute)
			late := r.one()
			r.at = r.at.Add(11 * time.Second)
			if got, want := r.ends(r.one(), callNotSent, -1, 0).remaining, int64(49); got != want {
				t.Errorf("remaining units after the end of the lease: got %d, want %d", got, want)
			}
			if got := r.ends(late, c.outcome, c.reported, 49*time.Second).remaining; got != c.want {
				t.Errorf("remaining units after the late end: got %d, want %d", got, c.want)
			}
		})
	}
}

// The set of calls in flight expires after the last call, so that buckets that are no longer used need no
// memory.
func TestReported_CallsInFlightExpire(t *testing.T) {
	r := newReportedRig(t)
	r.one()
	if got, want := r.redis.TTL(r.bucket.key+":calls"), 2*10*time.Second+time.Minute; got != want {
		t.Errorf("expiry of the calls in flight, with a lease of 10s: got %v, want %v", got, want)
	}
}
