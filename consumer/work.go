package consumer

import (
	"context"
	"errors"
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
	if t.refused != nil {
		w.bury(ctx, t, letter{reason: t.reason, err: t.refused, number: t.request.Version})
		return
	}
	if t.satisfiedInTime() { // by the one before it
		w.skip(t, schemas.Satisfied)
		return
	}
	failures := 0
	for t.ledger.is(open) {
		a := &attempt{w: w, t: t}
		wait, goOn := w.try(ctx, hard, a, &failures)
		if a.entered {
			t.ledger.leave()
		}
		if !goOn {
			w.metrics.took.Observe(time.Since(started).Seconds())
			return
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// try makes one attempt. It reports whether there must be another one, and after
// which pause; failures counts those that the upstream is to blame for.
func (w *Worker) try(ctx, hard context.Context, a *attempt, failures *int) (wait time.Duration, goOn bool) {
	t := a.t
	f, err := w.fetch(ctx, a)
	switch {
	case errors.Is(err, errSkipped):
		w.skip(t, a.skipped)
		return 0, false
	case errors.Is(err, errUnbegun):
		w.trouble.Say(w.log, "numbering fetches", err)
		return jittered(time.Second), true
	case err != nil:
		return 0, false // given up: ctx or the assignment ended
	}
	w.trouble.Over(w.log, "numbering fetches")
	d := decide(f.outcome, f.calls, *failures)
	if d.brakes {
		w.log.Warn("the upstream asks for a pause", "class", string(f.outcome.Class), "for", d.brake, "err", f.outcome.Err)
		w.permits.Brake(d.brake, a.began)
	}
	if d.counts {
		*failures++
	}
	switch d.next {
	case again:
	case write:
		w.trouble.Over(w.log, "reaching the upstream")
		if w.record(hard, a, f) != store.Lost {
			return 0, false
		}
		// What the upstream's "not modified" referred to is gone: ask in full.
		t.stored = store.State{Entity: t.request.Entity}
		t.plan, err = w.planFor(t)
		return 0, err == nil
	case bury:
		w.bury(hard, t, letter{reason: d.reason, err: f.outcome.Err, number: a.number, outcome: f.outcome})
		return 0, false
	}
	if f.calls == 0 {
		w.trouble.Say(w.log, "reaching the upstream", f.outcome.Err)
	}
	w.metrics.errors.WithLabelValues(string(f.outcome.Class)).Inc()
	return jittered(d.wait), true
}

// fetched is what one attempt came to.
type fetched struct {
	outcome source.Outcome
	calls   int
	content content // if the outcome has content
	held    int64   // of w.bytes, to be given back
}

// fetch makes one attempt: room for the bodies, permits, calls, reading.
func (w *Worker) fetch(ctx context.Context, a *attempt) (fetched, error) {
	t := a.t
	f := fetched{held: min(w.sizes.expect(t.request.Facet), w.config.Bytes)}
	if err := w.bytes.acquire(ctx, f.held); err != nil {
		return fetched{}, err
	}
	hold := func(n int) {
		w.bytes.resize(f.held, int64(n))
		f.held = int64(n)
	}
	answers, err := w.source.Fetch(ctx, t.plan, a)
	if err != nil {
		hold(0)
		return fetched{}, err
	}
	f.calls = answers.Calls
	t.calls += f.calls
	hold(answers.Bytes())
	w.sizes.saw(t.request.Facet, f.held)

	// From the compressed body to the compressed payload without a pause: nothing
	// decompressed waits.
	w.cpu <- struct{}{}
	defer func() { <-w.cpu }()
	f.outcome = w.source.Read(answers, time.Now())
	if f.outcome.Class != source.OK {
		hold(0)
		return f, nil
	}
	f.content = w.contentOf(t, answers, f.outcome.Content)
	hold(f.content.bytes)
	return f, nil
}
