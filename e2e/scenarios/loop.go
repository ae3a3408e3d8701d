package main

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// loop continuously reads entities that never change. It judges that each entity is fetched at most
// once per freshFor, and that fetches after the first write only the check time of the entity.
func loop(ctx context.Context, s *site, o options) error {
	const different, rate, fresh = 20, 100, 2 * time.Second
	s.Edits = []string{"freshFor: 1h", "freshFor: " + fresh.String()}
	if err := s.Prepare(ctx, onlySmall, "--latency", "30ms-300ms"); err != nil {
		return err
	}
	for _, name := range []string{"worker-1", "worker-2"} {
		if _, err := s.Worker(ctx, name); err != nil {
			return err
		}
	}
	readers, err := s.Readers(ctx, 2, small, "")
	if err != nil {
		return err
	}
	x, err := s.expect()
	if err != nil {
		return err
	}
	want := map[string][]byte{}
	for _, key := range harness.Keys("key-", different) {
		if want[key], err = x.document(ctx, small, key); err != nil {
			return err
		}
	}
	if err := readers[0].ReadMany(ctx, harness.Keys("key-", different)); err != nil {
		return err
	}
	if err := s.UntilStored(ctx, harness.Timeout, "key-", different); err != nil {
		return err
	}
	if err := s.UntilCommitted(ctx, harness.Timeout); err != nil {
		return err
	}
	const (
		stateUpdates = "SELECT coalesce(sum(n_tup_upd), 0) FROM pg_stat_user_tables WHERE relname LIKE 'snapshot_state_%'"
		payloads     = "SELECT coalesce(sum(n_tup_ins + n_tup_upd), 0) FROM pg_stat_user_tables WHERE relname LIKE 'snapshot_payload_%'"
		unchanged    = "SELECT count(*) FROM snapshot_state WHERE last_updated_at < $1 AND last_checked_at >= $1"
	)
	mark := time.Now()
	var failed atomic.Pointer[error]
	var wrongDocuments atomic.Int64
	err = harness.AtRate(ctx, rate, time.Duration(o.seconds)*time.Second, func(n int) {
		key := fmt.Sprint("key-", n%different)
		a, err := readers[n%2].Read(ctx, key, "")
		if err != nil {
			failed.Store(&err)
		} else if !bytes.Equal(a.Snapshot, want[key]) {
			wrongDocuments.Add(1)
		}
	})
	if err != nil {
		return err
	}
	if e := failed.Load(); e != nil {
		return *e
	}
	length := time.Since(mark)
	if err := s.UntilCommitted(ctx, harness.Timeout); err != nil {
		return err
	}
	all, err := s.Arrivals(ctx)
	if err != nil {
		return err
	}
	maxCalls, minCalls, loops := perEntity(all, fresh)
	refreshes := len(all) - different
	written := 0
	// PostgreSQL updates the counters of written rows with a delay, so poll these counters.
	err = harness.Poll(ctx, harness.Timeout, func() (done bool, err error) {
		written, err = s.Number(ctx, stateUpdates)
		return written >= refreshes, err
	})
	if err != nil {
		return err
	}
	payloadWrites, err := s.Number(ctx, payloads)
	if err != nil {
		return err
	}
	rechecked, err := s.Number(ctx, unchanged, mark.UnixMicro())
	if err != nil {
		return err
	}
	intervals := int(length/fresh) + 1 // maximum number of calls for one entity: the first fetch, and one for each freshFor
	// The time between two calls may be up to a second longer than freshFor, because it also includes
	// the wait for the next read, the call and the write.
	expected := int(length/(fresh+time.Second)) + 1
	t := &table{}
	t.judge("calls for one entity, min and max", fmt.Sprintf("%d, %d", minCalls, maxCalls), fmt.Sprintf(">=%d, <=%d", expected, intervals+1),
		minCalls >= expected && maxCalls <= intervals+1)
	t.judgeEqual("reads with another document", int(wrongDocuments.Load()), 0)
	t.judgeEqual("calls for entities that were not stale", loops, 0)
	t.markTarget(staleLoops)
	t.judgeEqual("entities checked again without an update", rechecked, different)
	t.judge(fmt.Sprintf("unchanged responses written without a payload, of %d", refreshes), percent(float64(written)/float64(refreshes)), "=100.00 %",
		written == refreshes && payloadWrites == different)
	t.markTarget(lightWrites)
	t.judgeEqual("payloads written after the first", payloadWrites-different, 0)
	if err := s.judgeLoss(ctx, t); err != nil {
		return err
	}
	s.addResult("stale-loop", t)
	return nil
}

// perEntity returns the largest and the smallest number of calls for one entity, and the number of
// loops. A call counts as a loop if the previous call for its entity was sent less than three quarters
// of the interval earlier. The limit is not the whole interval: freshFor counts from the check time of
// the entity, and the time between the call and the check time varies.
func perEntity(all []harness.Arrival, interval time.Duration) (maxCalls, minCalls, loops int) {
	count, last := map[string]int{}, map[string]time.Time{}
	for _, a := range all {
		if before, ok := last[a.Key]; ok && a.At.Sub(before) < interval*3/4 {
			loops++
		}
		count[a.Key]++
		last[a.Key] = a.At
	}
	for _, n := range count {
		if maxCalls = max(maxCalls, n); minCalls == 0 || n < minCalls {
			minCalls = n
		}
	}
	return maxCalls, minCalls, loops
}
