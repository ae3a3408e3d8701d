package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/schemas"
)

// herd: 1,000 identical requests at once over several query processes are one record
// and one call.
func herd(ctx context.Context, s *site, _ options) error {
	const processes, crowd, key = 4, 1000, "the-one"
	if err := s.prepare(ctx, onlySmall, "--latency", "1s"); err != nil {
		return err
	}
	if _, err := s.worker(ctx, "worker"); err != nil {
		return err
	}
	readers, err := s.readers(ctx, processes, "")
	if err != nil {
		return err
	}
	answered, wrong := atOnce(crowd, func(n int) (bool, error) {
		a, err := readers[n%processes].read(ctx, key, "?wait=20s")
		return a.status == http.StatusOK && a.Freshness == "FRESH", err
	})
	if err := s.untilCommitted(ctx, patience); err != nil {
		return err
	}
	records, err := s.records(ctx, schemas.High)
	if err != nil {
		return err
	}
	st, err := s.stats(ctx)
	if err != nil {
		return err
	}
	t := &table{}
	t.count("requests of one key that end with its snapshot", answered, crowd)
	if wrong != nil {
		t.figure("  one that does not", "%v", wrong)
	}
	t.count("records on the topic", len(records), 1)
	t.count("calls to the upstream", st.Arrivals, 1)
	s.judged("herd", t)
	return nil
}

// atOnce does something so many times at the same time, and counts how often it went
// well.
func atOnce(times int, do func(n int) (bool, error)) (well int, err error) {
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
// one record. No worker runs: what is judged is what was published.
func dedup(ctx context.Context, s *site, _ options) error {
	const processes, different, rounds = 10, 100, 5
	if err := s.prepare(ctx, onlySmall); err != nil {
		return err
	}
	readers, err := s.readers(ctx, processes, "")
	if err != nil {
		return err
	}
	began, asked, queued := time.Now(), 0, 0
	for range rounds {
		for key := range different {
			n, err := atOnce(processes, func(n int) (bool, error) {
				a, err := readers[n].read(ctx, fmt.Sprint("key-", key), "")
				return a.status == http.StatusAccepted, err
			})
			if err != nil {
				return err
			}
			asked, queued = asked+processes, queued+n
		}
	}
	took := time.Since(began)
	// What was acquired is published within the time that a delivery may take.
	if err := s.until(ctx, patience, "all are published", func() (bool, error) {
		records, err := s.records(ctx, schemas.High)
		return len(perKey(records)) == different, err
	}); err != nil {
		return err
	}
	records, err := s.records(ctx, schemas.High)
	if err != nil {
		return err
	}
	t := &table{}
	t.count("requests answered 202, of ten processes at a time", queued, asked)
	t.under("  all asked within a lock's life", took, 30*time.Second)
	t.count("keys", len(perKey(records)), different)
	t.count("records on the topic", len(records), different)
	superfluous := asked - different
	removed := 1 - float64(len(records)-different)/float64(superfluous)
	t.judge(fmt.Sprintf("of %d duplicates are removed", superfluous), percent(removed), ">99.9 %", removed > 0.999)
	t.target(duplicates)
	s.judged("dedup", t)
	return nil
}
