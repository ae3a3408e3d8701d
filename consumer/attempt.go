package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// attempt is one fetch of a task: it gives the source its permits, and has the
// fetch numbered when the first is spent.
type attempt struct {
	w      *Worker
	t      *task
	memory *reservation // for the bodies
	// probe: it may call while the source's breaker is open; front: it goes before the
	// others that wait; credential, if not empty: it goes with this one.
	probe, goesFirst bool
	credential       string
	candidates       []string // credentials that the last call could go with; guarded by mu

	mu        sync.Mutex
	started   bool // into the ledger, as a record whose call is sent
	sent      int
	number    int64
	began     time.Time
	durations []time.Duration // each call that was finished
	calls     []*call         // those that were sent
	skipped   schemas.Verdict
	preempted bool // by turns.preempt

	ended bool // the record has come to its end or was given up
}

var (
	errSkipped     = errors.New("the request needs no fetch any more")
	errBeginFailed = errors.New("the fetch could not be begun")
	errRevoked     = errors.New("the partition belongs to another member now")
	errBreakerOpen = errors.New("the source's breaker is open")
)

// maxLapsedPermits is how many permits may lapse under one call. Where more do, Redis
// answers too slowly for any to be spent, and asking on would burn the budget.
const maxLapsedPermits = 5

// callStarted reports whether the record counts as one whose call is sent.
func (a *attempt) callStarted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.started
}

// markStarted counts the record as one whose call is sent, with a.mu held; false: its
// assignment has ended.
func (a *attempt) markStarted() bool {
	a.started = a.started || a.t.ledger.startCall()
	return a.started
}

// Acquire waits for a permit in the worker's lane.
func (a *attempt) Acquire(ctx context.Context, what source.Call) (source.Permit, error) {
	// What can't be written need not be fetched, and LOW stands back for HIGH.
	if err := a.w.gates.wait(ctx); err != nil {
		return nil, err
	}
	what.Client = a.t.client
	what.Credentials = a.credentialsFor(what.Credentials)
	if !a.probe && !a.goesFirst {
		a.w.health.awaitConfirm(ctx, what.Facet)
	}
	ctx, span := a.w.tracer.Start(ctx, "wait for a permit")
	acquire := a.w.permits.Acquire
	switch {
	case a.probe || a.goesFirst:
		acquire = a.w.permits.Reacquire
	case a.t.lastFailed:
		acquire = a.w.permits.AcquireRetry
	}
	p, err := a.acquire(ctx, what, acquire)
	span.End()
	if err != nil {
		return nil, err
	}
	return &call{a: a, what: what, permit: p}, nil
}

// Grow waits for memory for a body that is larger than expected (source.Memory).
func (a *attempt) Grow(ctx context.Context, n int64) error { return a.memory.grow(ctx, n) }

// acquire waits for a permit until the source's breaker opens, since then only probes wait,
// or until the attempt is preempted.
func (a *attempt) acquire(ctx context.Context, what source.Call, acquire func(context.Context, schemas.Lane, source.Call) (Permit, error)) (Permit, error) {
	if a.probe {
		return acquire(ctx, a.w.lane, what)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(a.w.permits.UntilBreakerOpens(), func() { cancel(errBreakerOpen) })()
	if a.preemptible() {
		defer a.watchWait(cancel)()
	}
	return acquire(ctx, a.w.lane, what)
}

// credentialsFor returns the credentials that a call may go with: the attempt's own, or those
// that have not been refused for this record, if there is one.
func (a *attempt) credentialsFor(all []string) []string {
	candidates := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(a.t.refusedBy, name) })
	switch {
	case slices.Contains(all, a.credential):
		candidates = []string{a.credential}
	case len(candidates) == 0:
		candidates = all
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.candidates = candidates
	return candidates
}

// recordRefusal notes that the last call's credential was refused for this record. It reports
// whether the record can be tried with another one.
func (a *attempt) recordRefusal() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	used := a.credentialUsed()
	a.t.refusedBy = append(a.t.refusedBy, used)
	return slices.ContainsFunc(a.candidates, func(name string) bool { return name != used })
}

// credentialUsed returns the name of the credential of the last call.
func (a *attempt) credentialUsed() string {
	if len(a.calls) == 0 {
		return ""
	}
	return a.calls[len(a.calls)-1].Credential()
}

// usedListedCredential reports whether the call that decided went with a credential that is listed by a name.
func (a *attempt) usedListedCredential(o source.Outcome) bool {
	c, sent := o.Permit.(*call)
	return sent && c.Credential() != ""
}

// scopeKeys returns what the attempt's calls were charged to, as questions name it.
func (a *attempt) scopeKeys() []string {
	keys := []string{a.t.request.Facet + scopeSource}
	for _, c := range a.calls {
		keys = append(keys, a.t.request.Facet+scopeKey(source.BlockCredential, c), a.t.request.Facet+scopeKey(source.BlockEndpoint, c))
	}
	return keys
}

const scopeSource = " source"

// scopeKey names what a refusal of the call may stop.
func scopeKey(block string, c *call) string {
	switch {
	case c == nil:
	case block == source.BlockCredential:
		return " credential " + c.Credential()
	case block == source.BlockEndpoint || block == source.BlockResource:
		return " endpoint " + c.Credential() + " " + c.what.Document
	}
	return scopeSource
}

// recordSuccess tells of each call that it was answered well. The fetch is over.
func (a *attempt) recordSuccess() {
	for _, c := range a.calls {
		c.permit.ReportSuccess()
	}
}

// call is one call's permit.
type call struct {
	a      *attempt
	what   source.Call
	permit Permit
	sent   time.Time
	span   trace.Span
}

// condition names the part of the source that calls like this one are.
func (c *call) condition(block string) string {
	switch block {
	case source.BlockCredential:
		return fmt.Sprintf("calling the upstream with the credential %s, which it refuses", c.Credential())
	case source.BlockResource:
		return fmt.Sprintf("calling what is charged as %s/%s is, of which the upstream asks for a pause", c.what.Facet, c.what.Document)
	}
	return fmt.Sprintf("calling the endpoint of %s/%s, of which the upstream asks for a pause", c.what.Facet, c.what.Document)
}

// Release hands an unspent permit on.
func (c *call) Release() { c.permit.Release() }

// Written and Answered tell the limiter how the call went its way.
func (c *call) Written() { c.permit.Written() }

// Answered tells the limiter that the answer has begun.
func (c *call) Answered() { c.permit.Answered() }

// Credential returns the name of the credential that the limiter has chosen.
func (c *call) Credential() string { return c.permit.Credential() }

// Finished notes how the call went.
func (c *call) Finished(e source.CallResult) {
	c.permit.ReportEnd(e)
	c.a.mu.Lock()
	c.a.durations = append(c.a.durations, time.Since(c.sent))
	c.a.mu.Unlock()
	endCallSpan(c.span, e.Status, e.Err)
}

// Spend begins the fetch with the permit in hand, directly before the first call
// is sent, and again if the permit lapsed over it: numbers must rise in the
// order in which calls start.
func (c *call) Spend(ctx context.Context) error {
	for range maxLapsedPermits {
		spent, err := c.spend(ctx)
		if spent {
			c.sent, c.span = time.Now(), c.a.w.startCallSpan(c.a.t)
		}
		if spent || err != nil {
			return err
		}
		p, err := c.a.acquire(ctx, c.what, c.a.w.permits.Reacquire)
		if err != nil {
			return err
		}
		c.permit = p
	}
	return fmt.Errorf("%w: %d permits lapsed before they could be spent; Redis or this machine is too slow", errBeginFailed, maxLapsedPermits)
}

func (c *call) spend(ctx context.Context) (bool, error) {
	a := c.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sent == 0 {
		if err := a.begin(ctx); err != nil {
			return false, err
		}
	}
	if !c.permit.Spend() {
		if a.sent == 0 { // while it waits for another, a revocation need not wait for it
			a.started = false
			a.t.ledger.endCall()
			if !a.t.ledger.is(ledgerOpen) {
				return false, errRevoked
			}
		}
		return false, nil
	}
	a.sent++
	a.calls = append(a.calls, c)
	return true, nil
}

// begin enters the record into its ledger as one whose call is sent, and has the
// fetch numbered.
func (a *attempt) begin(ctx context.Context) error {
	if !a.markStarted() {
		return errRevoked
	}
	a.began = time.Now()
	verdict, number, err := a.w.requests.Begin(ctx, a.t.request, a.t.stored.Version)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("%w: %w", errBeginFailed, err)
	case verdict != schemas.Proceed:
		a.skipped = verdict
		return errSkipped
	}
	a.number = number
	return nil
}
