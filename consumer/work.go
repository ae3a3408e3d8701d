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
	ctx, hard, span := w.follow(ctx, hard, t)
	defer span.End()
	if t.refused != nil {
		if !t.ledger.enter() { // a revocation waits for its letter, or the next owner writes another
			return
		}
		defer t.ledger.leave()
		w.bury(ctx, t, failed{reason: t.reason, err: t.refused, number: t.request.Version})
		return
	}
	if t.satisfiedInTime() { // by the one before it
		w.skip(t, schemas.Satisfied)
		return
	}
	if t.failedInTime() {
		w.skip(t, schemas.Failed) // what that one wrote down ended this one too
		return
	}
	var probe *waiter // it was chosen to probe
	for t.ledger.is(open) {
		a := &attempt{w: w, t: t, probe: probe != nil}
		// What waits leaves its places, and the line for permits, to others.
		wanted, over := t.ledger.within(ctx, a.underWay)
		d := w.try(wanted, hard, a)
		over()
		if a.entered {
			t.ledger.leave()
		}
		if probe != nil {
			close(probe.done)
			probe = nil
		}
		if a.chosen && !d.turn { // its permit came at the same moment
			w.turns.preempted()
		}
		if a.ended {
			w.metrics.took.Observe(time.Since(started).Seconds())
			return
		}
		var ok bool
		switch {
		case d.held:
			probe, ok = w.await(ctx, t)
		case d.turn:
			ok = w.requeue(ctx, t)
		default:
			ok = w.rest(ctx, a, d)
		}
		if !ok {
			return
		}
	}
	if probe != nil {
		close(probe.done)
	}
}

// rest waits between two attempts, during which nothing is under way. It reports false
// if the record is given up.
func (w *Worker) rest(ctx context.Context, a *attempt, d decision) bool {
	ctx, over := a.t.ledger.within(ctx, func() bool { return false })
	defer over()
	return pause(ctx, jittered(d.wait))
}

// try makes one attempt and does what is decided on. Either a.ended is set
// afterwards, or the decision says how to go on.
func (w *Worker) try(ctx, hard context.Context, a *attempt) decision {
	t := a.t
	end := func() decision { a.ended = true; return decision{} }
	admitted, known := w.health.admits(t.request.Facet)
	if known != nil {
		w.tasks.Go(func() { w.fetchKnown(w.life, hard, known, "", false) })
	}
	if !admitted {
		a.mu.Lock()
		entered := a.enter()
		a.mu.Unlock()
		if entered {
			d := decision{next: retry, wait: endpointWait, reason: schemas.Outage}
			w.schedule(ctx, t, d, failed{reason: d.reason, err: errEndpointOpen, number: t.unfetched()})
		}
		return end()
	}
	f, err := w.fetch(ctx, a)
	switch {
	case errors.Is(err, errSkipped):
		w.skip(t, a.skipped)
		return end()
	case errors.Is(err, errOpen):
		return decision{held: true}
	case errors.Is(err, errPreempted):
		return decision{turn: true}
	case errors.Is(err, errUnbegun):
		w.trouble.Say(w.log, "numbering fetches", err)
		return decision{wait: time.Second}
	case err != nil:
		return end() // given up: ctx or the assignment ended
	}
	w.trouble.Over(w.log, "numbering fetches")
	d := w.judge(ctx, hard, a, f)
	why := failed{reason: d.reason, err: f.outcome.Err, number: a.number, outcome: f.outcome}
	if a.number == 0 && d.next == retry { // it could not be sent
		a.mu.Lock()
		entered := a.enter()
		a.mu.Unlock()
		if !entered {
			return end()
		}
		why.number = t.unfetched()
	}
	switch d.next {
	case write:
		if w.record(hard, a, f) != store.Lost {
			return end()
		}
		// What the upstream's "not modified" referred to is gone: ask in full.
		t.stored = store.State{Entity: t.request.Entity}
		if t.plan, err = w.planFor(t); err != nil {
			return end()
		}
		return decision{}
	case retry:
		w.schedule(hard, t, d, why)
		return end()
	case bury:
		if d.doubt {
			return d
		}
		w.bury(hard, t, why)
		return end()
	case again:
	}
	w.metrics.errors.WithLabelValues(string(f.outcome.Class)).Inc()
	return d
}

var errEndpointOpen = errors.New("not sent: the endpoint answers no entity well, while others of the source are well")

// judge decides what follows from an answer, and tells everybody whom it concerns.
func (w *Worker) judge(ctx, hard context.Context, a *attempt, f fetched) decision {
	t, o := a.t, f.outcome
	if a.began.IsZero() {
		a.began = time.Now() // it could not be sent
	}
	if t.first.IsZero() {
		t.first = a.began
	}
	known := o.Class.Failed() && w.health.isKnown(t)
	if o.Class == source.OK || o.Class == source.NotModified {
		w.health.noteKnown(t, true)
	}
	end := ended{entity: t.request.Entity, credential: a.credentialUsed(), first: t.first, began: a.began}
	what := w.health.record(end, evidenceOf(o), known, w.permits.BreakerOpenSince)
	t.ailing = o.Class == source.Transient || o.Class == source.Permanent || o.Class == source.BadContent
	did := tried{f.calls, t.failures, time.Since(t.first), a.named(o), t.doubted}
	v := unknown
	if needsVerdict(o, did, what) {
		v = w.whose(ctx, hard, a, o, what)
		if v == shared && what == nothing && evidenceOf(o) != ofSomeScope {
			what = sourceOpen // or the endpoint's, which a confirming call has opened
		}
	} else if did.tryAgain(o) && what == nothing {
		w.startConfirm(hard, question{entity: t.request.Entity, after: time.Now()})
	}
	d := decide(o, did, what, v)
	if o.Class == source.AuthRefused && d.halt == goOn && a.refuse() {
		d = decision{} // another credential may see the entity
	}
	switch {
	case d.counts && d.next == again:
		t.failures++
	case what.open() || d.halt != goOn: // none of it was the entity's
		t.failures, t.doubted, t.first = 0, false, time.Time{}
	}
	t.doubted = d.doubt
	w.halt(a, o, d)
	if d.halt == goOn && (d.next == write || o.Class == source.NotReady) {
		w.flowed(a)
	}
	w.tellOf(a, f, d, what)
	return d
}

// whose returns whose the failure is.
func (w *Worker) whose(ctx, hard context.Context, a *attempt, o source.Outcome, what diagnosis) verdict {
	q := question{entity: a.t.request.Entity, after: time.Now()}
	if evidenceOf(o) == ofSomeScope {
		c, sent := o.Permit.(*call)
		if what.open() || (sent && c.permit.IsProbe()) {
			return shared // as is known
		}
		q.credential, q.scope = a.credentialUsed(), scopeOf(o.Block, c)
		w.health.refuse(q)
	}
	return w.judgeWhose(ctx, hard, q)
}

// halt has calls pause as was decided.
func (w *Worker) halt(a *attempt, o source.Outcome, d decision) {
	switch d.halt {
	case braked:
		w.permits.BackOff(d.first, a.began)
	case probed:
		w.permits.OpenBreaker(d.first, d.most, a.began)
	case parted:
		o.Permit.(*call).permit.OpenScopeBreaker(d.block, d.first, d.most)
	case goOn:
	}
}

// flowed tells that the attempt's calls were answered well.
func (w *Worker) flowed(a *attempt) {
	w.permits.CloseBreaker(a.began)
	a.well()
	w.health.accepted(a.scopes())
}

// breakerOpened tells of a breaker that has opened.
func (w *Worker) breakerOpened(d diagnosis, facet string, err error) {
	switch d {
	case sourceOpened:
		w.permits.OpenBreaker(outageFirst, outageMost, time.Now())
		w.trouble.Shout(w.log, troubleOutage, err)
	case endpointOpen:
		w.trouble.Shout(w.log, troubleEndpoint(facet), err)
	case nothing, recovered, sourceOpen:
	}
}

// The troubles that concern the whole source.
const (
	troublePause   = "calling the upstream, which asks for a pause"
	troubleOutage  = "calling the upstream, which fails for all entities"
	troubleRefused = "calling the upstream, which refuses the credential"
	troubleReach   = "reaching the upstream"
)

func troubleEndpoint(facet string) string {
	return "calling the endpoint of " + facet + ", which fails for all entities"
}

// tellOf logs what concerns the whole source, once as it begins and once as it is over.
func (w *Worker) tellOf(a *attempt, f fetched, d decision, what diagnosis) {
	o := f.outcome
	switch {
	case d.halt == parted && o.Class == source.AuthRefused:
		w.trouble.Shout(w.log, o.Permit.(*call).troubleOf(d.block), o.Err)
	case d.halt == parted:
		w.trouble.Say(w.log, o.Permit.(*call).troubleOf(d.block), pauseOf(o))
	case o.Class == source.AuthRefused && d.halt == probed:
		w.trouble.Shout(w.log, troubleRefused, o.Err)
	case d.halt == braked || o.Class == source.Maintenance:
		w.trouble.Say(w.log, troublePause, pauseOf(o))
	case what == sourceOpened:
		w.trouble.Shout(w.log, troubleOutage, o.Err)
	case what == endpointOpen:
		w.trouble.Shout(w.log, troubleEndpoint(a.t.request.Facet), o.Err)
	case o.Class == source.Transient && f.calls == 0:
		w.trouble.Say(w.log, troubleReach, o.Err)
	case d.next == write && w.trouble.any():
		over := []string{troublePause, troubleOutage, troubleRefused, troubleReach, troubleEndpoint(a.t.request.Facet)}
		for _, c := range a.calls {
			over = append(over, c.troubleOf(source.BlockEndpoint), c.troubleOf(source.BlockResource), c.troubleOf(source.BlockCredential))
		}
		for _, doing := range over {
			w.trouble.Over(w.log, doing)
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
	content content // if the outcome has content
	room    *room   // of w.bytes, to be given back
}

// fetch makes one attempt: room for the bodies, permits, calls, reading.
func (w *Worker) fetch(ctx context.Context, a *attempt) (fetched, error) {
	t := a.t
	var f fetched
	var err error
	if f.room, err = w.bytes.enter(ctx, t.client, min(w.sizes.expect(t.request.Facet), w.config.Bytes)); err != nil {
		return fetched{}, err
	}
	a.room = f.room
	answers, err := w.source.Fetch(ctx, t.plan, a)
	if err != nil {
		f.room.set(0)
		return fetched{}, err
	}
	f.calls = answers.Calls
	t.calls += f.calls
	f.room.set(int64(answers.Bytes()))
	w.sizes.saw(t.request.Facet, int64(answers.Bytes()))

	// From the compressed body to the compressed payload without a pause: nothing
	// decompressed waits.
	w.cpu <- struct{}{}
	defer func() { <-w.cpu }()
	f.outcome = w.source.Read(answers, time.Now())
	w.metrics.called(f.outcome.Class, a.took)
	w.tellConcealed(ctx, f.outcome.Concealed, t)
	if f.outcome.Class == source.OK && t.facet.Shrunk(len(f.outcome.Content.JSON), t.stored.Size) {
		f.outcome = shrunk(f.outcome, t.stored.Size)
	}
	if f.outcome.Class != source.OK {
		f.room.set(0)
		return f, nil
	}
	f.content = w.contentOf(t, answers, f.outcome.Content)
	f.room.set(int64(f.content.bytes))
	return f, nil
}

// tellConcealed counts the credentials that were found in content. The log has a source's
// first one as a warning: most upstreams that repeat the credential do so in every answer.
func (w *Worker) tellConcealed(ctx context.Context, n int, t *task) {
	if n == 0 {
		return
	}
	w.metrics.concealed.Add(float64(n))
	level := slog.LevelDebug
	if w.concealed.CompareAndSwap(false, true) {
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
