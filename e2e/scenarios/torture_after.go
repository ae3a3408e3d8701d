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

// lockTTL is that of the longest lock.
const lockTTL = time.Minute

// judgeAfterwards judges that nothing is left that would keep anybody from asking, and that
// all do what they did before.
func (r *tortureResult) judgeAfterwards(ctx context.Context, s *site, w *stateWatcher, l *tortureLoad) error {
	began := time.Now()
	left, err := s.unsettledLocks(ctx)
	if err != nil {
		return err
	}
	r.table.judgeZero("locks that are left of what is committed", left)
	var live []string
	err = harness.Poll(ctx, lockTTL+5*time.Second, func() (bool, error) {
		var err error
		live, err = s.liveLocks(ctx)
		return len(live) == 0, err
	})
	if err != nil {
		return err
	}
	r.table.judge("locks that are left", fmt.Sprintf("%d after %v", len(live), time.Since(began).Round(time.Second)), fmt.Sprintf("0 within %v", lockTTL), len(live) == 0)
	r.table.addExamples("left", live)
	if err := r.judgeRefreshes(ctx, s, w, l); err != nil {
		return err
	}
	return r.judgeWaiters(ctx, s, l)
}

// unsettledLocks are the confirmed locks whose records are committed: those that were there
// before all was, and are there still. A request is settled before it is committed.
func (s *site) unsettledLocks(ctx context.Context) ([]string, error) {
	var left []string
	err := harness.Until(ctx, 2*harness.Timeout, "nothing is left to do", func() (bool, error) {
		before, err := s.liveLocks(ctx)
		if err != nil {
			return false, err
		}
		n, err := s.Lag(ctx, schemas.High, schemas.Low)
		if err != nil || n > 0 {
			return false, nil //nolint:nilerr // a coordinator that moves answers with an error; the next look tells
		}
		after, err := s.liveLocks(ctx)
		left = slices.DeleteFunc(after, func(lock string) bool {
			return !strings.HasSuffix(lock, " CONFIRMED") || !slices.Contains(before, lock)
		})
		return err == nil, err
	})
	return left, err
}

// judgeRefreshes refreshes those that readers insisted on, of which most locks and cool-downs
// were.
func (r *tortureResult) judgeRefreshes(ctx context.Context, s *site, w *stateWatcher, l *tortureLoad) error {
	began := time.Now()
	refused, since := map[string]bool{}, map[string]time.Time{}
	for i := range refreshedKeys {
		refused[fmt.Sprint("k", i)] = true
	}
	err := harness.Poll(ctx, 2*harness.Timeout, func() (bool, error) {
		for key := range refused {
			now := time.Now()
			if l.refresh(ctx, l.queries[len(key)%len(l.queries)], key) {
				delete(refused, key)
				since[key] = now
			}
		}
		return len(refused) == 0, nil
	})
	if err != nil {
		return err
	}
	stale := refreshedKeys
	err = harness.Poll(ctx, 2*harness.Timeout, func() (bool, error) {
		err := w.check(ctx)
		maps.DeleteFunc(since, func(key string, at time.Time) bool { return w.last[key].checked >= at.UnixMicro() })
		stale = len(refused) + len(since)
		return stale == 0, err
	})
	if err != nil {
		return err
	}
	r.table.judge("asked again and not fresh", fmt.Sprintf("%d of %d after %v", stale, refreshedKeys, time.Since(began).Round(time.Second)), "0", stale == 0)
	left, err := s.unsettledLocks(ctx)
	r.table.judgeZero("  locks that are left of them", left)
	return err
}

const (
	waiters = 20 // for each query process
	// maxWakeDelay is how soon most waiters have their answer once it is settled. Who looks
	// again and again has it after half a second.
	maxWakeDelay = 200 * time.Millisecond
)

// judgeWaiters judges that who waits is woken by the end itself, also after the line on which
// ends are told was lost: that of each query process is cut here.
func (r *tortureResult) judgeWaiters(ctx context.Context, s *site, l *tortureLoad) error {
	late := simulator.Range{Min: 1500 * time.Millisecond, Max: 2500 * time.Millisecond}
	if err := s.Control(ctx, simulator.Control{Latency: &late}); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: s.Redis.Address, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	line := client.Subscribe(ctx, schemas.SettledChannel(s.Source))
	defer func() { _ = line.Close() }()
	if _, err := line.Receive(ctx); err != nil {
		return err
	}
	var settled sync.Map // when each key was
	go func() {
		for m := range line.Channel() {
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
		var said string
		const rounds = 3 // the machine may be busy, and a breaker may rest
		for round := range rounds {
			if err := harness.Pause(ctx, 2*time.Second); err != nil {
				return err
			}
			var mu sync.Mutex
			var all sync.WaitGroup
			took, said = nil, ""
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
						said = fmt.Sprintf("; %d %s", reply.status, reply.Reason)
					}
				})
			}
			all.Wait()
			if slices.Sort(took); len(took) == waiters && took[waiters/2] < maxWakeDelay {
				break
			}
		}
		most := time.Duration(-1)
		if len(took) > 0 {
			most = took[len(took)/2]
		}
		r.table.judge("who waits for "+a.name+" is answered after the end", fmt.Sprintf("%d of %d, most within %v%s", len(took), waiters, most.Round(time.Millisecond), said),
			fmt.Sprintf("all, <%v", maxWakeDelay), len(took) == waiters && most < maxWakeDelay)
	}
	return ctx.Err()
}
