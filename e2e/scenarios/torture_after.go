package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
)

// lockTTL is the longest time for which a lock exists if no worker releases it: the TTL of a
// confirmed lock of the LOW lane. Pending locks and locks of the HIGH lane expire earlier.
const lockTTL = time.Minute

// judgeAfterwards judges the installation after the load has ended: no lock blocks new requests,
// refreshes work, and waiting clients are notified.
func (r *tortureResult) judgeAfterwards(ctx context.Context, s *site, w *stateWatcher, l *tortureLoad) error {
	began := time.Now()
	left, err := s.unsettledLocks(ctx)
	if err != nil {
		return err
	}
	r.table.judgeZero("locks left of committed records", left)
	var live []string
	err = harness.Poll(ctx, lockTTL+5*time.Second, func() (bool, error) {
		var err error
		live, err = s.liveLocks(ctx)
		return len(live) == 0, err
	})
	if err != nil {
		return err
	}
	r.table.judge("locks left", fmt.Sprintf("%d after %v", len(live), time.Since(began).Round(time.Second)), fmt.Sprintf("0 within %v", lockTTL), len(live) == 0)
	r.table.addExamples("lock left", live)
	if err := r.judgeRefreshes(ctx, s, w, l); err != nil {
		return err
	}
	return r.judgeWaiters(ctx, s, l)
}

// unsettledLocks returns the confirmed locks that will never be released. A worker releases a
// lock before it commits the offset of the lock's record. At a lag of 0 all offsets are
// committed. A lock that exists both before and after such a moment will therefore never be
// released.
func (s *site) unsettledLocks(ctx context.Context) ([]string, error) {
	var left []string
	err := harness.Until(ctx, 2*harness.Timeout, "a lag of 0", func() (bool, error) {
		before, err := s.liveLocks(ctx)
		if err != nil {
			return false, err
		}
		n, err := s.Lag(ctx, schemas.High, schemas.Low)
		if err != nil || n > 0 {
			return false, nil //nolint:nilerr // requests fail while the group coordinator moves; the next poll decides
		}
		after, err := s.liveLocks(ctx)
		left = slices.DeleteFunc(after, func(lock string) bool {
			return !strings.HasSuffix(lock, " CONFIRMED") || !slices.Contains(before, lock)
		})
		return err == nil, err
	})
	return left, err
}

// judgeRefreshes refreshes the keys that clients refreshed during the run, because most locks and
// cool-downs were on these keys. Each refresh must be accepted, and each key must then be checked
// again.
func (r *tortureResult) judgeRefreshes(ctx context.Context, s *site, w *stateWatcher, l *tortureLoad) error {
	began := time.Now()
	rejected, since := map[string]bool{}, map[string]time.Time{}
	for i := range refreshedKeys {
		rejected[fmt.Sprint("k", i)] = true
	}
	err := harness.Poll(ctx, 2*harness.Timeout, func() (bool, error) {
		for key := range rejected {
			now := time.Now()
			if l.refresh(ctx, l.queries[len(key)%len(l.queries)], key) {
				delete(rejected, key)
				since[key] = now
			}
		}
		return len(rejected) == 0, nil
	})
	if err != nil {
		return err
	}
	stale := refreshedKeys
	err = harness.Poll(ctx, 2*harness.Timeout, func() (bool, error) {
		err := w.check(ctx)
		maps.DeleteFunc(since, func(key string, at time.Time) bool { return w.last[key].checked >= at.UnixMicro() })
		stale = len(rejected) + len(since)
		return stale == 0, err
	})
	if err != nil {
		return err
	}
	r.table.judge("refreshed afterwards and not fresh", fmt.Sprintf("%d of %d after %v", stale, refreshedKeys, time.Since(began).Round(time.Second)), "0", stale == 0)
	left, err := s.unsettledLocks(ctx)
	r.table.judgeZero("  locks left of them", left)
	return err
}

const (
	waiters = 20 // number of waiting clients for each query service
	// maxWakeDelay is the limit of a median: the delay from the settle of a request to the response
	// to a waiting client. Without a notification this delay is longer, because the query service
	// polls for the result only every half a second.
	maxWakeDelay = 200 * time.Millisecond
)

// judgeWaiters judges that waiting clients are notified when their request is settled, even after the
// query services have lost their Redis subscriptions. For this it first cuts the Redis connections of
// each query service.
func (r *tortureResult) judgeWaiters(ctx context.Context, s *site, l *tortureLoad) error {
	slow := simulator.Range{Min: 1500 * time.Millisecond, Max: 2500 * time.Millisecond}
	if err := s.Control(ctx, simulator.Control{Latency: &slow}); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: s.Redis.Address, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	subscription := client.Subscribe(ctx, schemas.SettledChannel(s.Source))
	defer func() { _ = subscription.Close() }()
	if _, err := subscription.Receive(ctx); err != nil {
		return err
	}
	var settled sync.Map // time at which each request was settled, by the entity's key
	go func() {
		for m := range subscription.Channel() {
			if of, err := schemas.DecodeSettled(m.Channel, m.Payload); err == nil {
				settled.LoadOrStore(of.Entity.Key, time.Now())
			}
		}
	}()
	for _, a := range l.queries {
		a.redis.Cut()
	}
	for _, a := range l.queries {
		var took []time.Duration
		var failure string
		const rounds = 3 // the limits must be met in at least one of three rounds, because in a round the machine may be busy or a circuit breaker open
		for round := range rounds {
			if err := harness.Pause(ctx, 2*time.Second); err != nil {
				return err
			}
			var mu sync.Mutex
			var all sync.WaitGroup
			took, failure = nil, ""
			for i := range waiters {
				key := fmt.Sprintf("wait-%s-%d-%d", a.name, round, i)
				all.Go(func() {
					reply := l.call(ctx, a, http.MethodGet, key+"?wait=10s", 2*answerTimeout)
					now := time.Now()
					at, ok := settled.Load(key)
					mu.Lock()
					defer mu.Unlock()
					if when, is := at.(time.Time); ok && is && reply.status == http.StatusOK {
						took = append(took, now.Sub(when))
					} else {
						failure = fmt.Sprintf("; %d %s", reply.status, reply.Refresh.Reason)
					}
				})
			}
			all.Wait()
			if slices.Sort(took); len(took) == waiters && took[waiters/2] < maxWakeDelay {
				break
			}
		}
		median := time.Duration(-1)
		if len(took) > 0 {
			median = took[len(took)/2]
		}
		r.table.judge("waiting clients of "+a.name+" answered after the settle", fmt.Sprintf("%d of %d, p50 %v%s", len(took), waiters, median.Round(time.Millisecond), failure),
			fmt.Sprintf("all, <%v", maxWakeDelay), len(took) == waiters && median < maxWakeDelay)
	}
	return ctx.Err()
}
