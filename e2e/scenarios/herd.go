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

// herd sends 1,000 reads of one new key at the same time, through several query services. It judges
// that they cause one record and one upstream call.
func herd(ctx context.Context, s *site, _ options) error {
	const processes, requests, key = 4, 1000, "the-one"
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
	// Each query service reads another key before the herd, so that its cache and its connections
	// are in use when the herd begins.
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
	answered, wrong := concurrently(requests, func(n int) (bool, error) {
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
	locked, err := s.untilUnlocked(ctx, key)
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
	t.judgeEqual("reads of one key answered with its snapshot", answered, requests)
	if wrong != nil {
		t.report("  another response", "%v", wrong)
	}
	// A reader that is notified waits about as long as the upstream call, 1 s. A reader that is
	// not notified waits 20 s and exceeds the limit.
	t.judgeBelow("time until all are answered, with a call of 1 s", took, 10*time.Second)
	t.judge("lock exists "+settleTime.String()+" later", locked, "no", locked == "no")
	t.judgeEqual("records on the topic", len(records), 1)
	t.judgeEqual("calls to the upstream", st.Arrivals, 1)
	s.addResult("herd", t)
	return nil
}

// settleTime is the maximum time from the commit of a record until its lock is released. Without
// a release the lock exists for much longer, until its TTL ends.
const settleTime = 2 * time.Second

// untilUnlocked waits up to settleTime until an entity has no lock. It returns "yes" if the lock
// still exists, and "no" otherwise.
func (s *site) untilUnlocked(ctx context.Context, key string) (locked string, err error) {
	rdb := redis.NewClient(&redis.Options{Addr: s.Redis.Address})
	defer func() { _ = rdb.Close() }()
	of := lock{rdb, schemas.Entity{Source: s.Source, Facet: small, Key: key}}
	err = harness.Poll(ctx, settleTime, func() (bool, error) {
		held, err := rdb.HExists(ctx, of.key(), "lock").Result()
		if locked = "no"; held {
			locked = "yes"
		}
		return !held, err
	})
	return locked, err
}

// concurrently calls do(0) to do(n-1) at the same time, each in its own goroutine. It returns the
// number of calls that returned true, and the last error.
func concurrently(n int, do func(i int) (bool, error)) (succeeded int, err error) {
	var good atomic.Int64
	var failed atomic.Pointer[error]
	var ready, running sync.WaitGroup
	start := make(chan struct{})
	ready.Add(n)
	for i := range n {
		running.Go(func() {
			ready.Done()
			<-start
			ok, err := do(i)
			if err != nil {
				failed.Store(&err)
			} else if ok {
				good.Add(1)
			}
		})
	}
	ready.Wait()
	close(start)
	running.Wait()
	if e := failed.Load(); e != nil {
		err = *e
	}
	return int(good.Load()), err
}

// dedup judges that simultaneous reads of a key through ten query services publish one record. No
// worker runs before all records are counted.
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
	// Each query service writes its record within the producer's delivery timeout of 10 s.
	// harness.Timeout is longer than that.
	if err := harness.Until(ctx, harness.Timeout, "a record of each key", func() (bool, error) {
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
	t.judgeEqual("reads answered with 202", queued, asked)
	t.judgeBelow("  all sent within the TTL of a lock", took, 30*time.Second)
	t.judgeEqual("keys", len(harness.CountByKey(records)), different)
	t.judgeEqual("records on the topic", len(records), different)
	total := asked - different
	removed := 1 - float64(len(records)-different)/float64(total)
	t.judge(fmt.Sprintf("duplicates removed, of %d", total), percent(removed), ">99.9 %", removed > 0.999)
	t.markTarget(duplicates)
	// Start a worker: each published record must lead to one call.
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
	t.judgeEqual("calls of a worker started afterwards", st.Arrivals, different)
	s.addResult("dedup", t)
	return nil
}
