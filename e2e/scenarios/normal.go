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

// normal: what is asked for on a usual evening. A HIGH request is over when its reader
// has the snapshot; a read of what is stored is timed to its last byte.
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
	var askedHigh, wrong atomic.Int64
	var last atomic.Pointer[error]
	fail := func(err error) {
		wrong.Add(1)
		last.Store(&err)
	}
	began := time.Now()
	counts := func() bool { return time.Since(began) > warmUp } // who asks before counts for nothing
	jobs := []struct {
		rate int
		do   func(n int)
	}{
		{read, func(n int) {
			asked, count := time.Now(), counts()
			text, status, err := l.reader.Do(ctx, http.MethodGet, fmt.Sprint(l.reader.API, "/", facet, "/stored-", n%known), "zstd")
			took := time.Since(asked)
			if err != nil || status != http.StatusOK {
				fail(fmt.Errorf("a read: %d, %w", status, err))
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
				askedHigh.Add(1)
			}
			if err != nil || a.Freshness != "FRESH" {
				fail(fmt.Errorf("a HIGH request: %d %s, %w", a.Status, a.Freshness, err))
			} else if count {
				note(&highs, took)
			}
		}},
		{low / 20, func(n int) { l.enqueueLow(ctx, harness.Keys(fmt.Sprint("low-", n, "-"), 20)...) }},
	}
	var under sync.WaitGroup
	for _, j := range jobs {
		under.Go(func() { _ = harness.AtRate(ctx, j.rate, warmUp+length, j.do) })
	}
	under.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	from, to := began.Add(warmUp), began.Add(warmUp+length)
	t := &table{}
	t.judgeEqual("reads and HIGH requests that fail, or have another key's document", int(wrong.Load()), 0)
	if e := last.Load(); e != nil {
		t.report("  the last of them", "%v", *e)
	}
	t.judgeEqual("HIGH requests that end with their snapshot", len(highs), int(askedHigh.Load()))
	t.judgeBelow("  from asked to stored and read, 95 of 100", p95(highs), 3*time.Second)
	t.markTarget(highP95)
	t.judgeBelow(fmt.Sprintf("%d reads of stored %s, 95 of 100", len(reads), o.document), p95(reads), 50*time.Millisecond)
	another, err := got.countWrong(ctx, x)
	if err != nil {
		return err
	}
	t.judge("  those with another key's document", fmt.Sprintf("%d of %d different", another, got.count()), "0, some", another == 0 && got.count() > 0)
	if err := s.UntilCommitted(ctx, 2*harness.Timeout); err != nil {
		return err
	}
	all, err := l.judgeEnd(ctx, t)
	if err != nil {
		return err
	}
	// On a busy machine it makes up for what it was behind, within its cap.
	t.judgeRate("calls of LOW, which asks for 200/s", all, "low-", from, to, minShare*low, 1.01*lowRate)
	t.judgeEqual("calls made twice", len(all)-harness.DistinctKeys(all), 0)
	t.judgeBelow("LOW is behind at the end", l.lagAt(all, "low-", to), 30*time.Second)
	if err := s.judgeLoss(ctx, t); err != nil {
		return err
	}
	if l.failed != nil {
		return l.failed
	}
	s.addResult("normal", t)
	return nil
}
