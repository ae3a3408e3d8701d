package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// recordingPermits records for which client each permit was granted.
type recordingPermits struct {
	consumer.Permits
	mu      sync.Mutex
	clients []string
}

func (n *recordingPermits) Acquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	p, err := n.Permits.Acquire(ctx, lane, c)
	if err == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.clients = append(n.clients, c.Client)
	}
	return p, err
}

// limit replaces the limiter of the test with a limiter that allows the given number of calls a
// second.
func (r *rig) limit(calls int) {
	r.Helper()
	quota := limiter.Config{Policies: []limiter.Policy{{Name: "test", Limit: calls, Window: limiter.Window(time.Second)}}}
	l, err := limiter.New("nexon-slow", quota, limiter.Deps{Redis: r.rdb, Process: "test", Log: r.log(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		r.Fatal(err)
	}
	r.limiter = l
	r.run(l.Run)
}

// workRecording starts a HIGH worker with the given number of slots, and records the clients of its
// permits.
func (r *rig) workRecording(slots int, changes ...func(*consumer.Deps)) *recordingPermits {
	r.Helper()
	n := &recordingPermits{Permits: permits{r.limiter}}
	config := consumer.DefaultConfig(schemas.High)
	config.DrainTimeout, config.ConfirmTimeout, config.MaxInFlight = waitTimeout, time.Millisecond, slots
	deps := r.deps()
	deps.Permits = n
	for _, change := range changes {
		change(&deps)
	}
	w, err := consumer.New(config, r.source, schemas.High, deps)
	if err != nil {
		r.Fatal(err)
	}
	r.run(w.Run)
	return n
}

// enqueueAs requests keys for a client whose limit is 400 outstanding requests. It returns the number
// of accepted requests.
func (r *rig) enqueueAs(client string, keys ...string) (published int) {
	r.Helper()
	requests := make([]producer.Request, len(keys))
	for i, key := range keys {
		requests[i] = producer.Request{
			Entity: entity(key), Lane: schemas.High, Reason: schemas.CacheMiss, Client: schemas.ClientID(client),
			Bound: producer.Bound{Outstanding: 400, Window: 2 * time.Second, Lease: time.Hour},
		}
	}
	before := r.produced(schemas.High)
	for i, result := range r.producer.EnqueueAll(r.Context(), requests) {
		switch {
		case result.Outcome == producer.Published:
			published++
		case result.Outcome != producer.TooManyOutstanding:
			r.Fatalf("%s: got %+v, want it published or too many outstanding", keys[i], result)
		}
	}
	r.until("the acknowledgements", func() bool { return r.produced(schemas.High) >= before+int64(published) })
	return published
}

func (r *rig) outstanding(client string) int64 {
	r.Helper()
	n, err := r.rdb.ZCard(r.Context(), "clients:{nexon}:"+schemas.ClientID(client)).Result()
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// One client requests 2,000 keys, and then twenty others request one key each. The limit admits 400
// requests of the first client (two seconds at 200 calls a second). The worker serves the twenty
// others within the first 120 calls. In the order of the topic, their calls would follow after 400
// calls. Without the limit on outstanding requests, their calls would follow after 2,000 calls.
func TestWorker_ServesClientsInTurn(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{64, 512} { // fewer slots than the 400 outstanding requests of client "flood", then more
		t.Run(fmt.Sprint(slots, " slots"), func(t *testing.T) {
			r := newRig(t)
			r.limit(200)
			if got := r.enqueueAs("flood", keysOf("flood", 500)...); got != 400 {
				t.Fatalf("published requests of the flood: got %d, want 400", got)
			}
			readers := map[string]bool{}
			for i := range 20 {
				name := fmt.Sprint("reader", i)
				readers[schemas.ClientID(name)] = true
				if r.enqueueAs(name, name) != 1 {
					t.Fatalf("request of %s: got it rejected, want published", name)
				}
			}
			n := r.workRecording(slots)
			const within = 120
			r.until("so many calls", func() bool {
				n.mu.Lock()
				defer n.mu.Unlock()
				return len(n.clients) >= within
			})
			n.mu.Lock()
			last := 0
			for i, client := range n.clients[:within] {
				if readers[client] {
					delete(readers, client)
					last = i + 1
				}
			}
			n.mu.Unlock()
			if len(readers) > 0 {
				t.Errorf("got %d of 20 readers after the first %d calls, want none", len(readers), within)
			}
			t.Logf("the last reader had call %d", last)
		})
	}
}

// A client that exceeds its limit gets all keys in the end, if it repeats rejected requests. A test
// of package lua shows that a single client can use the source's whole rate.
func TestWorker_ProcessesAllRequestsOfOneClient(t *testing.T) {
	r := newRig(t)
	keys := keysOf("k", 450)
	next := r.enqueueAs("only", keys...)
	if next != 400 {
		t.Errorf("published requests: got %d of 450, want the limit of 400", next)
	}
	n := r.workRecording(512)
	r.until("all calls", func() bool {
		if next < len(keys) && r.outstanding("only") < 400 {
			next += r.enqueueAs("only", keys[next:]...)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.clients) >= len(keys)
	})
	r.until("the counts to end", func() bool { return r.outstanding("only") == 0 })
}

// A request that has ended no longer counts as outstanding for its client, whether it succeeded or
// failed.
func TestWorker_ReleasesCountsForEachEnd(t *testing.T) {
	r := newRig(t)
	r.facet(func(f *source.Facet) { f.Retry = []time.Duration{time.Hour} })
	r.enqueueAs("a", "stored", "notfound-1", "satisfied")
	r.enqueueAs("a", keysOf("k", 5)...)
	r.store("satisfied", time.Now().Add(time.Hour).UnixMilli())
	if got := r.outstanding("a"); got != 8 {
		t.Fatalf("outstanding before the worker: got %d, want 8", got)
	}
	r.workRecording(16)
	r.untilCommitted(schemas.High)
	r.until("the counts to end", func() bool { return r.outstanding("a") == 0 })
}

// The requests of a killed worker count as outstanding until their leases expire, or until the next
// worker has processed the same records.
func TestWorker_KilledLeavesCountsToTheLease(t *testing.T) {
	r := newRig(t)
	r.requests.noDischarge.Store(true)
	r.enqueueAs("a", keysOf("k", 10)...)
	r.workRecording(16)
	r.untilCommitted(schemas.High)
	if got := r.outstanding("a"); got != 10 {
		t.Fatalf("outstanding after a worker that released nothing: got %d, want 10", got)
	}
	ttl, err := r.rdb.PTTL(r.Context(), "clients:{nexon}:"+schemas.ClientID("a")).Result()
	if err != nil || ttl <= 0 || ttl > time.Hour {
		t.Errorf("end of the counts: got %v, %v, want within their lease of an hour", ttl, err)
	}
	r.requests.noDischarge.Store(false)
	r.until("the counts to end once Redis takes them", func() bool { return r.outstanding("a") == 0 })
}

func TestWorker_CountsNoRecordsWithoutClient(t *testing.T) {
	r := newRig(t)
	r.enqueue("internal", schemas.High, schemas.Trigger)
	n := r.workRecording(16)
	r.untilStored("internal")
	// The permits are not counted, because a permit that expires on a slow machine is acquired again.
	if calls := r.upstream.Stats().Arrivals; calls != 1 {
		t.Errorf("calls: got %d, want 1", calls)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.clients) == 0 || slices.ContainsFunc(n.clients, func(client string) bool { return client != "" }) {
		t.Errorf("got permits of %q, want at least one, and each without a client", n.clients)
	}
}
