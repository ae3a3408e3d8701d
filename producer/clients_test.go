package producer

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// clientRequest returns a request of a client that is limited to 20 outstanding requests.
func (r *rig) clientRequest(client, key string) Request {
	req := r.request(key, schemas.High, schemas.CacheMiss)
	req.Client = schemas.ClientID(client)
	req.Bound = Bound{Outstanding: 20, Window: 2 * time.Second, Lease: time.Minute}
	return req
}

func (r *rig) clientRequests(client string, n int) (all []Request) {
	for i := range n {
		all = append(all, r.clientRequest(client, fmt.Sprint(client, i)))
	}
	return all
}

func countOutcomes(results []Result, o Outcome) (n int) {
	for _, r := range results {
		if r.Outcome == o {
			n++
		}
	}
	return n
}

func (r *rig) outstanding(client string) int {
	r.Helper()
	n, err := r.rdb.ZCard(r.Context(), account{r.name, schemas.ClientID(client)}.key()).Result()
	if err != nil {
		r.Fatal(err)
	}
	return int(n)
}

func TestEnqueueAll_RefusesBeyondAClientsBound(t *testing.T) {
	eachRedis(t, func(r *rig) {
		results := r.EnqueueAll(r.Context(), r.clientRequests("a", 30))
		if got, refused := countOutcomes(results, Published), countOutcomes(results, TooManyOutstanding); got != 20 || refused != 10 {
			r.Fatalf("published %d and refused %d, want 20 and 10", got, refused)
		}
		last := results[29]
		if last.Refusal == nil || last.Refusal.Max != 20 || last.Queued() || time.Until(last.Until) > time.Minute || last.Err != nil {
			r.Errorf("last request: got %+v with %+v, want a refusal with Max 20", last, last.Refusal)
		}
		if got := len(r.records(schemas.High, 20)); got != 20 {
			r.Errorf("got %d records, want 20", got)
		}
		if got := r.field(r.request("a29", schemas.High, "").Entity, "lock"); got != "" {
			r.Errorf("got lock %q of a refused request, want none", got)
		}
		r.mustEnqueue(Published, r.clientRequest("b", "b")) // the refusal of client a does not affect client b
		r.mustEnqueue(Published, r.clientRequest("b", "a29"))
	})
}

func TestEnqueueAll_CoversARefusedClientToo(t *testing.T) {
	eachRedis(t, func(r *rig) {
		r.EnqueueAll(r.Context(), r.clientRequests("a", 30))
		r.mustEnqueue(Published, r.clientRequest("b", "b"))
		r.waitUntilConfirmed()
		for range 2 { // in the second round the producer has cached that client a is refused; the outcomes must be the same
			r.mustEnqueue(AlreadyProcessing, r.clientRequest("a", "b"))
			r.mustEnqueue(AlreadyProcessing, r.clientRequest("a", "a1"))
			r.mustEnqueue(TooManyOutstanding, r.clientRequest("a", "a29"))
		}
		if got := r.outstanding("a"); got != 20 {
			r.Errorf("a has %d outstanding, want 20: a covered request is not counted", got)
		}
	})
}

func TestEnqueue_CountsACoalescedRequestOnce(t *testing.T) {
	eachRedis(t, func(r *rig) {
		r.mustEnqueue(Published, r.clientRequest("a", "x"))
		for range 5 {
			if got := r.Enqueue(r.Context(), r.clientRequest("a", "x")); !got.Queued() && got.Outcome != Pending {
				r.Fatalf("got %+v, want it covered", got)
			}
			r.Enqueue(r.Context(), r.clientRequest("b", "x"))
		}
		if a, b := r.outstanding("a"), r.outstanding("b"); a != 1 || b != 0 {
			r.Errorf("a has %d and b %d outstanding, want 1 and 0", a, b)
		}
	})
}

// A batch of the query service has requests of several clients. A refused request covers the other
// requests for its entity until its lock is rolled back. After that the producer must decide about
// the covered requests again, so that a client within its limit gets a record.
func TestEnqueueAll_DecidesAgainBehindARefusedClient(t *testing.T) {
	eachRedis(t, func(r *rig) {
		for _, client := range []string{"a", "b"} {
			r.EnqueueAll(r.Context(), r.clientRequests(client, 20))
		}
		x, y := r.clientRequest("a", "x"), r.clientRequest("a", "y")
		batch := []Request{x, y, r.clientRequest("b", "x"), r.clientRequest("c", "x"), r.clientRequest("d", "x"), r.clientRequest("d", "y")}
		want := []Outcome{TooManyOutstanding, TooManyOutstanding, TooManyOutstanding, Published, Pending, Published}
		got := r.EnqueueAll(r.Context(), batch)
		for i := range want {
			if got[i].Outcome != want[i] {
				r.Errorf("request %d, for %s: got %s %v, want %s", i, batch[i].Entity.Key, got[i].Outcome, got[i].Err, want[i])
			}
		}
		if got[4].Number != got[3].Number {
			r.Errorf("the pending request is covered by %d, want the published %d", got[4].Number, got[3].Number)
		}
		if c, d := r.outstanding("c"), r.outstanding("d"); c != 1 || d != 1 {
			r.Errorf("c has %d and d %d outstanding, want 1 and 1", c, d)
		}
	})
}

func TestReleaseOutstanding_EndsCounts(t *testing.T) {
	eachRedis(t, func(r *rig) {
		var ended []schemas.Outstanding
		results := r.EnqueueAll(r.Context(), r.clientRequests("a", 20))
		for i, got := range results[:15] {
			ended = append(ended, schemas.Outstanding{Client: schemas.ClientID("a"), Entity: r.clientRequest("a", fmt.Sprint("a", i)).Entity, Number: got.Number})
		}
		ended = append(ended, schemas.Outstanding{Entity: ended[0].Entity, Number: 1}) // this internal request has no client, so releasing it must change no count
		for range 2 {
			if err := r.ReleaseOutstanding(r.Context(), ended); err != nil {
				r.Fatal(err)
			}
			if got := r.outstanding("a"); got != 5 {
				r.Fatalf("a has %d outstanding, want 5", got)
			}
		}
	})
}

func TestEnqueue_DoesNotCountAFailedPublish(t *testing.T) {
	eachRedis(t, func(r *rig) {
		r.failProduce(kerr.TopicAuthorizationFailed.Code)
		r.EnqueueAll(r.Context(), r.clientRequests("a", 5))
		r.waitUntilConfirmed()
		if got := r.outstanding("a"); got != 0 {
			r.Errorf("a has %d outstanding after its publishes failed, want 0", got)
		}
	})
}

func TestEnqueueAndWait_RefusesAClientAtOnce(t *testing.T) {
	eachRedis(t, func(r *rig) {
		r.EnqueueAll(r.Context(), r.clientRequests("a", 20))
		req := r.clientRequest("a", "mine")
		req.Reason, req.Cooldown = schemas.UserRequest, time.Hour
		if got := r.EnqueueAndWait(r.Context(), req); got.Outcome != TooManyOutstanding {
			r.Errorf("got %+v, want %s", got, TooManyOutstanding)
		}
		req.Client = schemas.ClientID("b")
		if got := r.EnqueueAndWait(r.Context(), req); got.Outcome != Published {
			r.Errorf("another client got %+v, want PUBLISHED: the refused one started no cool-down", got)
		}
	})
}

func TestEnqueue_BoundsOnlyClients(t *testing.T) {
	eachRedis(t, func(r *rig) {
		r.EnqueueAll(r.Context(), r.clientRequests("a", 20))
		internal := r.clientRequest("a", "internal")
		internal.Client = ""
		r.mustEnqueue(Published, internal)
		lowly := r.clientRequest("a", "lowly")
		lowly.Lane = schemas.Low
		r.mustEnqueue(Published, lowly)
		unbounded := r.clientRequest("a", "unbounded")
		unbounded.Bound = Bound{}
		r.mustEnqueue(Published, unbounded)
	})
}

func TestEnqueueAll_BoundsNewKeysInAllProcesses(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		one, other := newRig(t, rdb, 1000), newRig(t, rdb, 1000)
		other.name = one.name
		requests := func(from, to int) (all []Request) {
			for i := from; i < to; i++ {
				req := one.clientRequest("a", fmt.Sprint(i))
				req.New, req.Bound = true, Bound{NewKeys: 6, NewKeyInterval: time.Hour, Lease: time.Minute}
				all = append(all, req)
			}
			return all
		}
		first, second := one.EnqueueAll(t.Context(), requests(0, 4)), other.EnqueueAll(t.Context(), requests(4, 10))
		if countOutcomes(first, Published) != 4 || countOutcomes(second, Published) != 2 || countOutcomes(second, TooManyNewKeys) != 4 {
			t.Errorf("one process got %+v, the other %+v; want 4 and 2 published", first, second)
		}
		if got := second[5].Refusal; got == nil || got.Max != 6 || got.After < 59*time.Minute {
			t.Errorf("got the refusal %+v, want 6 at once and about an hour", got)
		}
		known := requests(20, 21)[0]
		known.New = false
		other.mustEnqueue(Published, known)
	})
}

func TestRecords_CarryTheClient(t *testing.T) {
	eachRedis(t, func(r *rig) {
		r.mustEnqueue(Published, r.clientRequest("a", "x"))
		r.mustEnqueue(Published, r.request("y", schemas.High, schemas.Trigger))
		got := map[string]string{}
		for _, record := range r.records(schemas.High, 2) {
			var headers []schemas.Header
			for _, h := range record.Headers {
				headers = append(headers, schemas.Header(h))
			}
			got[string(record.Key)] = schemas.ClientOf(headers)
		}
		if got["character/x"] != schemas.ClientID("a") || got["character/y"] != "" {
			r.Errorf("client headers: got %v", got)
		}
	})
}

// A request of a refused client costs one Redis call and takes no lock, so an attacker can't fill
// Redis.
func TestEnqueue_OfARefusedClientWritesNothing(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	r := newRig(t, rdb, 1000)
	at := time.Now()
	r.refusals.now = func() time.Time { return at }
	r.EnqueueAll(t.Context(), r.clientRequests("a", 21))
	r.waitUntilConfirmed() // wait here, so that no confirmation of an earlier record is counted as a round trip below
	trips := countRoundTrips(rdb)
	req := r.clientRequest("a", "z")
	r.mustEnqueue(TooManyOutstanding, req)
	if got := trips.Load(); got != 1 {
		t.Errorf("a refused client cost %d round trips, want 1", got)
	}
	if n, err := rdb.Exists(t.Context(), key(req.Entity)).Result(); n != 0 || err != nil {
		t.Errorf("hash of a refused request: got %d, %v, want none", n, err)
	}
	var ended []schemas.Outstanding
	for i := range 20 {
		e := r.clientRequest("a", fmt.Sprint("a", i)).Entity
		state, err := r.ReadState(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		ended = append(ended, schemas.Outstanding{Client: req.Client, Entity: e, Number: state.Number})
	}
	if err := r.ReleaseOutstanding(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	at = at.Add(refusalTTL)
	r.mustEnqueue(Published, req)
}

func TestRefusalCache_RemovesExpiredWhenFull(t *testing.T) {
	at := time.Now()
	r := newRefusalCache()
	r.now = func() time.Time { return at }
	for i := range 2 * maxRefusals {
		r.add(account{"s", fmt.Sprint(i)}, Refusal{Outcome: TooManyOutstanding})
	}
	if len(r.all) != maxRefusals {
		t.Errorf("remembers %d, want %d", len(r.all), maxRefusals)
	}
	at = at.Add(refusalTTL)
	r.add(account{"s", "new"}, Refusal{Outcome: TooManyOutstanding})
	if len(r.all) != 1 {
		t.Errorf("remembers %d after they ended, want the new one", len(r.all))
	}
}

func TestEnqueue_PublishCostsOneMoreRoundTrip(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	r := newRig(t, rdb, 1000)
	r.mustEnqueue(Published, r.clientRequest("a", "warm")) // this request loads the Lua scripts into Redis, so that their loading is not counted below
	r.waitUntilConfirmed()
	for name, test := range map[string]struct {
		req  Request
		want int64
	}{
		"publishes, internal": {r.request("i", schemas.High, schemas.Stale), 1},
		"publishes, client":   {r.clientRequest("a", "c"), 2},
		"covered":             {r.clientRequest("a", "warm"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, release := r.blockProduce() // Kafka acknowledges nothing until release, so no confirmation adds a round trip
			trips := countRoundTrips(rdb)
			r.Enqueue(t.Context(), test.req)
			got := trips.Load()
			release()
			r.waitUntilConfirmed()
			if got != test.want {
				t.Errorf("got %d round trips, want %d", got, test.want)
			}
		})
	}
}

// countRoundTrips counts the round trips of rdb from now on.
func countRoundTrips(rdb redis.UniversalClient) *atomic.Int64 {
	var n atomic.Int64
	rdb.AddHook(servicetest.RedisHook(func(ctx context.Context, _ []redis.Cmder, send func(context.Context) error) error {
		n.Add(1)
		return send(ctx)
	}))
	return &n
}
