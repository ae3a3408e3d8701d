package outbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/sqlite"
)

// generous is the time limit of each wait in a test.
const generous = 30 * time.Second

// start is the due time of a test's first event.
var start = time.Date(2026, 1, 27, 12, 0, 0, 123000, time.UTC)

// rig has a relay with a database, an embedded broker, and an enqueuer that records requests.
type rig struct {
	*testing.T
	kafka    *kfake.Cluster
	db       *sqlite.Store
	enqueuer *fakeEnqueuer
	log      bytes.Buffer // log output of the rig's own relay
	*Relay
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, enqueuer: &fakeEnqueuer{}}
	var err error
	r.kafka, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, schemas.ChangeTopic("court")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kafka.Close)
	if r.db, err = sqlite.Open(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.db.Close() })
	r.Relay = r.relay(r.db, nil)
	r.Relay.log = slog.New(slog.NewTextHandler(&r.log, nil))
	return r
}

// relay returns another relay on this store, with a Kafka client whose timeouts are 1 s.
func (r *rig) relay(st Store, loop *poll.Poller) *Relay {
	r.Helper()
	return New("court", st, r.enqueuer, r.client(
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordDeliveryTimeout(time.Second), kgo.AllowIdempotentProduceCancellation(),
		kgo.ProduceRequestTimeout(time.Second), kgo.RequestTimeoutOverhead(time.Second),
	), loop, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

func (r *rig) client(opts ...kgo.Opt) *kgo.Client {
	r.Helper()
	c, err := kgo.NewClient(append(opts, kgo.SeedBrokers(r.kafka.ListenAddrs()...), kgo.DisableClientMetrics())...)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(c.Close)
	return c
}

// fakeEnqueuer records requests. It returns the requests for which the function `leaves`
// returns true, as if they could not be enqueued.
type fakeEnqueuer struct {
	mu       sync.Mutex
	leaves   func(prefetched.ClaimedRequest) bool // reports whether Trigger returns the request as not enqueued; nil: Trigger enqueues every request
	requests []prefetched.ClaimedRequest
	calls    int
}

func (d *fakeEnqueuer) Trigger(_ context.Context, requests []prefetched.ClaimedRequest) (left []prefetched.ClaimedRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	for _, a := range requests {
		if d.leaves != nil && d.leaves(a) {
			left = append(left, a)
			continue
		}
		d.requests = append(d.requests, a)
	}
	return left
}

// takeRequested returns facet/key of the entities that were requested since the last call of takeRequested, sorted.
func (d *fakeEnqueuer) takeRequested() (keys []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.requests {
		keys = append(keys, a.Entity.Facet+"/"+a.Entity.Key)
	}
	d.requests = nil
	slices.Sort(keys)
	return keys
}

func (r *rig) wantRequested(want ...string) {
	r.Helper()
	if got := r.enqueuer.takeRequested(); !slices.Equal(got, want) {
		r.Errorf("requested %q, want %q", got, want)
	}
}

func progress(key string) schemas.Entity {
	return schemas.Entity{Source: "court", Facet: "progress", Key: key}
}

func general(key string) schemas.Entity {
	return schemas.Entity{Source: "court", Facet: "general", Key: key}
}

// triggering returns events that trigger the general facet.
func triggering(backoff time.Duration, params map[string]string) store.OutboxEvents {
	return store.OutboxEvents{Triggers: []store.Trigger{{Facet: "general", Backoff: backoff, Params: params}}}
}

func hashOf(text string) store.Hash { return sha256.Sum256([]byte(text)) }

// write stores content that was fetched at the time `at`. The version of the snapshot is this time
// in microseconds.
func (r *rig) write(e schemas.Entity, at time.Time, text string, events store.OutboxEvents) {
	r.Helper()
	results, err := r.db.Write(r.Context(), []store.Write{{
		Entity: e, Version: at.UnixMicro(), CheckedAt: at, Hash: hashOf(text), ExtractVersion: 1, Outbox: events,
		Payload: func() (store.Payload, error) { return store.Encode([]byte(`{"d":"` + text + `"}`)), nil },
	}})
	if err != nil || results[0] != store.Changed {
		r.Fatal(results, err)
	}
}

// deliverAt delivers the events that are due at the time now, and returns the next due time.
func (r *rig) deliverAt(now time.Time) time.Time {
	r.Helper()
	next, err := r.deliverDue(r.Context(), now)
	if err != nil {
		r.Fatal(err)
	}
	return next
}

// wantLeft fails the test unless exactly `want` events are stored, claimed or not.
func (r *rig) wantLeft(want int) {
	r.Helper()
	all, err := r.db.ClaimOutboxEvents(r.Context(), "court", start.Add(1000*time.Hour), 0, 10_000)
	if err != nil || len(all) != want {
		r.Fatalf("stored events: got %d, %v; want %d", len(all), err, want)
	}
}

// published waits for n records on the change topic and returns them. It fails the test if there
// are more.
func (r *rig) published(n int) []*kgo.Record {
	r.Helper()
	if ends := r.ends(); ends > n {
		r.Fatalf("published: got %d changes, want %d", ends, n)
	}
	c := r.client(kgo.ConsumeTopics(schemas.ChangeTopic("court")), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer c.Close()
	ctx, cancel := context.WithTimeout(r.Context(), generous)
	defer cancel()
	var all []*kgo.Record
	for len(all) < n {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			r.Fatalf("published: got %d of %d changes: %v", len(all), n, err)
		}
		all = append(all, fetches.Records()...)
	}
	return all
}

func (r *rig) ends() (n int) {
	r.Helper()
	ends, err := kadm.NewClient(r.client()).ListEndOffsets(r.Context(), schemas.ChangeTopic("court"))
	if err != nil {
		r.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	return n
}

// refuse makes the broker reject produced records with this error code, until accept is called.
func (r *rig) refuse(code int16) (accept func()) {
	done := make(chan struct{})
	r.kafka.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		select {
		case <-done:
			return nil, nil, false
		default:
		}
		r.kafka.KeepControl()
		return servicetest.RefuseProduce(req.(*kmsg.ProduceRequest), code), nil, true
	})
	return sync.OnceFunc(func() { close(done) })
}
