package lua_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/servicetest"
)

// clientBound holds the limits of client_admit; zero means no limit.
type clientBound struct {
	max, min       int
	lease, active  time.Duration
	newKeys        int
	newKeyInterval time.Duration
}

// clients runs the scripts for one source's clients.
type clients struct {
	t   *testing.T
	rdb redis.UniversalClient
	key string
	clientBound
}

func newClients(t *testing.T, rdb redis.UniversalClient, b clientBound) *clients {
	if b.lease == 0 {
		b.lease = time.Hour
	}
	return &clients{t, rdb, "clients:{" + servicetest.Name("nexon") + "}", b}
}

func eachClients(t *testing.T, b clientBound, test func(c *clients)) {
	t.Helper()
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) { test(newClients(t, rdb, b)) })
}

type admitted struct {
	share, outstanding, active, wait int64
	verdicts                         []int64
}

func (a admitted) count(verdict int64) (n int) {
	for _, v := range a.verdicts {
		if v == verdict {
			n++
		}
	}
	return n
}

// admit runs client_admit for requests of the client id. Each request is one character for its
// kind (N: new key, K: known key), followed by its member of the client's sorted set.
func (c *clients) admit(id string, requests ...string) admitted {
	c.t.Helper()
	args := []any{id, c.max, c.min, c.lease.Milliseconds(), c.active.Milliseconds(), c.newKeyInterval.Microseconds(), c.newKeys}
	for _, r := range requests {
		args = append(args, r)
	}
	reply, err := eval.Once(c.t.Context(), c.rdb, lua.ClientAdmit, eval.Call{
		Key: c.key, More: []string{c.key + ":" + id, c.key + ":" + id + ":new"}, Args: args,
	}).Int64Slice()
	if err != nil || len(reply) != 4+len(requests) {
		c.t.Fatalf("client_admit returned %v, %v", reply, err)
	}
	return admitted{reply[0], reply[1], reply[2], reply[3], reply[4:]}
}

func (c *clients) release(id string, members ...string) int {
	c.t.Helper()
	args := []any{id, c.active.Milliseconds()}
	for _, m := range members {
		args = append(args, m)
	}
	n, err := eval.Once(c.t.Context(), c.rdb, lua.ClientRelease, eval.Call{Key: c.key, More: []string{c.key + ":" + id}, Args: args}).Int()
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

func requests(kind string, from, to int) (all []string) {
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprintf("%s%d character/a", kind, i))
	}
	return all
}

func TestClientAdmit_BoundsOutstandingRequests(t *testing.T) {
	eachClients(t, clientBound{max: 20, min: 3, active: time.Minute}, func(c *clients) {
		got := c.admit("a", requests("K", 0, 30)...)
		if got.count(0) != 20 || got.count(1) != 10 || got.outstanding != 20 || got.share != 20 {
			c.t.Errorf("got %+v, want 20 of 30 admitted", got)
		}
		if n := c.release("a", "0 character/a", "1 character/a", "77 character/a"); n != 2 {
			c.t.Errorf("released %d, want the 2 that were counted", n)
		}
		if n := c.release("a", "0 character/a"); n != 0 {
			c.t.Errorf("released %d for the second time, want 0", n)
		}
		if got := c.admit("a", requests("K", 30, 40)...); got.count(0) != 2 || got.outstanding != 20 {
			c.t.Errorf("got %+v, want 2 admitted in the place of those that ended", got)
		}
	})
}

func TestClientAdmit_SharesTheBoundAmongActiveClients(t *testing.T) {
	eachClients(t, clientBound{max: 20, min: 3, active: time.Minute}, func(c *clients) {
		c.admit("a", requests("K", 0, 20)...)
		if got := c.admit("b", requests("K", 0, 20)...); got.share != 10 || got.active != 2 || got.count(0) != 10 {
			c.t.Errorf("the second client got %+v, want a half", got)
		}
		if got := c.admit("a", requests("K", 20, 21)...); got.share != 10 || got.count(1) != 1 {
			c.t.Errorf("the first client got %+v, want nothing above its half", got)
		}
		for i := range 20 {
			c.admit(fmt.Sprint("c", i), requests("K", 0, 1)...)
		}
		if got := c.admit("d", requests("K", 0, 20)...); got.share != 3 || got.count(0) != 3 {
			c.t.Errorf("one of 23 clients got %+v, want the floor", got)
		}
	})
}

func TestClientAdmit_CountsAClientActiveAfterItsRequestsEnded(t *testing.T) {
	rdb, m := servicetest.MiniRedis(t)
	now := time.Unix(1_800_000_000, 0)
	m.SetTime(now)
	c := newClients(t, rdb, clientBound{max: 20, min: 3, active: 5 * time.Second})
	c.admit("a", requests("K", 0, 1)...)
	c.release("a", "0 character/a")
	m.SetTime(now.Add(4 * time.Second))
	if got := c.admit("b", requests("K", 0, 1)...); got.active != 2 {
		t.Errorf("after 4s got %+v, want 2 active clients", got)
	}
	m.SetTime(now.Add(6 * time.Second))
	if got := c.admit("b", requests("K", 1, 2)...); got.active != 1 || got.share != 20 {
		t.Errorf("after 6s got %+v, want 1 active client", got)
	}
}

func TestClientAdmit_BoundsNewKeysByGCRA(t *testing.T) {
	rdb, m := servicetest.MiniRedis(t)
	now := time.Unix(1_800_000_000, 0)
	m.SetTime(now)
	c := newClients(t, rdb, clientBound{max: 100, min: 3, active: time.Second, newKeys: 5, newKeyInterval: 200 * time.Millisecond})
	got := c.admit("a", append(requests("N", 0, 7), requests("K", 10, 12)...)...)
	if got.count(0) != 7 || got.count(2) != 2 || got.outstanding != 7 || got.wait != 200 {
		t.Errorf("got %+v, want 5 new and 2 known keys, and 200 ms to wait", got)
	}
	m.SetTime(now.Add(400 * time.Millisecond))
	if got := c.admit("a", requests("N", 20, 25)...); got.count(0) != 2 || got.count(2) != 3 {
		t.Errorf("after two intervals got %+v, want 2 new keys", got)
	}
	if got := c.admit("b", requests("N", 20, 25)...); got.count(0) != 5 {
		t.Errorf("another client got %+v, want its own 5", got)
	}
	m.SetTime(now.Add(-time.Hour)) // set the clock back, as an operator could
	if got := c.admit("a", requests("N", 30, 31)...); got.wait > 200 {
		t.Errorf("after the clock was set back got %+v, want a wait of one interval at most", got)
	}
}

func TestClientAdmit_ReplacesKeysOfAnotherType(t *testing.T) {
	eachClients(t, clientBound{max: 5, min: 3, newKeys: 5, newKeyInterval: time.Minute}, func(c *clients) {
		for _, key := range []string{c.key, c.key + ":a"} {
			if err := c.rdb.Set(c.t.Context(), key, "x", time.Minute).Err(); err != nil {
				c.t.Fatal(err)
			}
		}
		if err := c.rdb.LPush(c.t.Context(), c.key+":a:new", "x").Err(); err != nil {
			c.t.Fatal(err)
		}
		if n := c.release("a", "1 character/a"); n != 0 {
			c.t.Errorf("released %d, want 0", n)
		}
		if got := c.admit("a", requests("N", 0, 9)...); got.count(0) != 5 {
			c.t.Errorf("got %+v, want 5 admitted", got)
		}
	})
}

// If the worker of a client's requests crashes, these requests stop counting when their leases
// expire.
func TestClientAdmit_HealsLostCountsByLease(t *testing.T) {
	rdb, m := servicetest.MiniRedis(t)
	now := time.Unix(1_800_000_000, 0)
	m.SetTime(now)
	c := newClients(t, rdb, clientBound{max: 10, min: 3, lease: 2 * time.Minute, active: 5 * time.Second})
	c.admit("a", requests("K", 0, 10)...)
	m.SetTime(now.Add(119 * time.Second))
	if got := c.admit("a", requests("K", 10, 20)...); got.count(0) != 0 {
		t.Errorf("before the lease ended got %+v, want nothing admitted", got)
	}
	m.SetTime(now.Add(120 * time.Second))
	if got := c.admit("a", requests("K", 20, 30)...); got.count(0) != 10 {
		t.Errorf("after the lease got %+v, want all admitted", got)
	}
}

func TestClientKeys_ExpireWithTheLastLease(t *testing.T) {
	eachClients(t, clientBound{max: 10, min: 3, lease: time.Minute, active: 5 * time.Second, newKeys: 100, newKeyInterval: time.Second}, func(c *clients) {
		c.admit("a", requests("N", 0, 10)...)
		for _, key := range []string{c.key, c.key + ":a", c.key + ":a:new"} {
			ttl, err := c.rdb.PTTL(c.t.Context(), key).Result()
			if err != nil || ttl <= 0 || ttl > time.Minute {
				c.t.Errorf("%s expires after %v, %v; want within the lease of a minute", key, ttl, err)
			}
		}
	})
}

// TestClientCounts_HoldUnderRandomFaults compares random sequences of requests, ends, crashes
// and time steps with a model. A client's count is never negative or above the client's share, and
// no request is counted after its lease has expired.
func TestClientCounts_HoldUnderRandomFaults(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 19))
		rdb, m := servicetest.MiniRedis(t)
		now := time.Unix(1_800_000_000, 0)
		m.SetTime(now)
		c := newClients(t, rdb, clientBound{
			max: 1 + rng.IntN(40), min: 1 + rng.IntN(4), lease: time.Duration(1+rng.IntN(60)) * time.Second, active: 5 * time.Second,
		})
		ids := []string{"a", "b", "c", "d"}
		leases := map[string]map[string]time.Time{} // the end of each lease, by client and by request (the member of the client's sorted set)
		for _, id := range ids {
			leases[id] = map[string]time.Time{}
		}
		next := 0
		for step := range 300 {
			id := ids[rng.IntN(len(ids))]
			for member, end := range leases[id] {
				if !now.Before(end) {
					delete(leases[id], member)
				}
			}
			switch rng.IntN(4) {
			case 0, 1:
				n := 1 + rng.IntN(12)
				asked := requests("K", next, next+n)
				if rng.IntN(5) == 0 && next > 0 { // a request that is named twice in one script call counts once
					asked = append(asked, asked[0])
				}
				next += n
				before := len(leases[id])
				got := c.admit(id, asked...)
				for i, v := range got.verdicts {
					if v == 0 {
						leases[id][asked[i][1:]] = now.Add(c.lease)
					}
				}
				if int(got.outstanding) != len(leases[id]) || (got.count(0) > 0 && got.outstanding > got.share) {
					t.Fatalf("seed %d, step %d: got %+v with %d before, want %d outstanding", seed, step, got, before, len(leases[id]))
				}
			case 2: // release some requests twice, and one that was never counted
				var ended []string
				for member := range leases[id] {
					if rng.IntN(2) == 0 {
						ended = append(ended, member)
						delete(leases[id], member)
					}
				}
				if got := c.release(id, append(ended, append(ended, "0 character/unknown")...)...); got != len(ended) {
					t.Fatalf("seed %d, step %d: released %d, want %d", seed, step, got, len(ended))
				}
			default: // time passes without releases, as after a crash of the worker
				now = now.Add(time.Duration(rng.IntN(20_000)) * time.Millisecond)
				m.SetTime(now)
			}
		}
		now = now.Add(c.lease)
		m.SetTime(now)
		for _, id := range ids {
			if got := c.admit(id); got.outstanding != 0 {
				t.Errorf("seed %d: a lease after the end %s has %d outstanding, want 0", seed, id, got.outstanding)
			}
		}
	}
}

// A single client that always has more requests gets the source's whole rate. This holds even if
// the upstream answers in 1.5 s and the client retries 100 ms after a refusal. The client may have
// as many requests outstanding as the source makes calls in 2 s.
func TestClientAdmit_LeavesASingleClientTheWholeRate(t *testing.T) {
	const rate, seconds, tick = 50, 20, 20 * time.Millisecond
	rdb, m := servicetest.MiniRedis(t)
	start := time.Unix(1_800_000_000, 0)
	c := newClients(t, rdb, clientBound{max: 2 * rate, min: 10, lease: 2 * time.Minute, active: 5 * time.Second})
	var queue []string // published requests whose upstream call has not begun
	var calls []struct {
		member string
		ends   time.Time
	}
	asked, called := 0, 0
	var refusedUntil time.Time
	for now := start; now.Before(start.Add(seconds * time.Second)); now = now.Add(tick) {
		m.SetTime(now)
		var ended []string
		for len(calls) > 0 && !now.Before(calls[0].ends) {
			ended, calls = append(ended, calls[0].member), calls[1:]
		}
		if len(ended) > 0 {
			c.release("a", ended...)
		}
		if !now.Before(refusedUntil) {
			more := requests("K", asked, asked+3*rate)
			asked += len(more)
			for i, verdict := range c.admit("a", more...).verdicts {
				if verdict == 0 {
					queue = append(queue, more[i][1:])
				} else {
					refusedUntil = now.Add(100 * time.Millisecond)
				}
			}
		}
		for range rate * int(tick) / int(time.Second) {
			if len(queue) == 0 {
				continue // the source had room for a call, but no request was queued
			}
			called++
			calls = append(calls, struct {
				member string
				ends   time.Time
			}{queue[0], now.Add(1500 * time.Millisecond)})
			queue = queue[1:]
		}
	}
	if want := rate * seconds; called != want {
		t.Errorf("%d calls in %d s, want the whole rate: %d", called, seconds, want)
	}
}

func TestClientAdmit_HoldsTheBoundAcrossProcesses(t *testing.T) {
	eachClients(t, clientBound{max: 25, min: 3, active: time.Minute}, func(c *clients) {
		var mu sync.Mutex
		total := 0
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				n := c.admit("a", requests("K", 10*i, 10*i+10)...).count(0)
				mu.Lock()
				defer mu.Unlock()
				total += n
			})
		}
		wg.Wait()
		if total != 25 {
			c.t.Errorf("20 processes got %d requests admitted, want 25", total)
		}
	})
}
