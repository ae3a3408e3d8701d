package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// prober makes the calls of a worker that find out whether the source is healthy: confirming calls after
// a failure, and probes while the source's breaker is open. Both fetch known-good entities. A probe can
// also be the first call of a record that waits until the breaker closes.
type prober struct {
	w     *Worker
	queue *breakerQueue
	// life is the context of Worker.Run. Confirming calls use it, because the context of the attempt
	// that starts them may end earlier.
	life context.Context //nolint:containedctx // it ends with Run
}

// awaitVerdict returns the verdict for a failure. It waits until another entity's call succeeds or
// a run of confirming calls ends, but at most for Config.ConfirmTimeout.
func (p *prober) awaitVerdict(ctx, hard context.Context, q faultQuery) verdict {
	limit := time.NewTimer(p.w.config.ConfirmTimeout)
	defer limit.Stop()
	for {
		v, known, changed := p.w.health.lookupVerdict(q)
		if known {
			return v
		}
		p.startConfirm(hard, q)
		select {
		case <-changed:
		case <-limit.C:
			return faultUnknown
		case <-ctx.Done():
			return faultUnknown
		}
	}
}

// startConfirm starts the confirming calls of a query, unless a run of the same query is active.
func (p *prober) startConfirm(hard context.Context, q faultQuery) {
	if p.w.health.confirmations.beginRun(q) {
		p.w.tasks.Go(func() { p.confirm(p.life, hard, q) })
	}
}

// confirm fetches known-good entities, one after the other, until one succeeds or
// confirmEntities have failed.
func (p *prober) confirm(ctx, hard context.Context, q faultQuery) {
	ctx, cancel := context.WithTimeout(ctx, p.w.config.ConfirmTimeout)
	defer cancel()
	tried := map[schemas.Entity]bool{q.entity: true}
	if p.w.health.confirmations.candidate(q.entity.Facet, tried) != nil && p.w.health.failureStreak(q.entity.Facet) < minEntities {
		poll.Pause(ctx, confirmDelay)
	}
	started, v := time.Now(), noKnownGood
	for range confirmEntities {
		k := p.w.health.confirmations.candidate(q.entity.Facet, tried)
		if k == nil {
			break
		}
		tried[k.entity] = true
		if v = p.callKnownGood(ctx, hard, k, q); v != sharedFault {
			break
		}
	}
	if v == sharedFault && q.scope == "" && len(tried) <= confirmEntities { // Only one known-good entity was called. Its failure alone does not prove that the source is at fault.
		v = noKnownGood
	}
	p.w.announceOpen(p.w.health.applyVerdict(q, started, v), q.entity.Facet, errConfirmed)
}

var errConfirmed = errors.New("known-good entities failed too")

// callKnownGood fetches one known-good entity, and returns the verdict about the failure of the query.
func (p *prober) callKnownGood(ctx, hard context.Context, k *knownGood, q faultQuery) verdict {
	credential := ""
	if q.scope != "" {
		credential = q.credential
	}
	o, called := p.fetchKnownGood(ctx, hard, k, credential, false)
	// A call that could not be started is repeated, because it gives no evidence about the upstream.
	// Possible causes: its permits expired on a busy machine, or this worker is processing a request
	// of the known-good entity.
	for !called && !p.w.permits.BreakerOpenSince(time.Now()) && poll.Pause(ctx, beginRetryDelay) {
		o, called = p.fetchKnownGood(ctx, hard, k, credential, false)
	}
	subject := evidenceOf(o)
	switch {
	case !called:
		return faultUnknown
	case subject == goodAnswer:
		return entityFault
	case q.scope != "" && subject == scopeEvidence && o.Class != source.Maintenance:
		return sharedFault
	case q.scope == "" && subject != scopeEvidence:
		return sharedFault
	}
	return faultUnknown
}

// fetchKnownGood fetches a known-good entity as a confirming call or a probe, and stores the
// result. It reports false if there is no outcome, for example because another task of the entity
// is running.
func (p *prober) fetchKnownGood(ctx, hard context.Context, k *knownGood, credential string, probe bool) (source.Outcome, bool) {
	now := time.Now()
	t := &task{
		record: &kgo.Record{}, ledger: newLedger(), taskParams: k.taskParams, stored: k.stored,
		request: schemas.UpdateRequest{Entity: k.entity, Lane: p.w.lane, Reason: schemas.Prefetch, RequestedAt: now},
	}
	t.walk = nil
	t.stored.ETag, t.stored.LastModified = "", "" // send no ETag and no Last-Modified, because the stored ones may be outdated
	t.ledger.add(0, 0, now)
	t.facet, _ = p.w.source.Facet(k.entity.Facet)
	var err error
	if t.plan, err = planCalls(p.w.source, t); err != nil || !p.w.admission.entities.tryEnter(t) {
		return source.Outcome{}, false
	}
	defer p.w.admission.finish(t)
	a := &attempt{w: p.w, t: t, probe: probe, goesFirst: true, credential: credential}
	defer a.expectNoResult()
	f, err := p.w.fetch(ctx, a)
	if err != nil {
		return source.Outcome{}, false
	}
	if a.began.IsZero() {
		a.began = time.Now()
	}
	o := f.outcome
	subject := evidenceOf(o)
	if subject != goodAnswer {
		p.w.health.confirmations.recordFailure(k)
	}
	p.w.announceOpen(p.w.health.record(callEnd{entity: k.entity, credential: a.credentialUsed(), first: a.began, began: a.began}, subject, true, p.w.permits.BreakerOpenSince), k.entity.Facet, o.Err)
	if subject != goodAnswer {
		v := faultUnknown // without a verdict, this call pauses other calls only if its response demands a pause, such as a 429 with Retry-After
		if probe {
			v = sharedFault
		}
		p.w.applyAction(a, o, decide(o, attemptHistory{calls: f.calls, listedCredential: a.usedListedCredential(o)}, noDiagnosis, v))
		p.w.metrics.errors.WithLabelValues(string(o.Class)).Inc()
		if f.calls == 0 { // no call could be sent: wait before the next connection attempt
			poll.Pause(ctx, unreachableDelay)
		}
		return o, true
	}
	p.w.recordSuccess(a)
	if o.Class != source.NotReady {
		p.w.storeResult(hard, a, f)
	}
	return o, true
}

// awaitBreaker gives the task's slot up until the source's breaker closes or the task is chosen as
// the probe. If the task is the probe, awaitBreaker returns its waiter, and the caller must close
// waiter.done after one attempt. It reports false if ctx or the assignment ended.
func (p *prober) awaitBreaker(ctx context.Context, t *task) (probe *breakerWaiter, ok bool) {
	ctx, unbind := t.ledger.bind(ctx, func() bool { return false })
	defer unbind()
	p.w.admission.release(t)
	waiter := p.queue.add()
	select {
	case <-p.w.permits.BreakerClosed():
	case <-waiter.chosen:
	case <-ctx.Done():
	}
	p.queue.remove(waiter)
	p.w.admission.reacquire(t)
	if ctx.Err() != nil {
		close(waiter.done) // if this task was chosen as the probe, run now chooses another record
		return nil, false
	}
	select {
	case <-waiter.chosen:
		return waiter, true
	default:
		close(waiter.done)
		return nil, true
	}
}

// run sends probes while the source's breaker is open: fetches of known-good entities, and
// the oldest records of the queue.
func (p *prober) run(ctx, hard context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		select {
		case <-p.w.permits.UntilBreakerOpens().Done():
			p.probe(ctx, hard, n)
		case <-ctx.Done():
		}
	}
}

func (p *prober) probe(ctx, hard context.Context, n int) {
	if n%firstAttemptEvery != firstAttemptEvery-1 || p.queue.len() == 0 {
		if k := p.w.health.confirmations.nextProbe(); k != nil {
			if _, called := p.fetchKnownGood(ctx, hard, k, "", true); !called {
				poll.Pause(ctx, initialRetryDelay)
			}
			return
		}
	}
	if waiter := p.queue.choose(); waiter != nil {
		select {
		case <-waiter.done:
		case <-ctx.Done():
		}
		return
	}
	select {
	case <-p.queue.added:
	case <-p.w.permits.BreakerClosed():
	case <-ctx.Done():
	}
}
