package lua_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

var (
	high = acquireArgs{lane: "HIGH"}
	low  = acquireArgs{lane: "LOW"}
)

func TestCoalesce_PublishesOneAndCoversOthers(t *testing.T) {
	eachRedis(t, func(e entity) {
		n := e.mustAcquire(high, "PUBLISHED")
		if v := e.acquire(high); v.outcome != "PENDING" || v.number != n {
			e.t.Errorf("before the acknowledgement: %+v", v)
		}
		if !e.confirm(n, minute) {
			e.t.Error("not confirmed")
		}
		if v := e.acquire(high); v.outcome != "ALREADY_PROCESSING" || v.number != n {
			e.t.Errorf("after the acknowledgement: %+v", v)
		}
		if v := e.acquire(low); v.outcome != "ALREADY_PROCESSING" {
			e.t.Errorf("LOW under HIGH: %+v", v)
		}
	})
}

func TestCoalesce_HighUpgradesALowLock(t *testing.T) {
	eachRedis(t, func(e entity) {
		first := e.mustAcquire(low, "PUBLISHED")
		second := e.mustAcquire(high, "UPGRADED")
		if second <= first {
			e.t.Errorf("upgraded to %d, not above %d", second, first)
		}
		if e.confirm(first, minute) {
			e.t.Error("the replaced request's acknowledgement confirmed another lock")
		}
		e.mustAcquire(high, "PENDING")
	})
}

func TestCoalesce_PublishesOneOfManyConcurrent(t *testing.T) {
	eachRedis(t, func(e entity) {
		var mu sync.Mutex
		outcomes := map[string]int{}
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				v := e.acquire(high)
				mu.Lock()
				defer mu.Unlock()
				outcomes[v.outcome]++
			})
		}
		wg.Wait()
		if outcomes["PUBLISHED"] != 1 || outcomes["PENDING"] != 99 {
			e.t.Errorf("outcomes %v", outcomes)
		}
	})
}

func TestLock_ExpiredCoversNothing(t *testing.T) {
	eachRedis(t, func(e entity) {
		first := e.mustAcquire(acquireArgs{lane: "HIGH", life: -1}, "PUBLISHED")
		second := e.mustAcquire(high, "PUBLISHED")
		e.confirm(second, dead)
		third := e.mustAcquire(low, "PUBLISHED")
		if first >= second || second >= third {
			e.t.Errorf("numbers %d, %d, %d do not rise", first, second, third)
		}
	})
}

func TestLock_CoversStrictUntilAFetchBegins(t *testing.T) {
	eachRedis(t, func(e entity) {
		strict := acquireArgs{lane: "HIGH", strict: true}
		n := e.published(high)
		e.mustAcquire(strict, "ALREADY_PROCESSING")
		running := e.mustBegin(n, "HIGH")

		e.mustAcquire(high, "ALREADY_PROCESSING") // a relaxed request: the fetch in flight covers it
		follow := e.mustAcquire(strict, "PUBLISHED")
		if follow <= running {
			e.t.Errorf("the later request %d is not above the running fetch %d", follow, running)
		}
		e.confirm(follow, minute)
		e.mustAcquire(strict, "ALREADY_PROCESSING") // no fetch has begun since the strict request `follow`, so the lock of `follow` covers another strict request

		if e.settle(running, true, "", 0) {
			e.t.Error("the running fetch released the later request's lock")
		}
		if got := e.peek(follow, "HIGH", 0); got != "PROCEED" {
			e.t.Errorf("the later request is %s by a fetch that began before it", got)
		}
	})
}

func TestLock_BelowTheSnapshotCountsAsMissing(t *testing.T) {
	eachRedis(t, func(e entity) {
		n := e.published(high)
		e.mustAcquire(acquireArgs{lane: "HIGH", floor: n - 1}, "ALREADY_PROCESSING")
		again := e.mustAcquire(acquireArgs{lane: "HIGH", floor: n}, "PUBLISHED")
		if again <= n {
			e.t.Errorf("number %d is not above the floor %d", again, n)
		}
	})
}

func TestNumbers_RiseAfterTheHashIsLost(t *testing.T) {
	eachRedis(t, func(e entity) {
		last := int64(0)
		for i := range 50 {
			switch i % 3 {
			case 0:
				e.forget()
			case 1: // the caller has read a snapshot whose version is above Redis' clock
				last += 1000
			}
			n := e.mustAcquire(acquireArgs{lane: "HIGH", floor: last, strict: true}, "PUBLISHED")
			if n <= last {
				e.t.Fatalf("step %d: number %d after %d", i, n, last)
			}
			last = e.mustBegin(n, "HIGH")
		}
	})
}

func TestRollback_RemovesOnlyItsPendingLock(t *testing.T) {
	eachRedis(t, func(e entity) {
		first := e.mustAcquire(low, "PUBLISHED")
		second := e.mustAcquire(high, "UPGRADED")
		if e.rollback(first) {
			e.t.Error("the replaced request rolled back another lock")
		}
		e.mustAcquire(high, "PENDING")
		if !e.rollback(second) || e.rollback(second) {
			e.t.Error("a rollback must work once")
		}
		third := e.published(high)
		if e.rollback(third) {
			e.t.Error("a confirmed lock was rolled back")
		}
	})
}

func TestHold_LastsUntilItsEndUnlessPassed(t *testing.T) {
	eachRedis(t, func(e entity) {
		n := e.published(high)
		e.settle(n, false, "FAILED", minute)
		v := e.acquire(high)
		if v.outcome != "HELD" || v.reason != "FAILED" || v.until == 0 {
			e.t.Errorf("acquire under a hold: %+v", v)
		}
		passing := e.mustAcquire(acquireArgs{lane: "LOW", strict: true, passes: true}, "PUBLISHED")
		e.rollback(passing)

		e.settle(n, false, "FAILED", dead)
		e.mustAcquire(high, "PUBLISHED")
	})
}

func TestHold_IsClearedByLaterEndsOnly(t *testing.T) {
	eachRedis(t, func(e entity) {
		early := e.mustBegin(e.published(high), "HIGH")
		late := e.mustBegin(e.published(acquireArgs{lane: "HIGH", strict: true}), "HIGH")
		e.settle(late, true, "NOT_FOUND", minute)
		e.settle(early, true, "", 0)
		e.mustAcquire(high, "HELD")
		e.settle(early, false, "FAILED", dead)
		if v := e.acquire(high); v.reason != "NOT_FOUND" {
			e.t.Errorf("an earlier end replaced the hold: %+v", v)
		}
		e.settle(late+1, true, "", 0)
		e.mustAcquire(high, "PUBLISHED")
	})
}

func TestHash_ExpiresAfterUseAndHolds(t *testing.T) {
	eachRedis(t, func(e entity) {
		within := func(what string, low, high int64) {
			e.t.Helper()
			if got := e.lifetime(); got <= low || got > high {
				e.t.Errorf("after %s the hash lives for %d ms, want %d to %d", what, got, low, high)
			}
		}
		n := e.mustAcquire(high, "PUBLISHED")
		within("acquire", hour-minute, hour)
		e.confirm(n, minute)
		e.settle(n, false, "FAILED", 6*hour)
		within("a long hold", 6*hour-minute, 6*hour)
		passing := e.mustAcquire(acquireArgs{lane: "HIGH", passes: true}, "PUBLISHED")
		within("acquire under it", 6*hour-minute, 6*hour)
		own := e.mustBegin(passing, "HIGH")
		within("begin under it", 6*hour-minute, 6*hour)
		e.settle(own, true, "", 0)
		within("success", hour-minute, hour)
	})
}

func TestCoolDown_RefusesOnlyNewPublishes(t *testing.T) {
	eachRedis(t, func(e entity) {
		refresh := acquireArgs{lane: "HIGH", strict: true, passes: true, cooldown: minute}
		n := e.mustAcquire(refresh, "PUBLISHED")
		e.mustAcquire(refresh, "PENDING")
		e.confirm(n, minute)
		e.mustAcquire(refresh, "ALREADY_PROCESSING")
		e.settle(e.mustBegin(n, "HIGH"), true, "", 0)

		if v := e.acquire(refresh); v.outcome != "COOLING" || v.until == 0 {
			e.t.Errorf("a second refresh: %+v", v)
		}
		e.mustAcquire(high, "PUBLISHED") // a request without a cool-down of its own is accepted during the cool-down of an earlier request
	})
}

// The cool-down has its full length only after the request is confirmed. If the producer crashes
// before the confirmation, a new request is accepted as soon as the pending lock expires.
func TestCoolDown_LastsInFullOnceConfirmed(t *testing.T) {
	eachRedis(t, func(e entity) {
		refresh := acquireArgs{lane: "HIGH", strict: true, cooldown: 6 * hour, life: minute}
		lasts := func(when string, want int) {
			e.t.Helper()
			text, err := e.rdb.HGet(e.t.Context(), e.key, "cooldown").Result()
			if err != nil {
				e.t.Fatal(err)
			}
			var until, number, whole int
			if _, err := fmt.Sscanf(text, "%d %d %d", &until, &number, &whole); err != nil {
				e.t.Fatal(text, err)
			}
			if got := until - (whole - 6*hour); got != want {
				e.t.Errorf("%s, a cool-down of %d ms, not %d", when, got, want)
			}
		}
		n := e.mustAcquire(refresh, "PUBLISHED")
		lasts("pending", minute)
		e.settle(e.mustBegin(n, "HIGH"), true, "", 0) // a worker can settle the request before the producer confirms it
		for range 2 {
			if e.confirm(n, minute) {
				e.t.Error("a settled lock was confirmed")
			}
			lasts("confirmed", 6*hour)
		}
		if left := e.lifetime(); left < 6*hour-minute {
			e.t.Errorf("the hash ends in %d ms, before its cool-down", left)
		}
		if v := e.acquire(refresh); v.outcome != "COOLING" {
			e.t.Errorf("requested again: %+v", v)
		}

		e.forget()
		refresh.life = -1 // the pending lock expires at once, as after a crash of the producer
		e.mustAcquire(refresh, "PUBLISHED")
		e.mustAcquire(refresh, "PUBLISHED")
	})
}

func TestCoolDown_IsRemovedByARollback(t *testing.T) {
	eachRedis(t, func(e entity) {
		refresh := acquireArgs{lane: "HIGH", strict: true, cooldown: minute}
		e.rollback(e.mustAcquire(refresh, "PUBLISHED"))
		e.mustAcquire(refresh, "PUBLISHED")
	})
}

func TestCoalesce_WritesNothingWithoutAPublish(t *testing.T) {
	eachRedis(t, func(e entity) {
		if e.confirm(5, minute) || e.rollback(5) || e.peek(5, "LOW", 0) != "PROCEED" || e.peek(5, "LOW", 5) != "SATISFIED" {
			e.t.Error("an unknown entity has a state")
		}
		if n, err := e.rdb.Exists(e.t.Context(), e.key).Result(); err != nil || n != 0 {
			e.t.Errorf("the hash exists (%d, %v): it would never expire", n, err)
		}
	})
}

// Random sequences on one entity never lose an accepted request. Invariant: a request is open until
// the end (settle) of a fetch that began after the request. While the request is open, a topic
// contains a record whose fetch will satisfy the request, and request_peek does not skip that
// record.
func TestCoalesce_LosesNothingInRandomSequences(t *testing.T) {
	eachRedis(t, func(e entity) {
		for seed := range uint64(40) {
			e.forget()
			randomSequence(e, seed)
		}
	})
}

type accepted struct {
	at     int // number of the step at which the request was accepted
	strict bool
}

func randomSequence(e entity, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	type record struct {
		number int64
		lane   string
		asked  int // number of the step at which coalesce_acquire issued the record's number
	}
	type fetch struct {
		number int64
		begun  int
	}
	var (
		topics    []record // records that Kafka has acknowledged and that no worker has committed
		inAir     []record // records whose publish Kafka has not acknowledged yet
		fetches   []fetch
		waiting   []accepted
		stored    int64 // version of the snapshot in the database
		storedAge int   // step at which the fetch of the snapshot in the database began
		highest   int64 // highest number that was issued so far
	)
	fail := func(step int, why string) { e.t.Fatalf("seed %d, step %d: %s", seed, step, why) }
	satisfy := func(begun int, running bool) {
		waiting = slices.DeleteFunc(waiting, func(a accepted) bool { return a.at < begun || (running && !a.strict) })
	}
	for step := range 120 {
		switch rng.IntN(7) {
		case 0, 1: // a reader or a scheduler makes a new request
			w := acquireArgs{lane: []string{"HIGH", "LOW"}[rng.IntN(2)], strict: rng.IntN(2) == 0}
			if rng.IntN(2) == 0 {
				w.floor = stored
			}
			v := e.acquire(w)
			switch v.outcome {
			case "PUBLISHED", "UPGRADED":
				inAir = append(inAir, record{v.number, w.lane, step})
				highest = max(highest, v.number)
			case "ALREADY_PROCESSING":
				waiting = append(waiting, accepted{step, w.strict})
			}
		case 2: // Kafka's answer to a publish in flight arrives
			if len(inAir) == 0 {
				continue
			}
			i := rng.IntN(len(inAir))
			r := inAir[i]
			inAir = slices.Delete(inAir, i, i+1)
			switch rng.IntN(4) {
			case 0: // Kafka has not accepted the record
				e.rollback(r.number)
			case 1: // Kafka acknowledges the record, and the producer crashes before it confirms the lock
				topics = append(topics, r)
				waiting = append(waiting, accepted{r.asked, true})
			default:
				topics = append(topics, r)
				e.confirm(r.number, minute)
				waiting = append(waiting, accepted{r.asked, true})
			}
		case 3, 4: // a worker begins to process a record
			if len(topics) == 0 {
				continue
			}
			r := topics[rng.IntN(len(topics))]
			if v := e.begin(r.number, r.lane, stored); v.outcome == "PROCEED" {
				for _, f := range fetches {
					if v.number <= f.number {
						fail(step, "a later fetch has no higher number")
					}
				}
				fetches = append(fetches, fetch{v.number, step})
				highest = max(highest, v.number)
			} else if v.outcome == "SATISFIED" {
				topics = slices.DeleteFunc(topics, func(o record) bool { return o == r })
			} else if !slices.ContainsFunc(topics, func(o record) bool { return o.lane == "HIGH" && o.number > r.number }) {
				fail(step, "superseded by a record that is not in its topic")
			} else {
				topics = slices.DeleteFunc(topics, func(o record) bool { return o == r })
			}
		case 5: // a worker writes the snapshot of a fetch, and perhaps settles the fetch
			if len(fetches) == 0 {
				continue
			}
			i := rng.IntN(len(fetches))
			f := fetches[i]
			fetches = slices.Delete(fetches, i, i+1)
			if rng.IntN(4) == 0 {
				continue // the worker crashes; its record is delivered again
			}
			if f.number >= stored {
				if f.begun < storedAge {
					fail(step, "an older response replaced a newer one")
				}
				stored, storedAge = f.number, f.begun
			}
			satisfy(f.begun, true)
			if rng.IntN(4) != 0 {
				e.settle(f.number, true, "", 0)
			}
		case 6: // time passes, or Redis loses the hash
			if rng.IntN(3) == 0 {
				e.loseData(highest)
			}
		}
	}
	// Finally each record still in a topic is processed once more.
	for _, r := range topics {
		if v := e.begin(r.number, r.lane, stored); v.outcome == "PROCEED" {
			stored, storedAge = v.number, 1000
			satisfy(1000, true)
			e.settle(v.number, true, "", 0)
		} else if v.outcome == "SATISFIED" && stored >= r.number {
			satisfy(storedAge, true)
		}
	}
	// The list `waiting` contains no requests with the outcome PENDING. Nothing was promised to
	// them, because a pending lock can expire.
	for _, a := range waiting {
		if a.at >= storedAge {
			e.t.Fatalf("seed %d: the request accepted at step %d (strict %v) was never fetched for; hash %s %s %s", seed, a.at, a.strict,
				e.field("lock"), e.field("ver"), e.field("done"))
		}
	}
}
