package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// normal judges two latencies under the load of an evening with many users. The latency of a HIGH
// request ends when its reader has received the snapshot. The latency of a read of a stored
// snapshot ends with the last byte of the response.
func normal(ctx context.Context, s *site, o options) error {
	const high, low, read, known = 50, 200, 100, 1000
	length := time.Duration(o.seconds) * time.Second
	l, err := s.startLanes(ctx, map[string]string{small: "basic", facet: o.document})
	if err != nil {
		return err
	}
	if err := s.Store(ctx, harness.Stored{Facet: facet, Prefix: "stored-", Count: known, Checked: time.Now()}); err != nil {
		return err
	}
	x, err := s.expect()
	if err != nil {
		return err
	}
	got := bodies{}
	var mu sync.Mutex
	var reads, highs []time.Duration
	note := func(to *[]time.Duration, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		*to = append(*to, took)
	}
	var requestedHigh, wrong atomic.Int64
	var last atomic.Pointer[error]
	fail := func(err error) {
		wrong.Add(1)
		last.Store(&err)
	}
	began := time.Now()
	counts := func() bool { return time.Since(began) > warmUp } // requests during the warm-up are not judged
	jobs := []struct {
		rate int
		do   func(n int)
	}{
		{read, func(n int) {
			asked, count := time.Now(), counts()
			text, status, err := l.reader.Do(ctx, http.MethodGet, fmt.Sprint(l.reader.API, "/", facet, "/stored-", n%known), "zstd")
			took := time.Since(asked)
			if err != nil || status != http.StatusOK {
				fail(fmt.Errorf("read: %d, %w", status, err))
				return
			}
			if count {
				note(&reads, took)
			}
			mu.Lock()
			defer mu.Unlock()
			got.add(n%known, text)
		}},
		{high, func(n int) {
			asked, count := time.Now(), counts()
			key := fmt.Sprint("high-", n)
			a, err := l.reader.Read(ctx, key, "?wait=20s")
			took := time.Since(asked)
			if err == nil && a.Freshness == "FRESH" {
				err = x.check(ctx, a, key)
			}
			if count {
				requestedHigh.Add(1)
			}
			if err != nil || a.Freshness != "FRESH" {
				fail(fmt.Errorf("HIGH request: %d %s, %w", a.Status, a.Freshness, err))
			} else if count {
				note(&highs, took)
			}
		}},
		{low / 20, func(n int) { l.enqueueLow(ctx, harness.Keys(fmt.Sprint("low-", n, "-"), 20)...) }},
	}
	var running sync.WaitGroup
	for _, j := range jobs {
		running.Go(func() { _ = harness.AtRate(ctx, j.rate, warmUp+length, j.do) })
	}
	running.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	from, to := began.Add(warmUp), began.Add(warmUp+length)
	t := &table{}
	t.judgeEqual("reads and HIGH requests failed or with another key's document", int(wrong.Load()), 0)
	if e := last.Load(); e != nil {
		t.report("  the last failure", "%v", *e)
	}
	t.judgeEqual("HIGH requests answered with their snapshot", len(highs), int(requestedHigh.Load()))
	t.judgeBelow("HIGH latency until stored and read, p95", p95(highs), 3*time.Second)
	t.markTarget(highP95)
	t.judgeBelow(fmt.Sprintf("latency of %d reads of stored %s, p95", len(reads), o.document), p95(reads), 50*time.Millisecond)
	wrongDocuments, err := got.countWrong(ctx, x)
	if err != nil {
		return err
	}
	t.judge("  with another key's document", fmt.Sprintf("%d of %d different bodies", wrongDocuments, got.count()), "0, some", wrongDocuments == 0 && got.count() > 0)
	if err := s.UntilCommitted(ctx, 2*harness.Timeout); err != nil {
		return err
	}
	all, err := l.judgeEnd(ctx, t)
	if err != nil {
		return err
	}
	// The upper limit is the cap of LOW and not the requested rate: on a busy machine LOW gets a
	// lag and catches up later.
	t.judgeRate("LOW calls, of 200/s requested", all, "low-", from, to, minShare*low, 1.01*lowRate)
	t.judgeEqual("repeated calls", len(all)-harness.DistinctKeys(all), 0)
	t.judgeBelow("LOW lag at the end", l.lagAt(all, "low-", to), 30*time.Second)
	if err := s.judgeLoss(ctx, t); err != nil {
		return err
	}
	if l.failed != nil {
		return l.failed
	}
	s.addResult("normal", t)
	return nil
}
