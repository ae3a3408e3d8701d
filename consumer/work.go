package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// work brings one record to its end, or gives it up, to be read again, when ctx
// or its assignment ends before a call was sent. Once a call was sent, ctx no
// longer counts: what follows ends only with hard.
func (w *Worker) work(ctx, hard context.Context, t *task) {
	started := time.Now()
	ctx, hard, span := w.startSpan(ctx, hard, t)
	defer span.End()
	if t.invalid != nil {
		if !t.ledger.startCall() { // a revocation waits for its letter, or the next owner writes another
			return
		}
		defer t.ledger.endCall()
		w.deadLetter(ctx, t, failure{reason: t.reason, err: t.invalid, number: t.request.Version})
		return
	}
	if t.satisfiedByTime() { // by the one before it
		w.skip(t, schemas.Satisfied)
		return
	}
	if t.alreadyFailed() {
		w.skip(t, schemas.Failed) // what that one wrote down ended this one too
		return
	}
	var probe *breakerWaiter // it was chosen to probe
	for t.ledger.is(ledgerOpen) {
		a := &attempt{w: w, t: t, probe: probe != nil}
		// What waits leaves its places, and the line for permits, to others.
		wanted, over := t.ledger.bind(ctx, a.callStarted)
		d := w.tryOnce(wanted, hard, a)
		over()
		if a.started {
			t.ledger.endCall()
		}
		if probe != nil {
			close(probe.done)
			probe = nil
		}
		if a.preempted && !d.requeue { // its permit came at the same moment
			w.slots.preempted()
		}
		if a.ended {
			w.metrics.duration.Observe(time.Since(started).Seconds())
			return
		}
		var ok bool
		switch {
		case d.awaitBreaker:
			probe, ok = w.awaitBreaker(ctx, t)
		case d.requeue:
			ok = w.requeue(ctx, t)
		default:
			ok = w.sleepBetween(ctx, a, d)
		}
		if !ok {
			return
		}
	}
	if probe != nil {
		close(probe.done)
	}
}

// sleepBetween waits between two attempts, during which nothing is under way. It reports false
// if the record is given up.
func (w *Worker) sleepBetween(ctx context.Context, a *attempt, d decision) bool {
	ctx, over := a.t.ledger.bind(ctx, func() bool { return false })
	defer over()
	return sleep(ctx, jittered(d.wait))
}

// tryOnce makes one attempt and does what is decided on. Either a.ended is set
// afterwards, or the decision says how to go on.
func (w *Worker) tryOnce(ctx, hard context.Context, a *attempt) decision {
	t := a.t
	end := func() decision { a.ended = true; return decision{} }
	admitted, known := w.health.admit(t.request.Facet)
	if known != nil {
		w.tasks.Go(func() { w.fetchKnownGood(w.life, hard, known, "", false) })
	}
	if !admitted {
		a.mu.Lock()
		entered := a.markStarted()
		a.mu.Unlock()
		if entered {
			d := decision{next: stepScheduleRetry, wait: endpointDelay, reason: schemas.Outage}
			w.scheduleRetry(ctx, t, d, failure{reason: d.reason, err: errEndpointOpen, number: t.numberWithoutFetch()})
		}
		return end()
	}
	f, err := w.fetch(ctx, a)
	switch {
	case errors.Is(err, errSkipped):
		w.skip(t, a.skipped)
		return end()
	case errors.Is(err, errBreakerOpen):
		return decision{awaitBreaker: true}
	case errors.Is(err, errPreempted):
		return decision{requeue: true}
	case errors.Is(err, errBeginFailed):
		w.conditions.Warn(w.log, "numbering fetches", err)
		return decision{wait: time.Second}
	case err != nil:
		return end() // given up: ctx or the assignment ended
	}
	w.conditions.Resolved(w.log, "numbering fetches")
	d := w.evaluate(ctx, hard, a, f)
	why := failure{reason: d.reason, err: f.outcome.Err, number: a.number, outcome: f.outcome}
	if a.number == 0 && d.next == stepScheduleRetry { // it could not be sent
		a.mu.Lock()
		entered := a.markStarted()
		a.mu.Unlock()
		if !entered {
			return end()
		}
		why.number = t.numberWithoutFetch()
	}
	switch d.next {
	case stepStore:
		if w.storeResult(hard, a, f) != store.BaseMissing {
			return end()
		}
		// What the upstream's "not modified" referred to is gone: ask in full.
		t.stored = store.State{Entity: t.request.Entity}
		if t.plan, err = w.planFor(t); err != nil {
			return end()
		}
		return decision{}
	case stepScheduleRetry:
		w.scheduleRetry(hard, t, d, why)
		return end()
	case stepDeadLetter:
		if d.needsConfirmation {
			return d
		}
		w.deadLetter(hard, t, why)
		return end()
	case stepRetryNow:
	}
	w.metrics.errors.WithLabelValues(string(f.outcome.Class)).Inc()
	return d
}

var errEndpointOpen = errors.New("not sent: the endpoint answers no entity well, while others of the source are well")

// evaluate decides what follows from an answer, and tells everybody whom it concerns.
func (w *Worker) evaluate(ctx, hard context.Context, a *attempt, f fetched) decision {
	t, o := a.t, f.outcome
	if a.began.IsZero() {
		a.began = time.Now() // it could not be sent
	}
	if t.firstCall.IsZero() {
		t.firstCall = a.began
	}
	known := o.Class.Failed() && w.health.isKnownGood(t)
	if o.Class == source.OK || o.Class == source.NotModified {
		w.health.recordKnownGood(t, true)
	}
	end := callEnd{entity: t.request.Entity, credential: a.credentialUsed(), first: t.firstCall, began: a.began}
	what := w.health.record(end, evidenceOf(o), known, w.permits.BreakerOpenSince)
	t.lastFailed = o.Class == source.Transient || o.Class == source.Permanent || o.Class == source.BadContent
	did := attemptHistory{f.calls, t.failures, time.Since(t.firstCall), a.usedListedCredential(o), t.unconfirmed}
	v := faultUnknown
	if needsVerdict(o, did, what) {
		v = w.attribute(ctx, hard, a, o, what)
		if v == sharedFault && what == noDiagnosis && evidenceOf(o) != scopeEvidence {
			what = sourceOpen // or the endpoint's, which a confirming call has opened
		}
	} else if did.allowsRetryNow(o) && what == noDiagnosis {
		w.startConfirm(hard, faultQuery{entity: t.request.Entity, after: time.Now()})
	}
	d := decide(o, did, what, v)
	if o.Class == source.AuthRefused && d.action == actionNone && a.recordRefusal() {
		d = decision{} // another credential may see the entity
	}
	switch {
	case d.countsFailure && d.next == stepRetryNow:
		t.failures++
	case what.open() || d.action != actionNone: // none of it was the entity's
		t.failures, t.unconfirmed, t.firstCall = 0, false, time.Time{}
	}
	t.unconfirmed = d.needsConfirmation
	w.applyAction(a, o, d)
	if d.action == actionNone && (d.next == stepStore || o.Class == source.NotReady) {
		w.recordSuccess(a)
	}
	w.logConditions(a, f, d, what)
	return d
}

// attribute returns whose the failure is.
func (w *Worker) attribute(ctx, hard context.Context, a *attempt, o source.Outcome, what diagnosis) verdict {
	q := faultQuery{entity: a.t.request.Entity, after: time.Now()}
	if evidenceOf(o) == scopeEvidence {
		c, sent := o.Permit.(*call)
		if what.open() || (sent && c.permit.IsProbe()) {
			return sharedFault // as is known
		}
		q.credential, q.scope = a.credentialUsed(), scopeKey(o.Block, c)
		w.health.recordRefusal(q)
	}
	return w.awaitVerdict(ctx, hard, q)
}

// applyAction has calls pause as was decided.
func (w *Worker) applyAction(a *attempt, o source.Outcome, d decision) {
	switch d.action {
	case actionBackOff:
		w.permits.BackOff(d.pause, a.began)
	case actionOpenSource:
		w.permits.OpenBreaker(d.pause, d.maxPause, a.began)
	case actionOpenScope:
		o.Permit.(*call).permit.OpenScopeBreaker(d.block, d.pause, d.maxPause)
	case actionNone:
	}
}

// recordSuccess tells that the attempt's calls were answered well.
func (w *Worker) recordSuccess(a *attempt) {
	w.permits.CloseBreaker(a.began)
	a.recordSuccess()
	w.health.clearRefusals(a.scopeKeys())
}

// announceOpen tells of a breaker that has opened.
func (w *Worker) announceOpen(d diagnosis, facet string, err error) {
	switch d {
	case sourceOpened:
		w.permits.OpenBreaker(outagePause, outageMaxPause, time.Now())
		w.conditions.Error(w.log, conditionOutage, err)
	case endpointOpen:
		w.conditions.Error(w.log, conditionEndpoint(facet), err)
	case noDiagnosis, recovered, sourceOpen:
	}
}

// The troubles that concern the whole source.
const (
	conditionPause   = "calling the upstream, which asks for a pause"
	conditionOutage  = "calling the upstream, which fails for all entities"
	conditionRefused = "calling the upstream, which refuses the credential"
	conditionReach   = "reaching the upstream"
)

func conditionEndpoint(facet string) string {
	return "calling the endpoint of " + facet + ", which fails for all entities"
}

// logConditions logs what concerns the whole source, once as it begins and once as it is over.
func (w *Worker) logConditions(a *attempt, f fetched, d decision, what diagnosis) {
	o := f.outcome
	switch {
	case d.action == actionOpenScope && o.Class == source.AuthRefused:
		w.conditions.Error(w.log, o.Permit.(*call).condition(d.block), o.Err)
	case d.action == actionOpenScope:
		w.conditions.Warn(w.log, o.Permit.(*call).condition(d.block), pauseOf(o))
	case o.Class == source.AuthRefused && d.action == actionOpenSource:
		w.conditions.Error(w.log, conditionRefused, o.Err)
	case d.action == actionBackOff || o.Class == source.Maintenance:
		w.conditions.Warn(w.log, conditionPause, pauseOf(o))
	case what == sourceOpened:
		w.conditions.Error(w.log, conditionOutage, o.Err)
	case what == endpointOpen:
		w.conditions.Error(w.log, conditionEndpoint(a.t.request.Facet), o.Err)
	case o.Class == source.Transient && f.calls == 0:
		w.conditions.Warn(w.log, conditionReach, o.Err)
	case d.next == stepStore && w.conditions.active():
		over := []string{conditionPause, conditionOutage, conditionRefused, conditionReach, conditionEndpoint(a.t.request.Facet)}
		for _, c := range a.calls {
			over = append(over, c.condition(source.BlockEndpoint), c.condition(source.BlockResource), c.condition(source.BlockCredential))
		}
		for _, doing := range over {
			w.conditions.Resolved(w.log, doing)
		}
	}
}

// pauseOf says what is asked for.
func pauseOf(o source.Outcome) error {
	return fmt.Errorf("%w (class %s, it says for %v)", o.Err, o.Class, max(o.RetryAfter, o.Wait))
}

// fetched is what one attempt came to.
type fetched struct {
	outcome source.Outcome
	calls   int
	content content      // if the outcome has content
	memory  *reservation // of w.bytes, to be given back
}

// fetch makes one attempt: room for the bodies, permits, calls, reading.
func (w *Worker) fetch(ctx context.Context, a *attempt) (fetched, error) {
	t := a.t
	var f fetched
	var err error
	if f.memory, err = w.memory.reserve(ctx, t.client, min(w.bodySizes.estimate(t.request.Facet), w.config.MaxBodyBytes)); err != nil {
		return fetched{}, err
	}
	a.memory = f.memory
	answers, err := w.source.Fetch(ctx, t.plan, a)
	if err != nil {
		f.memory.resize(0)
		return fetched{}, err
	}
	f.calls = answers.Calls
	t.calls += f.calls
	f.memory.resize(int64(answers.Bytes()))
	w.bodySizes.record(t.request.Facet, int64(answers.Bytes()))

	// From the compressed body to the compressed payload without a pause: nothing
	// decompressed waits.
	w.parseSlots <- struct{}{}
	defer func() { <-w.parseSlots }()
	f.outcome = w.source.Read(answers, time.Now())
	w.metrics.callsEnded(f.outcome.Class, a.durations)
	w.reportRedacted(ctx, f.outcome.Redacted, t)
	if f.outcome.Class == source.OK && t.facet.Shrunk(len(f.outcome.Content.JSON), t.stored.Size) {
		f.outcome = shrunk(f.outcome, t.stored.Size)
	}
	if f.outcome.Class != source.OK {
		f.memory.resize(0)
		return f, nil
	}
	f.content = w.newContent(t, answers, f.outcome.Content)
	f.memory.resize(int64(f.content.bytes))
	return f, nil
}

// reportRedacted counts the credentials that were found in content. The log has a source's
// first one as a warning: most upstreams that repeat the credential do so in every answer.
func (w *Worker) reportRedacted(ctx context.Context, n int, t *task) {
	if n == 0 {
		return
	}
	w.metrics.redacted.Add(float64(n))
	level := slog.LevelDebug
	if w.redactionLogged.CompareAndSwap(false, true) {
		level = slog.LevelWarn
	}
	w.log.Log(t.traced(ctx), level, "credential found in content and replaced by REDACTED; leave the member out with the facet's select",
		"entity", t.request.Entity.String(), "times", n)
}

var errShrunk = errors.New("the content has shrunk")

// shrunk turns content that has lost too much into bad content: what is stored is
// more likely to be right.
func shrunk(o source.Outcome, stored int) source.Outcome {
	defer o.Content.Release()
	text := o.Content.JSON
	return source.Outcome{
		Class: source.BadContent, Status: o.Status,
		Err: fmt.Errorf("%w from %d to %d bytes, below the facet's shrinkGuard; if it is right, delete the snapshot", errShrunk, stored, len(text)),
		// The memory of the content is used again.
		Sample: append([]byte(nil), text[:min(len(text), schemas.MaxSampleBytes)]...), SampleType: "application/json",
	}
}
