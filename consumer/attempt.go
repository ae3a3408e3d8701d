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

// attempt is one fetch of a task's entity. It acquires a permit for each upstream call of the
// fetch. Directly before the first permit is spent, the fetch gets its number (its version) from
// Redis.
type attempt struct {
	w      *Worker
	t      *task
	memory *reservation // memory that is reserved for the response bodies
	// probe allows calls while the source's circuit breaker is open. goesFirst makes the attempt
	// get the next permit, before other waiting calls. credential, if not empty, is the only
	// credential that the attempt may use.
	probe, goesFirst bool
	credential       string
	candidates       []string // credentials among which the limiter chose for the last call; guarded by mu

	mu        sync.Mutex
	started   bool // the ledger counts the record as having a call in flight
	sent      int
	expected  bool // the writer expects a result of this attempt
	number    int64
	began     time.Time
	durations []time.Duration // durations of the calls that have ended
	calls     []*call         // the calls that were sent
	skipped   schemas.Verdict
	preempted bool // slotQueue.preempt has chosen this attempt to give its slot up

	ended bool // no further attempt follows: the request was settled, or the record stays uncommitted and is read again
}

var (
	errSkipped     = errors.New("the request no longer needs a fetch")
	errBeginFailed = errors.New("the fetch could not be started")
	errRevoked     = errors.New("the partition was revoked")
	errNoToken     = errors.New("call not sent")
	errBreakerOpen = errors.New("the circuit breaker of the source is open")
)

// beginRetryDelay is the delay before the next attempt after errBeginFailed.
const beginRetryDelay = time.Second

// maxLapsedPermits is how many permits of one call may expire unspent. If more do, Redis answers
// too slowly, and further permits would only use up the quota.
const maxLapsedPermits = 5

// callStarted reports whether the ledger counts the record as having a call in flight.
func (a *attempt) callStarted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.started
}

// markStarted makes the ledger count the record as having a call in flight. It reports false if the
// record's partition was revoked or lost. The caller holds a.mu.
func (a *attempt) markStarted() bool {
	a.started = a.started || a.t.ledger.startCall()
	return a.started
}

// start counts the record in the ledger as a record with a call in flight, although it may send none: a
// revocation then waits until the end of the record is stored. It reports false if the partition of the
// record was revoked or lost.
func (a *attempt) start() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.markStarted()
}

// retryUnsent schedules a retry of a record whose call was not sent. If the record's partition was
// revoked meanwhile, it does nothing, because the next owner of the partition reads the record again.
func (a *attempt) retryUnsent(ctx context.Context, wait time.Duration, why error) {
	a.mu.Lock()
	started, number := a.markStarted(), a.number
	a.mu.Unlock()
	if !started {
		return
	}
	if number == 0 {
		number = a.t.numberWithoutFetch()
	}
	d := decision{next: stepScheduleRetry, wait: wait, reason: schemas.Outage}
	a.w.settler.scheduleRetry(ctx, a.t, d, failure{reason: d.reason, err: why, number: number})
}

// Acquire waits for a permit for the call in the worker's lane. It implements source.Permits.
func (a *attempt) Acquire(ctx context.Context, target source.Call) (source.Permit, error) {
	// gates.wait waits while the database can't store results. In the LOW lane it also waits while
	// LOW yields to HIGH.
	if err := a.w.gates.wait(ctx); err != nil {
		return nil, err
	}
	target.Client = a.t.client
	target.Credentials = a.credentialsFor(target.Credentials)
	if tokens := a.w.gates.tokens; tokens != nil {
		usable, err := tokens.Await(ctx, target.Credentials)
		switch {
		case err != nil && ctx.Err() == nil:
			return nil, fmt.Errorf("%w: %w", errNoToken, err)
		case err != nil:
			return nil, err
		}
		target.Credentials = usable
	}
	if !a.probe && !a.goesFirst {
		a.w.health.awaitConfirm(ctx, target.Facet)
	}
	ctx, span := a.w.tracer.Start(ctx, "wait for a permit")
	acquire := a.w.permits.Acquire
	switch {
	case a.probe || a.goesFirst:
		acquire = a.w.permits.Reacquire
	case a.t.lastFailed:
		acquire = a.w.permits.AcquireRetry
	}
	began := time.Now()
	p, err := a.acquire(ctx, target, acquire)
	span.End()
	if err != nil {
		return nil, err
	}
	return &call{a: a, target: target, permit: p, waited: time.Since(began)}, nil
}

// Grow waits until n more bytes of memory are free, because a body is larger than expected. It
// implements source.MemoryLimiter.
func (a *attempt) Grow(ctx context.Context, n int64) error { return a.memory.grow(ctx, n) }

// acquire waits for a permit. Unless the attempt is a probe, the wait ends when the source's
// breaker opens or the attempt is preempted.
func (a *attempt) acquire(ctx context.Context, target source.Call, acquire func(context.Context, schemas.Lane, source.Call) (Permit, error)) (Permit, error) {
	if a.probe {
		return acquire(ctx, a.w.lane, target)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(a.w.permits.UntilBreakerOpens(), func() { cancel(errBreakerOpen) })()
	if a.preemptible() {
		defer a.watchWait(cancel)()
	}
	return acquire(ctx, a.w.lane, target)
}

// credentialsFor returns the credentials that a call may use. If the attempt may use only one
// credential (a.credential), it returns only that credential. Otherwise it returns the credentials
// that the upstream has not refused for this record, or all credentials if the upstream has refused
// each of them.
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

// recordRefusal records that the upstream refused the last call's credential for this record. It
// reports whether another credential is left to try.
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

// usedListedCredential reports whether the outcome's call used a credential that the configuration
// lists by name.
func (a *attempt) usedListedCredential(o source.Outcome) bool {
	c, sent := o.Permit.(*call)
	return sent && c.Credential() != ""
}

// scopeKeys returns the keys (faultQuery.key) of all scopes that the attempt's calls belong to.
func (a *attempt) scopeKeys() []string {
	keys := []string{a.t.request.Facet + scopeSource}
	for _, c := range a.calls {
		keys = append(keys, a.t.request.Facet+scopeKey(source.BlockCredential, c), a.t.request.Facet+scopeKey(source.BlockEndpoint, c))
	}
	return keys
}

const scopeSource = " source"

// scopeKey returns the key of the scope that is paused if the upstream refuses the call. `block` is
// the kind of scope, one of the source.Block constants.
func scopeKey(block string, c *call) string {
	switch {
	case c == nil:
	case block == source.BlockCredential:
		return " credential " + c.Credential()
	case block == source.BlockEndpoint || block == source.BlockResource:
		return " endpoint " + c.Credential() + " " + c.target.Document
	}
	return scopeSource
}

// recordSuccess reports the success of the fetch to the permits of all its calls.
func (a *attempt) recordSuccess() {
	for _, c := range a.calls {
		c.permit.ReportSuccess()
	}
}

// call is one upstream call of an attempt, with its permit. It implements source.Permit.
type call struct {
	a      *attempt
	target source.Call
	permit Permit
	waited time.Duration // time until the permit was granted
	sent   time.Time
	span   trace.Span
	// took and result are the duration and the result of the finished call. a.mu guards them.
	took   time.Duration
	result source.CallResult
}

// Release returns an unspent permit to the limiter.
func (c *call) Release() { c.permit.Release() }

// Written informs the limiter that the HTTP request was written.
func (c *call) Written() { c.permit.Written() }

// Answered informs the limiter that the first byte of the response has arrived.
func (c *call) Answered() { c.permit.Answered() }

// Credential returns the name of the credential that the limiter chose.
func (c *call) Credential() string { return c.permit.Credential() }

// Finished records the end of the call.
func (c *call) Finished(e source.CallResult) {
	c.permit.ReportEnd(e)
	c.a.w.metrics.calls[e.Outcome()].Inc()
	c.a.mu.Lock()
	c.took, c.result = time.Since(c.sent), e
	c.a.durations = append(c.a.durations, c.took)
	c.a.mu.Unlock()
	endCallSpan(c.span, e.Status, e.Err)
}

// Spend spends the permit directly before the call is sent. Before the first call it also gets the
// fetch's number from Redis, because numbers must rise in the order in which fetches start. If the
// permit expired meanwhile, Spend acquires another permit and tries again.
func (c *call) Spend(ctx context.Context) error {
	for range maxLapsedPermits {
		spent, err := c.spend(ctx)
		if spent {
			c.sent, c.span = time.Now(), c.a.w.startCallSpan(c.a.t)
		}
		if spent || err != nil {
			return err
		}
		began := time.Now()
		p, err := c.a.acquire(ctx, c.target, c.a.w.permits.Reacquire)
		if err != nil {
			return err
		}
		c.permit, c.waited = p, c.waited+time.Since(began)
	}
	return fmt.Errorf("%w: %d permits expired unspent; Redis or this machine is too slow", errBeginFailed, maxLapsedPermits)
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
		if a.sent == 0 { // no call of this record was sent, so a revocation must not wait for the record any longer
			a.started = false
			a.t.ledger.endCall()
			if !a.t.ledger.is(ledgerOpen) {
				return false, errRevoked
			}
		}
		return false, nil
	}
	if a.sent == 0 {
		a.expected = true
		a.w.writer.expected.Add(1)
	}
	a.sent++
	a.calls = append(a.calls, c)
	return true, nil
}

// expectNoResult ends the writer's expectation of a result: the attempt submits its result now, or it
// has none.
func (a *attempt) expectNoResult() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.expected {
		a.expected = false
		a.w.writer.expected.Add(-1)
	}
}

// begin makes the ledger count the record as having a call in flight, and gets the fetch's number
// from Redis.
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
