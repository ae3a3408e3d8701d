package consumer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

func TestVerdict_IsEntityFaultAfterLaterSuccess(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(h *Health)
		want verdict
		done bool
	}{
		{"later success of another entity", func(h *Health) { endFirstCall(h, of("a", 2), source.OK, breakerOpen(false)) }, entityFault, true},
		{"later 404 of another entity", func(h *Health) { endFirstCall(h, of("a", 2), source.NotFound, breakerOpen(false)) }, entityFault, true},
		{"success of the same entity", func(h *Health) { endFirstCall(h, of("a", 1), source.OK, breakerOpen(false)) }, faultUnknown, false},
		{"success of another endpoint", func(h *Health) { endFirstCall(h, of("b", 2), source.OK, breakerOpen(false)) }, faultUnknown, false},
		{"success of an earlier call", func(h *Health) {
			at := time.Now().Add(-time.Hour)
			h.record(callEnd{entity: of("a", 2), first: at, began: at}, goodAnswer, false, breakerOpen(false))
		}, faultUnknown, false},
		{"failure of another entity", func(h *Health) { endFirstCall(h, of("a", 2), source.BadContent, breakerOpen(false)) }, faultUnknown, false},
		{"outage", func(h *Health) {
			for i := range 11 {
				endFirstCall(h, of("a", 2+i), source.BadContent, breakerOpen(false))
			}
		}, sharedFault, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, q := NewHealth(), faultQuery{entity: of("a", 1), after: time.Now()}
			time.Sleep(time.Second)
			c.then(h)
			if got, done, _ := h.lookupVerdict(q); got != c.want || done != c.done {
				t.Errorf("%s: got %v, %v; want %v, %v", c.name, got, done, c.want, c.done)
			}
		})
	}
}

// A clock of low precision shows the same time for a failure and for the start of its confirming
// calls. The result of these calls must count. Otherwise the waiting goroutine starts them again and
// again.
func TestVerdict_CountsARunOfTheSameInstant(t *testing.T) {
	now := time.Now()
	h, q := NewHealth(), faultQuery{entity: of("a", 1), after: now}
	h.confirmations.beginRun(q)
	h.applyVerdict(q, now, noKnownGood)
	if got, known, _ := h.lookupVerdict(q); got != noKnownGood || !known {
		t.Errorf("verdict: got %v, known %v, want %v, known", got, known, noKnownGood)
	}
}

// A known-good entity has failed, and its facet has no recorded call. When the source's breaker opens,
// all recorded failures are deleted, so the entity is a candidate for confirming calls again.
func TestKnownGood_RecoversInAFacetWithoutCalls(t *testing.T) {
	h := NewHealth()
	h.confirmations.recordKnownGood(&task{request: schemas.UpdateRequest{Entity: of("b", 1)}}, true)
	h.confirmations.recordFailure(h.confirmations.candidate("b", nil))
	if k := h.confirmations.candidate("b", nil); k != nil {
		t.Fatalf("candidate after its failure: got %v, want none", k.entity)
	}
	if d := h.applyVerdict(faultQuery{entity: of("a", 1), after: time.Now()}, time.Now(), sharedFault); d != sourceOpened {
		t.Fatalf("diagnosis: got %v, want %v", d, sourceOpened)
	}
	if h.confirmations.candidate("b", nil) == nil {
		t.Error("candidate after the breaker has opened: got none, want the known-good entity")
	}
}

// breakerPermits are permits of which only the state of the source's breaker is used.
type breakerPermits struct {
	Permits
	openSince bool
}

func (p breakerPermits) BreakerOpenSince(time.Time) bool { return p.openSince }

// A call fails, the source's breaker opens and closes again, and then another entity succeeds. On a
// busy machine the worker evaluates the failed call only after that.
func TestVerdict_IsNoEntityFaultIfTheBreakerWasOpen(t *testing.T) {
	permanent, refused := source.Outcome{Class: source.Permanent}, source.Outcome{Class: source.AuthRefused, Block: source.BlockCredential}
	for _, c := range []struct {
		outcome   source.Outcome
		openSince bool
		want      verdict
	}{
		{permanent, true, sharedFault},
		{permanent, false, entityFault},
		{refused, true, faultUnknown},
		{refused, false, entityFault},
	} {
		w := &Worker{base: &base{config: Config{ConfirmTimeout: time.Minute}}, health: NewHealth(), permits: breakerPermits{openSince: c.openSince}}
		w.prober = &prober{w: w}
		later := time.Now().Add(time.Minute)
		w.health.record(callEnd{entity: of("a", 2), first: later, began: later}, goodAnswer, false, breakerOpen(false))
		a := &attempt{w: w, t: &task{request: schemas.UpdateRequest{Entity: of("a", 1)}}, began: time.Now()}
		if got := w.attribute(t.Context(), t.Context(), a, c.outcome, noDiagnosis); got != c.want {
			t.Errorf("%v, breaker open since the call: %v: got verdict %v, want %v", c.outcome.Class, c.openSince, got, c.want)
		}
	}
}
