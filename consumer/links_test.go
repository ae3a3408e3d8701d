package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/outbox"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/retries"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/links"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// linkedUpstream serves documents that contain links to other documents. It counts the calls for each
// document.
type linkedUpstream struct {
	mu    sync.Mutex
	links map[string][]string // keys of the links in each document; a document without an entry does not exist
	busy  map[string]bool     // documents whose calls fail with 503
	calls map[string]int
}

func (u *linkedUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	key := strings.TrimPrefix(r.URL.Path, "/ui/")
	u.calls[key]++
	targets, exists := u.links[key]
	switch {
	case u.busy[key]:
		w.WriteHeader(http.StatusServiceUnavailable)
	case !exists:
		w.WriteHeader(http.StatusNotFound)
	default:
		w.Header().Set("Content-Type", "application/xml")
		_, _ = fmt.Fprintf(w, `<a key=%q>`, key)
		for _, link := range targets {
			_, _ = fmt.Fprintf(w, `<b src="/ui/%s"/>`, link)
		}
		_, _ = fmt.Fprint(w, `</a>`)
	}
}

// change calls `do`, which can change the upstream while the upstream serves calls.
func (u *linkedUpstream) change(do func(*linkedUpstream)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	do(u)
}

// linkRig is a test setup (rig) whose facet "character" is raw. Its content has links to entities of
// the same facet.
type linkRig struct {
	*rig
	docs *linkedUpstream
}

func newLinkRig(t *testing.T, docs map[string][]string, change func(*source.Facet)) *linkRig {
	r := &linkRig{newRig(t), &linkedUpstream{links: docs, calls: map[string]int{}, busy: map[string]bool{}}}
	r.upstreamOf(r.docs.ServeHTTP, func(c *source.Config) {
		c.Rules = []source.Rule{{Status: 404, Class: source.NotFound}}
		f := source.DefaultFacet()
		f.KeyPattern = `[a-z0-9/.]{1,60}`
		f.Documents = map[string]source.Document{"doc": {Path: "/ui/{+key}"}}
		f.Raw, f.Immutable = &source.Raw{MediaType: "application/xml", WellFormed: "xml"}, true
		f.Links = &links.Config{Match: `src="/ui/([^"]*)"`, Facet: "character"}
		if change != nil {
			change(&f)
		}
		c.Facets = map[string]source.Facet{"character": f}
	})
	return r
}

// relay returns an outbox relay that enqueues requests as package app does.
func (r *linkRig) relay() *outbox.Relay {
	r.Helper()
	poller := poll.New(outbox.Channel("nexon"), r.rdb, slog.New(slog.DiscardHandler), outbox.ClaimsFail)
	relay := outbox.New("nexon", r.db, linkEnqueuer{r.producer}, r.client(), poller, r.log(), prometheus.NewRegistry())
	r.run(relay.Run)
	return relay
}

// follow starts workers of both lanes and a relay.
func (r *linkRig) follow() {
	r.Helper()
	relay := r.relay()
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		deps := r.deps()
		deps.Outbox = relay
		w, err := consumer.New(consumer.DefaultConfig(lane), r.source, lane, deps)
		if err != nil {
			r.Fatal(err)
		}
		r.run(w.Run)
	}
}

type linkEnqueuer struct{ *producer.Producer }

func (d linkEnqueuer) Trigger(ctx context.Context, claimed []prefetched.ClaimedRequest) (left []prefetched.ClaimedRequest) {
	requests := make([]producer.Request, len(claimed))
	for i, a := range claimed {
		requests[i] = producer.Request{Entity: a.Entity, Lane: schemas.Low, Reason: schemas.Link, Floor: a.Version, Depth: a.Depth}
	}
	for i, result := range d.EnqueueAllAndWait(ctx, requests) {
		if !result.Queued() && result.Outcome != producer.Held {
			left = append(left, claimed[i])
		}
	}
	return left
}

// untilIdle waits until each request is settled and each outbox event is delivered.
func (r *linkRig) untilIdle() {
	r.Helper()
	r.until("the end of all requests and events", func() bool {
		// A relay deletes an event only after it has enqueued the event's requests. So the outbox is
		// checked first, and then the requests.
		for range 2 {
			next, err := r.db.NextOutboxTime(r.Context(), "nexon")
			if err != nil {
				r.Fatal(err)
			}
			if !next.IsZero() || r.lag(schemas.High)+r.lag(schemas.Low) > 0 {
				return false
			}
		}
		return true
	})
}

func (r *linkRig) wantCalls(want map[string]int) {
	r.Helper()
	r.docs.change(func(u *linkedUpstream) {
		if !maps.Equal(u.calls, want) {
			r.Errorf("calls: got %v, want %v", u.calls, want)
		}
	})
}

// wantFound fails the test unless the last HIGH worker has counted these numbers of links, by outcome.
func (r *linkRig) wantFound(followed, invalid, excess, tooDeep int) {
	r.Helper()
	want := fmt.Sprintf(`# HELP links_found_total Different keys in changed raw content, by outcome.
# TYPE links_found_total counter
links_found_total{outcome="excess",priority="HIGH",source="nexon"} %d
links_found_total{outcome="followed",priority="HIGH",source="nexon"} %d
links_found_total{outcome="invalid",priority="HIGH",source="nexon"} %d
links_found_total{outcome="too_deep",priority="HIGH",source="nexon"} %d
`, excess, followed, invalid, tooDeep)
	if err := testutil.GatherAndCompare(r.metrics, strings.NewReader(want), "links_found_total"); err != nil {
		r.Error(err)
	}
}

func TestLinks_FollowedUpToMaxDepth(t *testing.T) {
	r := newLinkRig(t, map[string][]string{"a": {"b", "x"}, "b": {"c"}, "c": {"d"}, "d": {"e"}, "e": {}}, func(f *source.Facet) { f.Links.MaxDepth = 2 })
	r.follow()
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilStored("a", "b", "c")
	r.untilIdle()
	r.wantCalls(map[string]int{"a": 1, "b": 1, "c": 1, "x": 1})
	if s, found := r.snapshot("x"); !found || !s.NotFound {
		t.Errorf("link to a document that does not exist: got %+v, want its not-found result", s.State)
	}
	if n := len(r.deadLetters()); n != 0 {
		t.Errorf("dead letters: got %d, want 0", n)
	}
	// A read requests the document at which the links have ended. This request does not come from a
	// link, so its depth is 0 and its links are followed.
	r.enqueue("d", schemas.High, schemas.CacheMiss)
	r.untilStored("d", "e")
	r.untilIdle()
	r.wantCalls(map[string]int{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "x": 1})
}

// Documents that link to each other in a circle are fetched only once each, although the maximum depth
// would allow three fetches of each document.
func TestLinks_CircleEnds(t *testing.T) {
	docs := map[string][]string{"a": {"b", "a"}, "b": {"c", "b"}, "c": {"a"}}
	r := newLinkRig(t, docs, func(f *source.Facet) { f.Links.MaxDepth = 10 })
	r.follow()
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilStored("a", "b", "c")
	r.untilIdle()
	r.wantCalls(map[string]int{"a": 1, "b": 1, "c": 1})
	// Unchanged content is not searched for links. If a document has changed, its links to documents
	// with fresh snapshots are skipped.
	r.docs.change(func(u *linkedUpstream) { u.links["b"] = []string{"a", "c", "d"}; u.links["d"] = nil })
	for _, key := range []string{"a", "b"} {
		before, _ := r.snapshot(key)
		r.enqueue(key, schemas.High, schemas.UserRequest)
		r.until("a refresh of "+key, func() bool { s, _ := r.snapshot(key); return s.Version > before.Version })
	}
	r.untilStored("d")
	r.untilIdle()
	r.wantCalls(map[string]int{"a": 2, "b": 2, "c": 1, "d": 1})
}

func TestLinks_StoredOnlyWithChangedContent(t *testing.T) {
	keys := []string{"b", "../etc/passwd", "b", "//evil.example/a", "a", "B", "c", "d", "e"}
	r := newLinkRig(t, map[string][]string{"a": keys}, func(f *source.Facet) { f.Links.MaxKeys = 2 })
	r.work(schemas.High)
	link := func(key string, depth int) store.Trigger {
		return store.Trigger{Facet: "character", Key: key, Depth: depth, Backoff: source.ImmutableFor}
	}
	check := func(what string, want ...store.Trigger) {
		t.Helper()
		var got []store.Trigger
		for _, e := range r.outboxEvents() {
			got = append(got, e.Triggers...)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("links after %s: got %+v, want %+v", what, got, want)
		}
	}
	r.checked("a", nil)
	stored := []store.Trigger{link("b", 1), link("c", 1)}
	check("the first fetch", stored...)
	r.wantFound(2, 3, 2, 0)
	r.checked("a", nil)
	check("an unchanged fetch", stored...)
	r.docs.change(func(u *linkedUpstream) { u.links["a"] = []string{"f"} })
	r.checked("a", nil)
	stored = append(stored, link("f", 1))
	check("a changed fetch", stored...)
	r.wantFound(3, 3, 2, 0)

	// The depth of a request is one lower than the depth of its links. At the maximum depth no link is
	// stored.
	for _, depth := range []int{2, 3, schemas.MaxLinkDepth} {
		text := fmt.Sprint("g", depth)
		r.docs.change(func(u *linkedUpstream) { u.links["a"] = []string{text} })
		before, _ := r.snapshot("a")
		request := requestFor("a")
		request.Reason, request.Depth = schemas.UserRequest, depth
		if result := r.producer.Enqueue(t.Context(), request); !result.Queued() {
			t.Fatalf("enqueue: got %+v, want it queued", result)
		}
		r.until("the check", func() bool { s, _ := r.snapshot("a"); return s.Version > before.Version })
		r.untilCommitted(schemas.High)
		if depth < 3 {
			stored = append(stored, link(text, depth+1))
		}
	}
	check("requests with a depth", stored...)
	r.wantFound(4, 3, 2, 2)
}

// deletingStore deletes the snapshot of an entity directly before the first write of the entity.
type deletingStore struct {
	*faultyStore
	once sync.Once
}

func (d *deletingStore) Write(ctx context.Context, writes []store.Write) ([]store.Result, error) {
	var err error
	d.once.Do(func() { err = d.Delete(ctx, writes[0].Entity) })
	if err != nil {
		return nil, err
	}
	return d.faultyStore.Write(ctx, writes)
}

// The worker finds that the fetched content is stored already. Then the snapshot is deleted before the
// worker writes. So the content counts as new, and its links must be stored.
func TestLinks_SnapshotDeletedDuringTheFetch(t *testing.T) {
	r := newLinkRig(t, map[string][]string{"a": {"b"}}, nil)
	stop := r.work(schemas.High)
	r.checked("a", nil)
	stop()
	before := len(r.outboxEvents())
	r.run(r.worker(consumer.DefaultConfig(schemas.High), &deletingStore{faultyStore: r.db}, permits{r.limiter}).Run)
	r.checked("a", nil)
	if events := r.outboxEvents(); len(events) != before+1 || len(events[before].Triggers) != 1 {
		t.Errorf("events: got %+v, want one more, with one link", events)
	}
}

// The fetch of a request that came from a link fails. Its retry must have the same depth as the
// request. Otherwise each failure would let links be followed further.
func TestLinks_RetryKeepsTheDepth(t *testing.T) {
	r := newLinkRig(t, map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {}}, func(f *source.Facet) {
		f.Links.MaxDepth = 2
		f.Retry = []time.Duration{time.Millisecond}
	})
	r.docs.busy["c"] = true
	r.realRetries = retries.New("nexon", r.db, retryEnqueuer{r.producer}, r.rdb, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	r.follow()
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.until("a retry of c", func() bool { return r.status("c").State == store.Retrying })
	if got := r.status("c").Depth; got != 2 {
		t.Errorf("depth of the retry: got %d, want 2", got)
	}
	r.docs.change(func(u *linkedUpstream) { u.busy["c"] = false })
	r.run(r.realRetries.Run)
	r.until("c", func() bool { s, ok := r.snapshot("c"); return ok && s.HasContent() })
	r.untilIdle()
	r.docs.change(func(u *linkedUpstream) {
		if u.calls["d"] != 0 {
			t.Errorf("calls of d: got %d, want 0: it is 3 links away", u.calls["d"])
		}
	})
}

// The worker is killed directly after it has stored content with links, and before it has notified the
// relay. Another process must request the links.
func TestLinks_SurviveAKillAfterTheWrite(t *testing.T) {
	r := newLinkRig(t, map[string][]string{"a": {"b", "c"}, "b": {}, "c": {}}, nil)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	var killed atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dying := dyingStore{r.db, func() {
		killed.Store(true)
		r.db.down.Store(true)
		r.requests.noSettle.Store(true)
		cancel()
	}}
	config := consumer.DefaultConfig(schemas.High)
	config.DrainTimeout = 10 * time.Millisecond
	_ = r.worker(config, dying, permits{r.limiter}).Run(ctx) // Run returns an error, because records were in flight
	if !killed.Load() {
		t.Fatal("the worker ended before it was killed")
	}
	r.db.down.Store(false)
	r.requests.noSettle.Store(false)
	if next, err := r.db.NextOutboxTime(t.Context(), "nexon"); err != nil || next.IsZero() {
		t.Fatalf("event after the kill: got due time %v, %v, want an undelivered event", next, err)
	}
	r.follow()
	r.untilStored("b", "c")
	r.untilIdle()
	r.docs.change(func(u *linkedUpstream) {
		if got := slices.Sorted(maps.Keys(u.calls)); !slices.Equal(got, []string{"a", "b", "c"}) || u.calls["b"] != 1 || u.calls["c"] != 1 {
			t.Errorf("calls: got %v, want one call of b and of c", u.calls)
		}
	})
}

// dyingStore simulates a kill of its worker: it stores one write, and the worker does nothing
// afterwards.
type dyingStore struct {
	*faultyStore
	kill func()
}

func (d dyingStore) Write(ctx context.Context, writes []store.Write) ([]store.Result, error) {
	defer d.kill()
	return d.faultyStore.Write(ctx, writes)
}
