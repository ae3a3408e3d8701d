package consumer_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// scopedPermits grants permits with credentials, and records which methods of the permits are
// called.
type scopedPermits struct {
	permits
	credentials []string // names of the credentials; each is used until its breaker opens
	probing     bool     // each call is a probe of the source
	mu          sync.Mutex
	reports     []string
}

func (p *scopedPermits) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports = append(p.reports, fmt.Sprintf(format, args...))
}

func (p *scopedPermits) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.reports)
}

func (p *scopedPermits) Acquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	permit, err := p.permits.Acquire(ctx, lane, c)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return scopedPermit{permit, p, c.Document, p.credentials[0]}, nil
}

func (p *scopedPermits) AcquireRetry(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return p.Acquire(ctx, lane, c)
}

func (p *scopedPermits) Reacquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return p.Acquire(ctx, lane, c)
}

func (p *scopedPermits) BackOff(time.Duration, time.Time)                    { p.note("backoff") }
func (p *scopedPermits) OpenBreaker(time.Duration, time.Duration, time.Time) { p.note("probe") }

type scopedPermit struct {
	consumer.Permit
	p                *scopedPermits
	name, credential string
}

func (q scopedPermit) Credential() string { return q.credential }
func (q scopedPermit) ReportEnd(e source.CallResult) {
	q.p.note("%s %s %d", q.name, q.credential, e.Status)
}

func (q scopedPermit) IsSourceProbe() bool {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	return q.p.probing
}

func (q scopedPermit) ReportSuccess() { q.p.note("%s %s succeeds", q.name, q.credential) }

func (q scopedPermit) OpenScopeBreaker(what string, first, most time.Duration) {
	q.p.note("%s %s opens the breaker of its %s for %v to %v", q.name, q.credential, what, first, most)
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	if what == source.BlockCredential {
		q.p.credentials = q.p.credentials[1:]
	}
}

func TestRefusal_OpensScopeBreakerOnceConfirmed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// number of calls that the upstream refuses; 3 means one call of the entity and two calls of
		// known-good entities
		refusals int64
		refuse   func(w http.ResponseWriter)
		want     []string
		probing  bool
	}{
		"a credential": {3, func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) }, []string{
			"basic one 401", "basic one 401", "basic one 401", "basic one opens the breaker of its credential for 5s to 5m0s", "basic two 200", "basic two succeeds",
		}, false},
		"an endpoint, as its answer says": {1, func(w http.ResponseWriter) {
			w.Header().Set("X-Endpoint", "1")
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}, []string{"basic one 429", "basic one opens the breaker of its endpoint for 2s to 2m0s", "basic one 200", "basic one succeeds"}, false},
		"the source": {3, func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) }, []string{
			"basic one 429", "basic one 429", "basic one 429", "backoff", "basic one 200", "basic one succeeds",
		}, false},
		"a call": {1, func(w http.ResponseWriter) { w.WriteHeader(http.StatusConflict) }, []string{
			"basic one 409", "basic one 200", "basic one succeeds",
		}, false},
		"an entity": {1, func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) }, []string{
			"basic one 401", "basic one 200", "basic one succeeds", "basic one 200", "basic one succeeds",
		}, false},
		"the source, by a probe": {1, func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) }, []string{
			"basic one 429", "backoff", "basic one 200", "basic one succeeds",
		}, true},
		"a credential, by a probe of the source": {3, func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) }, []string{
			"basic one 401", "basic one 401", "basic one 401", "basic one opens the breaker of its credential for 5s to 5m0s", "basic two 200", "basic two succeeds",
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var left atomic.Int64
			r.upstreamOf(func(w http.ResponseWriter, _ *http.Request) {
				if left.Add(-1) >= 0 {
					c.refuse(w)
					return
				}
				_, _ = w.Write([]byte(`{"a":1}`))
			}, func(c *source.Config) {
				c.Credentials = []source.Credential{{Name: "one", SecretEnv: "A"}, {Name: "two", SecretEnv: "B"}}
				c.Auth = source.Auth{Header: "X-Key"}
				c.Rules = append([]source.Rule{
					{Status: 409, Class: source.Quota, Block: source.BlockCall},
					{Status: 429, Header: &source.Match{Name: "X-Endpoint"}, Class: source.Quota, Block: source.BlockEndpoint, Wait: 2 * time.Second},
				}, c.Rules...)
			})
			p := &scopedPermits{permits: permits{r.limiter}, credentials: []string{"one", "two"}}
			r.run(r.worker(consumer.DefaultConfig(schemas.High), r.db, p).Run)
			r.enqueueAll([]string{"good", "better"}, schemas.High, schemas.CacheMiss)
			r.untilStored("good", "better")
			r.untilCommitted(schemas.High)
			before := len(p.all())
			p.mu.Lock()
			p.probing = c.probing
			p.mu.Unlock()
			left.Store(c.refusals)
			r.enqueue("a", schemas.High, schemas.CacheMiss)
			r.untilCommitted(schemas.High)
			if r.status("a").State != "" {
				r.enqueue("a", schemas.High, schemas.Retry)
			}
			r.untilStored("a")
			r.untilCommitted(schemas.High)
			got, want := p.all()[before:], slices.Clone(c.want)
			if name == "an entity" && len(got) == len(want) { // the confirming call and the repeated call end at the same time, so their reports have no order
				slices.Sort(got[1:])
				slices.Sort(want[1:])
			}
			if !slices.Equal(got, want) {
				t.Errorf("reports: got %q, want %q", got, want)
			}
		})
	}
}

// Entity "bad" fails, and the worker calls the known-good entity "good" to attribute the failure.
// The upstream refuses this call with a Retry-After. The source must then back off.
func TestConfirmingCall_ObeysRetryAfter(t *testing.T) {
	r := newRig(t)
	var calls atomic.Int64
	r.upstreamOf(func(w http.ResponseWriter, _ *http.Request) {
		switch calls.Add(1) {
		case 2:
			w.WriteHeader(http.StatusUnprocessableEntity)
		case 3:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			_, _ = w.Write([]byte(`{"a":1}`))
		}
	}, func(c *source.Config) {
		c.Credentials = []source.Credential{{Name: "one", SecretEnv: "A"}}
		c.Auth = source.Auth{Header: "X-Key"}
	})
	p := &scopedPermits{permits: permits{r.limiter}, credentials: []string{"one"}}
	r.run(r.worker(consumer.DefaultConfig(schemas.High), r.db, p).Run)
	r.enqueue("good", schemas.High, schemas.CacheMiss)
	r.untilStored("good")
	r.untilCommitted(schemas.High)
	before := len(p.all())
	r.enqueue("bad", schemas.High, schemas.CacheMiss)
	r.untilCommitted(schemas.High)
	if got, want := p.all()[before:], []string{"basic one 422", "basic one 429", "backoff"}; len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
		t.Errorf("reported: got %q, want first %q", got, want)
	}
}

// The confirming call cannot be started at first, for example because its permits expire on a busy
// machine. It is repeated, so that the failure is still attributed to its entity.
func TestConfirmingCall_IsRepeatedUntilStarted(t *testing.T) {
	r := newRig(t)
	r.facet(func(f *source.Facet) { f.Retry = nil })
	r.upstreamOf(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Get("ocid") == "bad" {
			r.requests.noBegin.Store(true)
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		_, _ = w.Write([]byte(`{"a":1}`))
	}, func(*source.Config) {})
	r.work(schemas.High)
	r.enqueue("good", schemas.High, schemas.CacheMiss)
	r.untilStored("good")
	r.untilCommitted(schemas.High)
	r.enqueue("bad", schemas.High, schemas.CacheMiss)
	for n := range int64(2) { // the dead letter follows after the second failed call
		r.until("a confirming call that cannot be started", func() bool { return r.requests.tries.Load() > n })
		r.requests.noBegin.Store(false)
	}
	r.untilCommitted(schemas.High)
	if n := len(r.deadLetters()); n != 1 {
		t.Errorf("dead letters: got %d, want 1", n)
	}
}
