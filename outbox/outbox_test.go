package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

var publishChange = store.OutboxEvents{PublishChange: true}

func TestRelay_PublishesChangeAndRequestsTrigger(t *testing.T) {
	r := newRig(t)
	params := map[string]string{"encCsNo": "가"}
	both := triggering(0, params)
	both.PublishChange = true
	r.write(general("2024가단1"), start.Add(-time.Hour), "g", store.OutboxEvents{})
	r.write(progress("2024가단1"), start, "x", both)
	r.write(progress("2024가단1"), start.Add(time.Second), "y", publishChange)
	r.write(progress("quiet"), start, "x", store.OutboxEvents{})
	if next := r.deliverAt(start.Add(time.Second)); !next.IsZero() {
		t.Errorf("next due: got %v", next)
	}
	r.wantLeft(0)

	schema, err := jsonschema.NewCompiler().Compile("../schemas/change.v1.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	records := r.published(2)
	for _, record := range records {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(record.Value)))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(doc); err != nil {
			t.Errorf("%s: %v", record.Value, err)
		}
		if string(record.Key) != "progress/2024가단1" || record.Partition != records[0].Partition {
			t.Errorf("key %q in partition %d", record.Key, record.Partition)
		}
	}
	x, y := hashOf("x"), hashOf("y")
	later := start.Add(time.Second)
	for i, want := range []schemas.Change{
		{Entity: progress("2024가단1"), Version: start.UnixMicro(), At: start, After: x[:]},
		{Entity: progress("2024가단1"), Version: later.UnixMicro(), At: later, Before: x[:], After: y[:]},
	} {
		if got, err := schemas.DecodeChange(records[i].Value); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("published: got %+v, %v\nwant %+v", got, err, want)
		}
	}
	want := []prefetched.ClaimedRequest{{Entity: general("2024가단1"), Params: params, Version: start.Add(-time.Hour).UnixMicro()}}
	if !reflect.DeepEqual(r.enqueuer.requests, want) {
		t.Errorf("requested: got %+v, want %+v", r.enqueuer.requests, want)
	}
	if published, requested := testutil.ToFloat64(r.metrics.published), testutil.ToFloat64(r.metrics.requested); published != 2 || requested != 1 {
		t.Errorf("got %v published and %v requested", published, requested)
	}
}

func TestRelay_RetriesRejectedChangeAfterLease(t *testing.T) {
	r := newRig(t)
	accept := r.refuse(kerr.TopicAuthorizationFailed.Code)
	both := triggering(0, nil)
	both.PublishChange = true
	r.write(progress("a"), start, "x", both)
	r.write(progress("b"), start, "x", triggering(0, nil))
	if next := r.deliverAt(start); !next.Equal(start.Add(lease)) {
		t.Errorf("retry: got %v, want %v", next, start.Add(lease))
	}
	r.published(0)
	if log := r.log.String(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "TOPIC_AUTHORIZATION_FAILED") {
		t.Errorf("log: got %s", log)
	}
	accept()
	r.enqueuer.takeRequested()
	r.deliverAt(start.Add(lease - time.Microsecond))
	r.published(0)
	r.wantRequested()
	if next := r.deliverAt(start.Add(lease)); !next.IsZero() {
		t.Errorf("next due: got %v", next)
	}
	r.published(1)
	r.wantRequested("general/a")
	r.wantLeft(0)
}

// A change that can't be published is retried after each lease. If each attempt also requested the
// change's triggers, the attempts would waste upstream calls.
func TestRelay_TriggersOnlyAfterPublishing(t *testing.T) {
	r := newRig(t)
	accept := r.refuse(kerr.TopicAuthorizationFailed.Code)
	both := triggering(0, nil)
	both.PublishChange = true
	r.write(progress("a"), start, "x", both)
	r.write(progress("b"), start, "x", triggering(0, nil))
	for n := range 3 {
		r.deliverAt(start.Add(time.Duration(n) * lease))
	}
	r.wantRequested("general/b")
	r.wantLeft(1)
	accept()
}

func TestRelay_HangingBrokerDeletesNothing(t *testing.T) {
	r := newRig(t)
	release := make(chan struct{})
	r.kafka.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.SleepControl(func() { <-release })
		return nil, nil, false
	})
	r.write(progress("a"), start, "x", publishChange)
	r.write(progress("b"), start, "x", triggering(0, nil))
	began := time.Now()
	if next := r.deliverAt(start); !next.Equal(start.Add(lease)) {
		t.Errorf("retry: got %v", next)
	}
	if took := time.Since(began); took > generous {
		t.Errorf("got a delivery of %v, want a timeout", took)
	}
	r.wantRequested("general/b")
	close(release)
	if next := r.deliverAt(start.Add(lease)); !next.IsZero() {
		t.Errorf("next due: got %v", next)
	}
	if n := r.ends(); n != 1 && n != 2 { // 2 publications are right if the broker has stored the record of the first attempt although the client timed out
		t.Errorf("published %d times, want 1 or 2", n)
	}
	r.wantLeft(0)
}

func TestRelay_KeepsOnlyUnrequestedTriggers(t *testing.T) {
	r := newRig(t)
	r.enqueuer.leaves = func(a prefetched.ClaimedRequest) bool { return a.Entity.Key == "b" }
	for _, key := range []string{"a", "b", "c"} {
		both := triggering(0, nil)
		both.PublishChange = true
		r.write(progress(key), start, "x", both)
	}
	r.deliverAt(start)
	r.wantRequested("general/a", "general/c")
	r.enqueuer.leaves = nil
	r.deliverAt(start.Add(lease))
	r.wantRequested("general/b")
	r.wantLeft(0)
	if n := r.ends(); n != 3 {
		t.Errorf("published: got %d changes, want 3: a change whose trigger is left is published once", n)
	}
	if got := testutil.ToFloat64(r.metrics.requested); got != 3 {
		t.Errorf("requested triggers: got %v", got)
	}
	r.published(3)
}

func TestRelay_CombinesTriggersOfOneKey(t *testing.T) {
	r := newRig(t)
	r.enqueuer.leaves = func(prefetched.ClaimedRequest) bool { return true }
	hearings := schemas.Entity{Source: "court", Facet: "hearings", Key: "a"}
	for n := range 5 {
		at := start.Add(time.Duration(n) * time.Second)
		r.write(progress("a"), at, fmt.Sprint(n), triggering(0, map[string]string{"encCsNo": fmt.Sprint(n)}))
		r.write(hearings, at, fmt.Sprint(n), triggering(time.Hour, nil))
	}
	now := start.Add(time.Minute)
	r.deliverAt(now)
	if r.enqueuer.calls != 1 {
		t.Errorf("calls of the enqueuer: got %d", r.enqueuer.calls)
	}
	r.wantRequested()
	r.enqueuer.leaves = nil
	r.deliverAt(now.Add(lease))
	r.wantRequested("general/a")
	r.wantLeft(0)
}

// If several changes trigger the refresh of one entity, the relay must use the shortest duration that
// the triggers have as setting backoff, and the params of the latest change.
func TestRelay_UsesShortestBackoffAndLastParams(t *testing.T) {
	r := newRig(t)
	hearings := schemas.Entity{Source: "court", Facet: "hearings", Key: "a"}
	now := start.Add(time.Hour)
	r.write(general("a"), start, "g", store.OutboxEvents{})
	r.write(progress("a"), start, "x", triggering(24*time.Hour, map[string]string{"encCsNo": "old"}))
	r.write(hearings, start.Add(time.Second), "x", triggering(time.Minute, map[string]string{"encCsNo": "older"}))
	r.write(hearings, start.Add(2*time.Second), "y", triggering(time.Minute, map[string]string{"encCsNo": "new"}))
	r.deliverAt(now)
	if len(r.enqueuer.requests) != 1 || r.enqueuer.requests[0].Params["encCsNo"] != "new" {
		t.Errorf("requested: got %+v", r.enqueuer.requests)
	}
	r.wantLeft(0)
}

func TestRelay_SkipsTriggersWithinBackoff(t *testing.T) {
	r := newRig(t)
	now := start.Add(24 * time.Hour)
	r.write(general("a"), start.Add(time.Microsecond), "g", store.OutboxEvents{}) // checked 1 µs less than 24 h ago, so still within the trigger's setting backoff
	r.write(general("b"), start, "g", store.OutboxEvents{})
	for _, key := range []string{"a", "b", "c"} {
		r.write(progress(key), now, "x", triggering(24*time.Hour, nil))
	}
	r.deliverAt(now)
	r.wantRequested("general/b", "general/c")
	r.wantLeft(0)
	if got := testutil.ToFloat64(r.metrics.skipped); got != 1 {
		t.Errorf("skipped triggers: got %v", got)
	}
}

func TestRelay_KeepsEventsIfStatesFail(t *testing.T) {
	r := newRig(t)
	st := &fallible{Store: r.db, states: errors.New("no database")}
	one := r.relay(st, nil)
	both := triggering(0, nil)
	both.PublishChange = true
	r.write(progress("a"), start, "x", both)
	r.write(progress("b"), start, "x", publishChange)
	if next, err := one.deliverDue(t.Context(), start); err != nil || !next.Equal(start.Add(lease)) {
		t.Errorf("next due: got %v, %v", next, err)
	}
	r.wantRequested()
	r.published(2)
	r.deliverAt(start.Add(lease))
	r.wantRequested("general/a")
	r.wantLeft(0)
}

// fallible is a store whose operations fail while the matching error is set.
type fallible struct {
	Store
	states, finish error
}

func (f *fallible) States(ctx context.Context, of []schemas.Entity) ([]store.State, error) {
	if f.states != nil {
		return nil, f.states
	}
	return f.Store.States(ctx, of)
}

func (f *fallible) DeleteOutboxEvents(ctx context.Context, ids []int64) error {
	if f.finish != nil {
		return f.finish
	}
	return f.Store.DeleteOutboxEvents(ctx, ids)
}

func TestRelay_CrashPublishesAgain(t *testing.T) {
	r := newRig(t)
	errCrash := errors.New("it errCrash")
	both := triggering(0, nil)
	both.PublishChange = true
	r.write(progress("a"), start, "x", both)
	if _, err := r.relay(&fallible{Store: r.db, finish: errCrash}, nil).deliverDue(t.Context(), start); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	r.published(1)
	r.wantRequested("general/a")
	r.deliverAt(start.Add(lease - 1)) // the crashed relay's claim is still valid, so nothing is published again
	r.published(1)
	r.deliverAt(start.Add(lease))
	records := r.published(2)
	if string(records[0].Value) != string(records[1].Value) {
		t.Errorf("published %s and %s", records[0].Value, records[1].Value)
	}
	r.wantRequested("general/a")
	r.wantLeft(0)
}

func TestRelay_TwoInstancesDeliverOnce(t *testing.T) {
	r := newRig(t)
	const changes = 3 * maxClaim / 2
	var want []string
	for n := range changes {
		both := triggering(0, nil)
		both.PublishChange = true
		r.write(progress(fmt.Sprint(n)), start, "x", both)
		want = append(want, fmt.Sprint("general/", n))
	}
	slices.Sort(want)
	var wg sync.WaitGroup
	for range 2 {
		one := r.relay(r.db, nil)
		wg.Go(func() {
			for next := start; !next.IsZero() && !next.After(start); {
				var err error
				if next, err = one.deliverDue(t.Context(), start); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	r.published(changes)
	r.wantRequested(want...)
	r.wantLeft(0)
}

// The lease of a claim begins when the claim is made. If all batches of a long backlog used the
// start of the first batch, later leases would end before their events are delivered, and another
// relay would claim these events too.
func TestRelay_ClaimsBacklogInBatches(t *testing.T) {
	r := newRig(t)
	for n := range maxClaim + 1 {
		r.write(progress(fmt.Sprint(n)), start, "x", publishChange)
	}
	if next := r.deliverAt(start); !next.Equal(start) {
		t.Errorf("next due: got %v, want now", next)
	}
	r.published(maxClaim)
	if next := r.deliverAt(start.Add(time.Hour)); !next.IsZero() {
		t.Errorf("next due: got %v", next)
	}
	r.published(maxClaim + 1)
}

func TestRelay_DeliversStoredEventsSoon(t *testing.T) {
	r := newRig(t)
	rdb, _ := servicetest.MiniRedis(t)
	looks := &watchedStore{Store: r.db, seen: make(chan struct{}, 100)}
	one := r.relay(looks, poll.New(Channel("court"), rdb, slog.New(slog.DiscardHandler), ClaimsFail))
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := one.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	for range 2 { // the relay looks up the next due time at the start, and after its subscription to Redis
		looks.await(t)
	}
	began := time.Now()
	r.write(progress("a"), began, "x", publishChange)
	one.Notify()
	r.published(1)
	if took := time.Since(began); took > lease/2 {
		t.Errorf("published after %v", took)
	}
}

// watchedStore signals to the test each lookup of the next due time.
type watchedStore struct {
	Store
	seen chan struct{}
}

func (l *watchedStore) NextOutboxTime(ctx context.Context, source string) (time.Time, error) {
	next, err := l.Store.NextOutboxTime(ctx, source)
	l.seen <- struct{}{}
	return next, err
}

func (l *watchedStore) await(t *testing.T) {
	t.Helper()
	select {
	case <-l.seen:
	case <-time.After(generous):
		t.Fatal("no lookup of the next due time")
	}
}

// Kafka can lose the record of a page's request after it has acknowledged the record. So the relay must
// keep the event until the page is stored.
func TestRelay_RequestsPageUntilItIsStored(t *testing.T) {
	r := newRig(t)
	all, rules := collection.New(r.db), collection.Rules{Order: collection.OrderNone, Deletes: collection.DeletesNone}
	list := schemas.Entity{Source: "court", Facet: "hearings", Key: "a"}
	store := func(version int64, next string) {
		t.Helper()
		before, err := all.State(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		page := collection.Page{Version: version, Began: start, Next: next}
		before = before.Begin(rules, start, false)
		after, err := before.After(rules, page)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := all.Write(t.Context(), []collection.Write{{Entity: list, Rules: rules, Before: before, After: after, Page: page}}); err != nil {
			t.Fatal(err)
		}
	}
	pages := func() (names []string) {
		for _, request := range r.enqueuer.requests {
			names = append(names, request.Page)
		}
		return names
	}
	store(1, "2")
	if next := r.deliverAt(start); !next.Equal(start.Add(10 * time.Minute)) {
		t.Errorf("next due time: got %v, want ten minutes after the request", next)
	}
	r.deliverAt(start.Add(10*time.Minute - time.Microsecond))
	if got := pages(); !slices.Equal(got, []string{"1-2"}) {
		t.Errorf("requested pages: got %q, want 1-2 once", got)
	}
	r.deliverAt(start.Add(10 * time.Minute))
	store(2, "3")
	r.deliverAt(start.Add(20 * time.Minute))
	if got := pages(); !slices.Equal(got, []string{"1-2", "1-2", "1-3"}) {
		t.Errorf("requested pages: got %q, want 1-2 twice, and 1-3 after page 2 was stored", got)
	}
	store(3, "")
	r.wantLeft(0)
}
