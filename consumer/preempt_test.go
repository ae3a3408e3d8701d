package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// blockedPermits grants no permit for keys that begin with "flood" until `lifted` is closed, as if
// the breaker of their credential was open.
type blockedPermits struct {
	consumer.Permits
	lifted chan struct{}

	mu      sync.Mutex
	waiting int
}

func (s *blockedPermits) Acquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	if strings.HasPrefix(c.Key, "flood") {
		s.add(1)
		defer s.add(-1)
		select {
		case <-s.lifted:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return s.Permits.Acquire(ctx, lane, c)
}

func (s *blockedPermits) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting += n
}

func (s *blockedPermits) waits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// A client whose credential's breaker is open occupies all slots, or all memory, with requests that
// wait for permits. The worker must process another client's request nevertheless.
func TestWorker_PreemptsRequestsUnderOpenBreaker(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		slots, held int   // slots: value of MaxInFlight; held: number of requests of client "flood" that wait for a permit at the same time
		bytes       int64 // value of MaxBodyBytes; at first, 1 MiB is reserved for each entity
	}{
		"that hold all slots":  {32, 32, 1 << 30},
		"that hold all memory": {512, 4, 4 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			const flood = 100
			if got := r.enqueueAs("flood", keysOf("flood", flood)...); got != flood {
				t.Fatalf("published requests of the flood: got %d, want %d", got, flood)
			}
			config := consumer.DefaultConfig(schemas.High)
			config.DrainTimeout, config.MaxInFlight, config.MaxBodyBytes = waitTimeout, test.slots, test.bytes
			deps := r.deps()
			s := &blockedPermits{Permits: deps.Permits, lifted: make(chan struct{})}
			deps.Permits = s
			w, err := consumer.New(config, r.source, schemas.High, deps)
			if err != nil {
				t.Fatal(err)
			}
			r.run(w.Run)
			r.until("the flood's waits", func() bool { return s.waits() == test.held })

			for i := range 3 {
				key := fmt.Sprint("reader", i)
				r.enqueueAs("reader", key)
				r.untilStored(key)
			}
			close(s.lifted)
			r.untilCommitted(schemas.High)
			if got := r.upstream.Stats().Arrivals; got != flood+3 {
				t.Errorf("calls: got %d, want %d, one for each request", got, flood+3)
			}
			r.until("the end of all counts", func() bool { return r.outstanding("flood") == 0 && r.outstanding("reader") == 0 })
			r.until("the return of all slots", func() bool { return r.gauge("records_in_flight") == 0 })
		})
	}
}

// outagePermits behaves like an open breaker of the source until the method `end` is called.
type outagePermits struct {
	consumer.Permits
	healthy context.Context //nolint:containedctx // a context that has already ended
	closed  chan struct{}
	refused atomic.Int64
}

func newOutagePermits(permits consumer.Permits) *outagePermits {
	o := &outagePermits{Permits: permits, closed: make(chan struct{})}
	var open context.CancelFunc
	o.healthy, open = context.WithCancel(context.Background())
	open()
	return o
}

func (o *outagePermits) end() { close(o.closed) }

func (o *outagePermits) over() bool {
	select {
	case <-o.closed:
		return true
	default:
		return false
	}
}

func (o *outagePermits) UntilBreakerOpens() context.Context {
	if o.over() {
		return context.Background()
	}
	return o.healthy
}

func (o *outagePermits) BreakerClosed() <-chan struct{} { return o.closed }

func (o *outagePermits) Acquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	if !o.over() {
		o.refused.Add(1)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return o.Permits.Acquire(ctx, lane, c)
}

// Reacquire, which probes use, also waits until the breaker is closed. So this test sends no probes.
func (o *outagePermits) Reacquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	select {
	case <-o.closed:
		return o.Permits.Reacquire(ctx, lane, c)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// During an outage each request gives its slot to the next request, which then waits for the breaker
// too. When the breaker closes, all of them stop waiting, and none may be lost.
func TestOutage_KeepsRequestsQueuedBehindOthers(t *testing.T) {
	r := newRig(t)
	const n = 60
	r.enqueueAll(keysOf("k", n), schemas.High, schemas.CacheMiss)
	config := consumer.DefaultConfig(schemas.High)
	config.DrainTimeout, config.MaxInFlight = waitTimeout, 4
	deps := r.deps()
	o := newOutagePermits(deps.Permits)
	deps.Permits = o
	w, err := consumer.New(config, r.source, schemas.High, deps)
	if err != nil {
		t.Fatal(err)
	}
	r.run(w.Run)
	r.until("the refusal of each", func() bool { return o.refused.Load() >= n })
	o.end()
	r.untilCommitted(schemas.High)
}
