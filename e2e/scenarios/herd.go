package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
)

// herd: 1,000 identical requests at once over several query processes are one record
// and one call.
func herd(ctx context.Context, s *site, _ options) error {
	const processes, crowd, key = 4, 1000, "the-one"
	if err := s.Prepare(ctx, onlySmall, "--latency", "1s"); err != nil {
		return err
	}
	if _, err := s.Worker(ctx, "worker"); err != nil {
		return err
	}
	readers, err := s.Readers(ctx, processes, small, "")
	if err != nil {
		return err
	}
	// Each process has another one's document in its memory.
	if err := s.Store(ctx, harness.Stored{Facet: small, Prefix: "another-", Count: 1, Checked: time.Now()}); err != nil {
		return err
	}
	for _, r := range readers {
		if _, err := r.Read(ctx, "another-0", ""); err != nil {
			return err
		}
	}
	x, err := s.expect()
	if err != nil {
		return err
	}
	want, err := x.document(ctx, small, key)
	if err != nil {
		return err
	}
	began := time.Now()
	answered, wrong := concurrently(crowd, func(n int) (bool, error) {
		a, err := readers[n%processes].Read(ctx, key, "?wait=20s")
		if err == nil && a.Freshness == "FRESH" && !bytes.Equal(a.Snapshot, want) {
			err = errWrongDocument
		}
		return a.Status == http.StatusOK && a.Freshness == "FRESH", err
	})
	took := time.Since(began)
	if err := s.UntilCommitted(ctx, harness.Timeout); err != nil {
		return err
	}
	left, err := s.untilUnlocked(ctx, key)
	if err != nil {
		return err
	}
	records, err := s.Requests(ctx, schemas.High)
	if err != nil {
		return err
	}
	st, err := s.Stats(ctx)
	if err != nil {
		return err
	}
	t := &table{}
	t.judgeEqual("requests of one key that end with its snapshot", answered, crowd)
	if wrong != nil {
		t.report("  one that does not", "%v", wrong)
	}
	// Those who are told wait as long as the call takes; who is not waits his 20 s.
	t.judgeBelow("all of them within, of which the call takes 1 s", took, 10*time.Second)
	t.judge("the lock is left "+settleTime.String()+" later", left, "no", left == "no")
	t.judgeEqual("records on the topic", len(records), 1)
	t.judgeEqual("calls to the upstream", st.Arrivals, 1)
	s.addResult("herd", t)
	return nil
}

// settleTime is how long a lock may outlast the commit of its record. A lock that
// nobody gives back goes by itself after a minute.
const settleTime = 2 * time.Second

// untilUnlocked says whether an entity's lock is left soon after its record is done.
func (s *site) untilUnlocked(ctx context.Context, key string) (left string, err error) {
	rdb := redis.NewClient(&redis.Options{Addr: s.Redis.Address})
	defer func() { _ = rdb.Close() }()
	of := lock{rdb, schemas.Entity{Source: s.Source, Facet: small, Key: key}}
	err = harness.Poll(ctx, settleTime, func() (bool, error) {
		held, err := rdb.HExists(ctx, of.key(), "lock").Result()
		if left = "no"; held {
			left = "yes"
		}
		return !held, err
	})
	return left, err
}

// concurrently does something so many times at the same time, and counts how often it went
// well.
func concurrently(times int, do func(n int) (bool, error)) (well int, err error) {
	var good atomic.Int64
	var failed atomic.Pointer[error]
	var ready, under sync.WaitGroup
	start := make(chan struct{})
	ready.Add(times)
	for n := range times {
		under.Go(func() {
			ready.Done()
			<-start
			ok, err := do(n)
			if err != nil {
				failed.Store(&err)
			} else if ok {
				good.Add(1)
			}
		})
	}
	ready.Wait()
	close(start)
	under.Wait()
	if e := failed.Load(); e != nil {
		err = *e
	}
	return int(good.Load()), err
}

// dedup: ten processes are asked for the same keys at the same moment; each key has
// one record. No worker runs meanwhile: what is judged is what was published.
func dedup(ctx context.Context, s *site, _ options) error {
	const processes, different, rounds = 10, 100, 5
	if err := s.Prepare(ctx, onlySmall); err != nil {
		return err
	}
	readers, err := s.Readers(ctx, processes, small, "")
	if err != nil {
		return err
	}
	began, asked, queued := time.Now(), 0, 0
	for range rounds {
		for key := range different {
			n, err := concurrently(processes, func(n int) (bool, error) {
				a, err := readers[n].Read(ctx, fmt.Sprint("key-", key), "")
				return a.Status == http.StatusAccepted, err
			})
			if err != nil {
				return err
			}
			asked, queued = asked+processes, queued+n
		}
	}
	took := time.Since(began)
	// What was acquired is published within the time that a delivery may take.
	if err := harness.Until(ctx, harness.Timeout, "all are published", func() (bool, error) {
		records, err := s.Requests(ctx, schemas.High)
		return len(harness.CountByKey(records)) == different, err
	}); err != nil {
		return err
	}
	records, err := s.Requests(ctx, schemas.High)
	if err != nil {
		return err
	}
	t := &table{}
	t.judgeEqual("requests answered 202, of ten processes at a time", queued, asked)
	t.judgeBelow("  all asked within a lock's life", took, 30*time.Second)
	t.judgeEqual("keys", len(harness.CountByKey(records)), different)
	t.judgeEqual("records on the topic", len(records), different)
	superfluous := asked - different
	removed := 1 - float64(len(records)-different)/float64(superfluous)
	t.judge(fmt.Sprintf("of %d duplicates are removed", superfluous), percent(removed), ">99.9 %", removed > 0.999)
	t.markTarget(duplicates)
	// And what was published is fetched once.
	if _, err := s.Worker(ctx, "worker"); err != nil {
		return err
	}
	if err := s.UntilCommitted(ctx, 2*harness.Timeout); err != nil {
		return err
	}
	st, err := s.Stats(ctx)
	if err != nil {
		return err
	}
	t.judgeEqual("calls of a worker that begins then", st.Arrivals, different)
	s.addResult("dedup", t)
	return nil
}
