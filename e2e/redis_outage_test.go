package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// redisReturn is the maximum time from the end of a Redis outage to the first accepted update
// request.
const redisReturn = 2 * time.Second

// Reads of new keys continue during the outage. They open the circuit breaker of Redis, and later
// reads serve as the breaker's probes. After the outage the first update request must be accepted
// within redisReturn.
func TestRedisOutage_ReadsEnqueueAgainWithinTwoSeconds(t *testing.T) {
	t.Parallel()
	f := newSite(t)
	f.check(f.UseProxies(t.Context()))
	f.prepare()
	base := f.query() + "/v1/" + f.Source + "/character/"
	cut := func() { f.RedisProxy.Refuse(true); f.RedisProxy.Cut() }
	connect := func() { f.RedisProxy.Refuse(false) }
	stall := func() { f.RedisProxy.Stall(true) }
	// resume cuts the stalled connections, so that their buffered bytes are lost. A firewall that
	// drops the state of its connections has the same effect.
	resume := func() { f.RedisProxy.Cut(); f.RedisProxy.Stall(false) }
	for _, outage := range []struct {
		name       string
		length     time.Duration
		begin, end func()
	}{
		{"cut for 6s", 6 * time.Second, cut, connect},
		{"cut for 20s", 20 * time.Second, cut, connect},
		{"stalled for 6s", 6 * time.Second, stall, resume},
	} {
		t.Run(outage.name, func(t *testing.T) {
			reads := readNewKeys(t, base)
			f.until(timeout, "an accepted read of a new key", reads.accepted)
			outage.begin()
			<-time.After(outage.length)
			ended := time.Now()
			outage.end()
			f.until(timeout, "an accepted read of a new key after the outage", reads.acceptedAfter(ended))
			got := reads.firstAfter(ended).Sub(ended)
			t.Logf("%s: the first update request was accepted %v after the end", outage.name, got.Round(time.Millisecond))
			limit := redisReturn
			if !*quietMachine {
				limit += 3 * time.Second
			}
			if got > limit {
				t.Errorf("first accepted update request: got %v after the outage, want at most %v", got, limit)
			}
		})
	}
}

// newKeyReads reads new keys continuously and records the accepted update requests.
type newKeyReads struct {
	mu    sync.Mutex
	times []time.Time // when each update request was accepted
}

func readNewKeys(t *testing.T, base string) *newKeyReads {
	t.Helper()
	const readers = 8
	r := &newKeyReads{}
	ctx, cancel := context.WithCancel(t.Context())
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: readers}, Timeout: timeout}
	var all sync.WaitGroup
	for n := range readers {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				status, _, err := readOnce(ctx, client, fmt.Sprintf("%snew-%d-%d-%d", base, time.Now().UnixNano(), n, i))
				if err == nil && status == http.StatusAccepted {
					r.mu.Lock()
					r.times = append(r.times, time.Now())
					r.mu.Unlock()
				}
				<-time.After(20 * time.Millisecond)
			}
		})
	}
	t.Cleanup(func() { cancel(); all.Wait(); client.CloseIdleConnections() })
	return r
}

func (r *newKeyReads) accepted() bool { return !r.firstAfter(time.Time{}).IsZero() }

func (r *newKeyReads) acceptedAfter(at time.Time) func() bool {
	return func() bool { return !r.firstAfter(at).IsZero() }
}

// firstAfter returns the time of the first accepted update request after the given time.
func (r *newKeyReads) firstAfter(at time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, accepted := range r.times {
		if accepted.After(at) {
			return accepted
		}
	}
	return time.Time{}
}
