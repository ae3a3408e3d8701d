package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
		w.log.Warn("held until Redis answers", "entity", t.request.Entity.String(), "err", err)
		return jittered(time.Second), true
	case err != nil:
		return 0, false // given up: ctx or the assignment ended
	}
	d := decide(f.outcome, f.calls, *failures)
	if d.brake > 0 {
		w.log.Warn("the upstream asks for a pause", "class", string(f.outcome.Class), "for", d.brake, "err", f.outcome.Err)
		w.permits.Brake(d.brake)
	}
	if d.counts {
		*failures++
	}
	switch d.next {
	case again:
	case write:
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
	w.metrics.errors.WithLabelValues(string(f.outcome.Class)).Inc()
	return jittered(d.wait), true
}

// fetched is what one attempt came to.
type fetched struct {
	outcome source.Outcome
	answers *source.Answers
	calls   int
	held    int64 // bytes of w.bytes to be released
}

// fetch makes one attempt: room for the bodies, permits, calls, reading.
func (w *Worker) fetch(ctx context.Context, a *attempt) (fetched, error) {
	t := a.t
	f := fetched{held: min(w.sizes.expect(t.request.Facet), w.config.Bytes)}
	if err := w.bytes.Acquire(ctx, f.held); err != nil {
		return fetched{}, context.Cause(ctx)
	}
	var err error
	if f.answers, err = w.source.Fetch(ctx, t.plan, a); err != nil {
		w.bytes.Release(f.held)
		return fetched{}, err
	}
	f.calls = f.answers.Calls
	t.calls += f.calls
	w.sizes.saw(t.request.Facet, int64(f.answers.Bytes()))
	w.cpu <- struct{}{}
	f.outcome = w.source.Read(f.answers, time.Now())
	<-w.cpu
	if f.outcome.Class != source.OK {
		w.bytes.Release(f.held)
		f.held = 0
	}
	return f, nil
}

// attempt is one fetch of a task: it gives the source its permits, and has the
// fetch numbered when the first is spent.
type attempt struct {
	w *Worker
	t *task

	mu      sync.Mutex
	entered bool // into the ledger, as a record whose call is sent
	sent    int
	number  int64
	began   time.Time
	skipped schemas.Verdict
}

var (
	errSkipped = errors.New("the request needs no fetch any more")
	errUnbegun = errors.New("the fetch could not be numbered")
	errRevoked = errors.New("the partition belongs to another member now")
)

// Acquire waits for a permit in the worker's lane.
func (a *attempt) Acquire(ctx context.Context) (source.Permit, error) {
	p, err := a.w.permits.Acquire(ctx, a.w.lane)
	if err != nil {
		return nil, err
	}
	return &call{a, p}, nil
}

// call is one call's permit.
type call struct {
	a      *attempt
	permit Permit
}

func (c *call) Release() { c.permit.Release() }

// Spend begins the fetch with the permit in hand, directly before the first call
// is sent, and again if the permit lapsed over it: numbers must rise in the
// order in which calls start.
func (c *call) Spend(ctx context.Context) error {
	for {
		spent, err := c.spend(ctx)
		if spent || err != nil {
			return err
		}
		if c.permit, err = c.a.w.permits.AcquireAgain(ctx, c.a.w.lane); err != nil {
			c.permit = nothing{}
			return err
		}
	}
}

func (c *call) spend(ctx context.Context) (bool, error) {
	a, t := c.a, c.a.t
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sent == 0 {
		if err := a.begin(ctx); err != nil {
			return false, err
		}
		if !a.entered && !t.ledger.enter() {
			return false, errRevoked
		}
		a.entered = true
	}
	if !c.permit.Spend() {
		return false, nil
	}
	a.sent++
	return true, nil
}

func (a *attempt) begin(ctx context.Context) error {
	a.began = time.Now()
	verdict, number, err := a.w.requests.Begin(ctx, a.t.request, a.t.stored.Version)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errUnbegun, err)
	case verdict != schemas.Proceed:
		a.skipped = verdict
		return errSkipped
	}
	a.number = number
	return nil
}

// nothing stands where a call has no permit to give back.
type nothing struct{}

func (nothing) Spend() bool { return false }
func (nothing) Release()    {}
