package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	metrics "github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/e2e/harness"
	tracing "github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
)

// priority judges upgrades of LOW requests. The entities have LOW locks, and their LOW records
// wait behind a backlog of thousands of records. Then readers request the entities in HIGH. Each
// LOW request must be upgraded, and each entity fetched only once.
func priority(ctx context.Context, s *site, _ options) error {
	const different, before = 50, 5000
	l, err := s.startLanesWithoutWorker(ctx, onlySmall)
	if err != nil {
		return err
	}
	l.enqueueLow(ctx, harness.Keys("low-", before)...)
	if l.failed != nil {
		return l.failed
	}
	wanted := harness.Keys("key-", different)
	if err := s.prefetch(ctx, wanted); err != nil {
		return err
	}
	upgraded, wrong := concurrently(different, func(n int) (bool, error) { return l.reader.Queue(ctx, wanted[n]) })
	if wrong != nil {
		return wrong
	}
	// A worker skips a LOW record only if the entity's HIGH lock is confirmed or its HIGH request
	// has ended. The worker is therefore started only when the HIGH records are on their topic.
	if err := harness.Until(ctx, harness.Timeout, "the HIGH requests are on their topic", func() (bool, error) {
		records, err := s.Requests(ctx, schemas.High)
		return len(records) >= different, err
	}); err != nil {
		return err
	}
	worker, err := s.Worker(ctx, "worker")
	if err != nil {
		return err
	}
	if err := s.UntilCommitted(ctx, 4*harness.Timeout); err != nil {
		return err
	}
	high, err := s.Requests(ctx, schemas.High)
	if err != nil {
		return err
	}
	low, err := s.Requests(ctx, schemas.Low)
	if err != nil {
		return err
	}
	all, err := s.Arrivals(ctx)
	if err != nil {
		return err
	}
	version, higher := map[string]int64{}, 0
	for _, r := range low {
		version[r.Key] = r.Version
	}
	for _, r := range high {
		if r.Version > version[r.Key] && version[r.Key] > 0 {
			higher++
		}
	}
	ahead, called := 0, 0
	for _, a := range all {
		if strings.HasPrefix(a.Key, "key-") {
			if called++; called == different {
				ahead = harness.CountCalls(all, "low-", time.Time{}, a.At)
			}
		}
	}
	t := &table{}
	t.judgeEqual("reads that queued an update despite a LOW lock", upgraded, different)
	t.judgeEqual("HIGH records with a version above that of LOW", higher, different)
	t.judgeEqual("HIGH records, LOW records", len(high)*10_000+len(low), different*10_000+different+before)
	t.lines[len(t.lines)-1].figure = fmt.Sprintf("%d, %d", len(high), len(low))
	t.lines[len(t.lines)-1].limit = fmt.Sprintf("=%d, =%d", different, different+before)
	t.judgeEqual(fmt.Sprintf("calls for these %d keys, with LOW records skipped", different), called, different)
	t.judge(fmt.Sprintf("calls of the LOW backlog of %d before the last of them", before), strconv.Itoa(ahead), fmt.Sprintf("<%d", before/10), ahead < before/10)
	return skipping(ctx, l, worker, t)
}

// skipping judges upgrades without a backlog. The worker reads the LOW records while the calls of
// the HIGH requests are in flight, and must skip the LOW records.
func skipping(ctx context.Context, l *lanes, worker *harness.Process, t *table) error {
	const different, latency = 50, 3 * time.Second
	worker.Stop()
	st, err := l.Stats(ctx)
	if err != nil {
		return err
	}
	done := st.Arrivals
	if err := l.SetLatency(ctx, latency, latency); err != nil {
		return err
	}
	wanted := harness.Keys("both-", different)
	if err := l.prefetch(ctx, wanted); err != nil {
		return err
	}
	upgraded, err := concurrently(different, func(n int) (bool, error) { return l.reader.Queue(ctx, wanted[n]) })
	if err != nil {
		return err
	}
	if err := harness.Until(ctx, harness.Timeout, "the HIGH requests are on their topic", func() (bool, error) {
		lag, err := l.Lag(ctx, schemas.High)
		return lag >= different, err
	}); err != nil {
		return err
	}
	if _, err := l.Worker(ctx, "worker-2"); err != nil {
		return err
	}
	if err := l.UntilCommitted(ctx, 4*harness.Timeout); err != nil {
		return err
	}
	all, err := l.Arrivals(ctx)
	if err != nil {
		return err
	}
	t.judgeEqual("without a backlog: reads that queued an update", upgraded, different)
	t.judgeEqual("  calls, each in flight for "+latency.String()+" while LOW records are read", len(all)-done, different)
	l.addResult("priority", t)
	return nil
}

// prefetch enqueues LOW requests with package producer, as a scheduler does, and waits until Kafka
// has acknowledged all of them.
func (s *site) prefetch(ctx context.Context, keys []string) error {
	rdb := redis.NewClient(&redis.Options{Addr: s.Redis.Address})
	defer func() { _ = rdb.Close() }()
	client, err := s.ConnectKafka(producer.ClientOptions(len(keys))...)
	if err != nil {
		return err
	}
	defer client.Close()
	p := producer.New(rdb, client, len(keys), slog.New(slog.DiscardHandler), metrics.NewRegistry(), tracing.Tracer{})
	runCtx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- p.Run(runCtx) }()
	var requests []producer.Request
	for _, key := range keys {
		requests = append(requests, producer.Request{
			Entity: schemas.Entity{Source: s.Source, Facet: small, Key: key}, Lane: schemas.Low, Reason: schemas.Prefetch,
		})
	}
	for i, r := range p.EnqueueAll(ctx, requests) {
		if r.Outcome != producer.Published {
			err = fmt.Errorf("%s is not published: %s, %w", keys[i], r.Outcome, r.Err)
		}
	}
	stop()
	if stopped := <-done; err == nil { // p.Run returns only after it has confirmed or rolled back the lock of each request
		err = stopped
	}
	return err
}
