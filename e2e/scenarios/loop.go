package main

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// loop: entities whose content never changes are read on and on. Each is fetched once
// in an interval, and only its check time is written.
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
		lightWrites = "SELECT coalesce(sum(n_tup_upd), 0) FROM pg_stat_user_tables WHERE relname LIKE 'snapshot_state_%'"
		payloads    = "SELECT coalesce(sum(n_tup_ins + n_tup_upd), 0) FROM pg_stat_user_tables WHERE relname LIKE 'snapshot_payload_%'"
		unchanged   = "SELECT count(*) FROM snapshot_state WHERE last_updated_at < $1 AND last_checked_at >= $1"
	)
	mark := time.Now()
	var failed atomic.Pointer[error]
	var another atomic.Int64
	err = harness.AtRate(ctx, rate, time.Duration(o.seconds)*time.Second, func(n int) {
		key := fmt.Sprint("key-", n%different)
		a, err := readers[n%2].Read(ctx, key, "")
		if err != nil {
			failed.Store(&err)
		} else if !bytes.Equal(a.Snapshot, want[key]) {
			another.Add(1)
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
	most, least, loops := perEntity(all, fresh)
	refreshes := len(all) - different
	written := 0
	// PostgreSQL's own counts come a little later.
	err = harness.Poll(ctx, harness.Timeout, func() (done bool, err error) {
		written, err = s.Number(ctx, lightWrites)
		return written >= refreshes, err
	})
	if err != nil {
		return err
	}
	heavy, err := s.Number(ctx, payloads)
	if err != nil {
		return err
	}
	moved, err := s.Number(ctx, unchanged, mark.UnixMicro())
	if err != nil {
		return err
	}
	intervals := int(length/fresh) + 1 // and the first
	// Until it is read again, asked for, called and stored another second may pass.
	enough := int(length/(fresh+time.Second)) + 1
	t := &table{}
	t.judge("calls for one entity, least and most", fmt.Sprintf("%d, %d", least, most), fmt.Sprintf(">=%d, <=%d", enough, intervals+1),
		least >= enough && most <= intervals+1)
	t.judgeEqual("reads that were answered with another document", int(another.Load()), 0)
	t.judgeEqual("calls for what was fetched less than an interval before", loops, 0)
	t.markTarget(staleLoops)
	t.judgeEqual("entities with a later check time, and no later change", moved, different)
	t.judge(fmt.Sprintf("of %d unchanged answers are written light", refreshes), percent(float64(written)/float64(refreshes)), "=100.00 %",
		written == refreshes && heavy == different)
	t.markTarget(lightWrites)
	t.judgeEqual("payloads written after the first", heavy-different, 0)
	if err := s.judgeLoss(ctx, t); err != nil {
		return err
	}
	s.addResult("stale-loop", t)
	return nil
}

// perEntity counts each entity's calls, and those that come sooner after the one before
// than an interval: nobody could have found it stale. A call reaches the upstream some
// time after its check time, which varies.
func perEntity(all []harness.Arrival, interval time.Duration) (most, least, loops int) {
	count, last := map[string]int{}, map[string]time.Time{}
	for _, a := range all {
		if before, ok := last[a.Key]; ok && a.At.Sub(before) < interval*3/4 {
			loops++
		}
		count[a.Key]++
		last[a.Key] = a.At
	}
	for _, n := range count {
		if most = max(most, n); least == 0 || n < least {
			least = n
		}
	}
	return most, least, loops
}
