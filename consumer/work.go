package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// work processes one record until it is settled. If ctx or the record's assignment ends before a
// call is sent, work returns early and the record is read again. After a call is sent, only the end
// of the context `hard` aborts the processing, so that the response is stored.
func (w *Worker) work(ctx, hard context.Context, t *task) {
	started := time.Now()
	ctx, hard, span := w.startSpan(ctx, hard, t)
	defer span.End()
	if t.invalid != nil {
		if !t.ledger.startCall() { // startCall makes a revocation wait; without it the next owner would write a second dead letter
			return
		}
		defer t.ledger.endCall()
		w.settler.deadLetter(ctx, t, failure{reason: t.reason, err: t.invalid, number: t.request.Version})
		return
	}
	if t.satisfiedByTime() { // the fetch of the entity's previous record has satisfied this request too
		w.settler.skip(t, schemas.Satisfied)
		return
	}
	if t.alreadyFailed() {
		w.settler.skip(t, schemas.Failed) // the failed fetch of the entity's previous record settles this request too
		return
	}
	var probe *breakerWaiter // not nil while this record is the breaker's probe
	for t.ledger.is(ledgerOpen) {
		a := &attempt{w: w, t: t, probe: probe != nil}
		// When the record's assignment ends, a record without a sent call stops waiting and
		// releases its reservations.
		bound, unbind := t.ledger.bind(ctx, a.callStarted)
		d := w.tryOnce(bound, hard, a)
		unbind()
		if a.started {
			t.ledger.endCall()
		}
		if probe != nil {
			close(probe.done)
			probe = nil
		}
		if a.preempted && !d.requeue { // the attempt was chosen to be preempted, but got its permit before it gave its slot up
			w.admission.slots.preempted()
		}
		if a.ended {
			w.metrics.duration.Observe(time.Since(started).Seconds())
			return
		}
		var ok bool
		switch {
		case d.awaitBreaker:
			probe, ok = w.prober.awaitBreaker(ctx, t)
		case d.requeue:
			ok = w.admission.requeue(ctx, t)
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

// sleepBetween waits for the decision's delay between two attempts of a record. It reports false if
// ctx or the assignment ended.
func (w *Worker) sleepBetween(ctx context.Context, a *attempt, d decision) bool {
	ctx, unbind := a.t.ledger.bind(ctx, func() bool { return false })
	defer unbind()
	return poll.Pause(ctx, jittered(d.wait))
}

// notBegun returns the decision after an attempt whose fetch did not begin, for one of three reasons.
// The request is satisfied. Redis has failed: then another attempt follows. ctx or the assignment of
// the partition ended: then the record stays uncommitted, and a worker reads it again.
func (a *attempt) notBegun(err error) decision {
	switch {
	case errors.Is(err, errSkipped):
		a.w.settler.skip(a.t, a.skipped)
	case errors.Is(err, errBeginFailed):
		a.w.conditions.Warn(a.w.log, failedOperation(opBegin), err)
		return decision{wait: beginRetryDelay}
	}
	a.ended = true
	return decision{}
}

// tryOnce makes one attempt and applies the decision about its outcome. Afterwards either a.ended
// is true, or the returned decision names the event that the record must wait for before its next
// attempt.
func (w *Worker) tryOnce(ctx, hard context.Context, a *attempt) decision {
	t := a.t
	if t.facet.Derived != nil {
		return w.derivations.try(ctx, hard, a)
	}
	defer a.expectNoResult()
	end := func() decision { a.ended = true; return decision{} }
	admitted, known := w.health.admit(t.request.Facet)
	if known != nil { // the record waits for the probe: after an outage its retry would otherwise be delayed once more
		w.prober.fetchKnownGood(ctx, hard, known, "", false)
		admitted, _ = w.health.admit(t.request.Facet)
	}
	if !admitted {
		a.retryUnsent(ctx, w.health.endpointDelay(t.request.Facet), errEndpointOpen)
		return end()
	}
	if len(t.aliases) > 0 && !w.aliases.prepare(ctx, hard, a) {
		return end()
	}
	if t.facet.Collection != nil && !w.walks.prepare(ctx, t) {
		return end()
	}
	f, err := w.fetch(ctx, a)
	switch {
	case errors.Is(err, errBreakerOpen):
		return decision{awaitBreaker: true}
	case errors.Is(err, errPreempted):
		return decision{requeue: true}
	case errors.Is(err, errNoToken):
		a.retryUnsent(hard, outageDelay, err)
		return end()
	case err != nil:
		return a.notBegun(err)
	}
	w.conditions.Resolved(w.log, failedOperation(opBegin))
	d := w.evaluate(ctx, hard, a, f)
	why := failure{reason: d.reason, err: f.outcome.Err, number: a.number, outcome: f.outcome}
	if a.number == 0 && d.next == stepScheduleRetry { // the fetch has no number, because no call could be sent
		if !a.start() {
			return end()
		}
		why.number = t.numberWithoutFetch()
	}
	switch d.next {
	case stepStore:
		if w.aliases.notFound(ctx, hard, a, f.outcome) || w.storeResult(hard, a, f) != store.BaseMissing {
			return end()
		}
		// The result was not stored for one of three reasons. The snapshot to which "not modified"
		// referred was deleted: then the content must be fetched without a validator (ETag or
		// Last-Modified). An alias has changed: then the content must be fetched with the new alias.
		// Another fetch has stored the page: then the next page must be fetched.
		if w.aliases.load(hard, []*task{t}) != nil {
			return end()
		}
		t.stored = store.State{Entity: t.request.Entity}
		if t.plan, err = planCalls(w.source, t); err != nil {
			return end()
		}
		return decision{}
	case stepScheduleRetry:
		w.settler.scheduleRetry(hard, t, d, why)
		return end()
	case stepDeadLetter:
		if d.needsConfirmation {
			return d
		}
		w.settler.deadLetter(hard, t, why)
		return end()
	case stepRetryNow:
	}
	w.metrics.errors.WithLabelValues(string(f.outcome.Class)).Inc()
	return d
}

// evaluate decides the next step after an attempt. For a failure it first finds out whether the
// entity or the source is at fault. It updates the Health, pauses calls if necessary, and logs
// conditions.
func (w *Worker) evaluate(ctx, hard context.Context, a *attempt, f fetched) decision {
	t, o := a.t, f.outcome
	if w.gates.renewed(ctx, o) {
		return decision{} // try again at once, with the newer token
	}
	if a.began.IsZero() {
		a.began = time.Now() // no call could be sent, so the attempt counts as begun now
	}
	if t.firstCall.IsZero() {
		t.firstCall = a.began
	}
	known := o.Class.Failed() && w.health.confirmations.isKnownGood(t)
	if o.Class == source.OK || o.Class == source.NotModified {
		w.health.confirmations.recordKnownGood(t, true)
	}
	end := callEnd{entity: t.request.Entity, credential: a.credentialUsed(), first: t.firstCall, began: a.began}
	diag := w.health.record(end, evidenceOf(o), known, w.permits.BreakerOpenSince)
	t.lastFailed = o.Class == source.Transient || o.Class == source.Permanent || o.Class == source.BadContent
	history := attemptHistory{f.calls, t.failures, time.Since(t.firstCall), a.usedListedCredential(o), t.unconfirmed, 0}
	if diag == endpointOpen {
		history.endpointDelay = w.health.endpointDelay(t.request.Facet)
	}
	v := faultUnknown
	if needsVerdict(o, history, diag) {
		v = w.attribute(ctx, hard, a, o, diag)
		if v == sharedFault && diag == noDiagnosis && evidenceOf(o) != scopeEvidence {
			diag = sourceOpen // the run of confirming calls has opened the breaker of the source or the endpoint
		}
	} else if history.allowsRetryNow(o) && diag == noDiagnosis {
		w.prober.startConfirm(hard, faultQuery{entity: t.request.Entity, after: time.Now()})
	}
	d := decide(o, history, diag, v)
	if o.Class == source.AuthRefused && d.action == actionNone && a.recordRefusal() {
		d = decision{} // another credential may have access to the entity, so try again at once
	}
	switch {
	case d.countsFailure && d.next == stepRetryNow:
		t.failures++
	case diag.open() || d.action != actionNone: // the source or a scope is at fault, not the entity, so the record's count of failed tries restarts at 0
		t.failures, t.unconfirmed, t.firstCall = 0, false, time.Time{}
	}
	t.unconfirmed = d.needsConfirmation
	t.lastFailed = t.lastFailed || d.action == actionBackOff // a record whose call made the source back off is the last choice for the next probe
	w.applyAction(a, o, d)
	if d.action == actionNone && (d.next == stepStore || o.Class == source.NotReady) {
		w.recordSuccess(a)
	}
	w.logConditions(a, f, d, diag)
	return d
}

// attribute returns the verdict for a failure: entityFault if only the entity is at fault,
// sharedFault if its source or scope is.
func (w *Worker) attribute(ctx, hard context.Context, a *attempt, o source.Outcome, diag diagnosis) verdict {
	q := faultQuery{entity: a.t.request.Entity, after: time.Now()}
	if evidenceOf(o) == scopeEvidence {
		c, sent := o.Permit.(*call)
		if diag.open() || (sent && c.permit.IsProbe()) {
			return sharedFault // a breaker is open already, so no single entity is at fault
		}
		if sent && c.permit.IsSourceProbe() && o.Class == source.Quota && o.Block == source.BlockSource {
			return sharedFault // the source still refuses calls, so the entity did not cause the failure
		}
		q.credential, q.scope = a.credentialUsed(), scopeKey(o.Block, c)
		w.health.confirmations.recordRefusal(q)
	}
	v := w.prober.awaitVerdict(ctx, hard, q)
	if v != entityFault || !w.permits.BreakerOpenSince(a.began) {
		return v
	}
	// The breaker was open after this call began, so the later success of another entity does not prove
	// that only this entity fails.
	if q.scope != "" {
		return faultUnknown
	}
	return sharedFault
}

// applyAction pauses the calls of the decision's scope, in all processes.
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

// recordSuccess closes the source's breaker and the breakers of all scopes that the attempt's calls
// belong to.
func (w *Worker) recordSuccess(a *attempt) {
	w.permits.CloseBreaker(a.began)
	a.recordSuccess()
	w.health.confirmations.clearRefusals(a.scopeKeys())
}

// announceOpen logs a breaker that a confirming call or a probe has opened. For the source's
// breaker it also opens the breaker in Redis.
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

// fetched has the outcome of one attempt of a task, and the content that the attempt has fetched.
type fetched struct {
	outcome source.Outcome
	calls   int
	content content      // content of the entity; empty if the attempt returned none
	memory  *reservation // memory that is reserved for the response bodies; the caller must release it with resize(0)
	// aliasNotFound is true if the entity counts as not found because the entity of its alias is not
	// found.
	aliasNotFound bool
}

// fetch makes one attempt: it reserves memory, gets permits, calls the upstream and parses the
// answers.
func (w *Worker) fetch(ctx context.Context, a *attempt) (fetched, error) {
	t := a.t
	var f fetched
	var err error
	if t.facet.Collection != nil && t.walk == nil { // the call of a confirming run or a probe: prepare was not called
		if err := w.walks.load(ctx, t); err != nil {
			return fetched{}, err
		}
	}
	if f.memory, err = w.memory.reserve(ctx, t.client, min(w.bodySizes.estimate(t.request.Facet), w.config.MaxBodyBytes)); err != nil {
		return fetched{}, err
	}
	a.memory = f.memory
	answers, err := w.source.Fetch(ctx, t.plan, a)
	if err != nil {
		f.memory.resize(0)
		reportCalls(ctx, w, a, "", false, t.calls)
		return fetched{}, err
	}
	f.calls = answers.Calls
	t.calls += f.calls
	f.memory.resize(int64(answers.Bytes()))
	w.bodySizes.record(t.request.Facet, int64(answers.Bytes()))

	// Decompressing, parsing and compressing again happen in one step, while the goroutine holds
	// one of parseSlots. So no decompressed body waits in memory for a free parse slot.
	w.parseSlots <- struct{}{}
	defer func() { <-w.parseSlots }()
	f.outcome = w.source.Read(answers, time.Now())
	w.metrics.callsEnded(f.outcome.Class, a.durations)
	w.reportRedacted(ctx, f.outcome.Redacted, t)
	if f.outcome.Page != nil {
		return w.walks.fetched(ctx, a, f), nil
	}
	if f.outcome.Class == source.OK && t.facet.Shrunk(len(f.outcome.Content.Bytes), t.stored.Size) {
		f.outcome = shrunk(f.outcome, t.stored.Size)
	}
	ok := f.outcome.Class == source.OK
	reportCalls(ctx, w, a, f.outcome.Class, ok && !t.hasStored(f.outcome.Content), t.calls-f.calls)
	if !ok {
		if f.outcome.Class == source.NotModified {
			w.hints.recordUnchanged(ctx, w.base, t)
		}
		f.memory.resize(0)
		return f, nil
	}
	f.content = w.newContent(ctx, t, answers, f.outcome.Content)
	f.memory.resize(int64(f.content.bytes))
	return f, nil
}

// reportRedacted counts credentials that were found in content. Only the first credential that is
// found in a source's content is logged as a warning, because an upstream that repeats the
// credential usually does so in every response.
func (w *Worker) reportRedacted(ctx context.Context, n int, t *task) {
	if n == 0 {
		return
	}
	w.metrics.redacted.Add(float64(n))
	level := slog.LevelDebug
	if w.redactionLogged.CompareAndSwap(false, true) {
		level = slog.LevelWarn
	}
	w.log.Log(t.traced(ctx), level, "credential in content replaced by REDACTED; exclude the member with the facet's select",
		"entity", t.request.Entity.String(), "times", n)
}

var errShrunk = errors.New("the content has shrunk")

// shrunk returns the outcome for content that is much smaller than the stored snapshot. Its class
// is BadContent, because the snapshot is more likely to be right. `stored` is the snapshot's size
// in bytes.
func shrunk(o source.Outcome, stored int) source.Outcome {
	defer o.Content.Release()
	text := o.Content.Bytes
	return source.Outcome{
		Class: source.BadContent, Status: o.Status,
		Err: fmt.Errorf("%w from %d to %d bytes, below the facet's shrinkGuard; if the new content is right, delete the snapshot", errShrunk, stored, len(text)),
		// The sample is copied, because Release reuses the content's memory.
		Sample: append([]byte(nil), text[:min(len(text), schemas.MaxSampleBytes)]...), SampleType: cmp.Or(o.Content.MediaType, "application/json"),
	}
}
