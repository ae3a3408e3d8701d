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

// priority: LOW holds the locks, and its records lie behind thousands; then readers ask
// in HIGH. They are upgraded, and fetched once.
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
	// LOW's records are skipped for as long as HIGH's are certainly on their topic, or
	// when they are done.
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
	number, above := map[string]int64{}, 0
	for _, r := range low {
		number[r.Key] = r.Version
	}
	for _, r := range high {
		if r.Version > number[r.Key] && number[r.Key] > 0 {
			above++
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
	t.judgeEqual("reads whose refresh is queued while LOW has the lock", upgraded, different)
	t.judgeEqual("HIGH records, with a number above LOW's", above, different)
	t.judgeEqual("HIGH records, LOW records", len(high)*10_000+len(low), different*10_000+different+before)
	t.lines[len(t.lines)-1].figure = fmt.Sprintf("%d, %d", len(high), len(low))
	t.lines[len(t.lines)-1].limit = fmt.Sprintf("=%d, =%d", different, different+before)
	t.judgeEqual(fmt.Sprintf("calls for these %d keys, LOW's records skipped", different), called, different)
	t.judge(fmt.Sprintf("calls for the %d of LOW before the last of them", before), strconv.Itoa(ahead), fmt.Sprintf("<%d", before/10), ahead < before/10)
	return skipping(ctx, l, worker, t)
}

// skipping: without a backlog LOW's records are read while HIGH's calls are under way,
// and are skipped then.
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
		waiting, err := l.Lag(ctx, schemas.High)
		return waiting >= different, err
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
	t.judgeEqual("without a backlog: reads whose refresh is queued", upgraded, different)
	t.judgeEqual("  calls, each under way for "+latency.String()+" while LOW's records are read", len(all)-done, different)
	l.addResult("priority", t)
	return nil
}

// prefetch asks in the LOW lane at the producer's door, as a scheduler does, and waits
// until Kafka has acknowledged all.
func (s *site) prefetch(ctx context.Context, keys []string) error {
	rdb := redis.NewClient(&redis.Options{Addr: s.Redis.Address})
	defer func() { _ = rdb.Close() }()
	client, err := s.ConnectKafka(producer.ClientOptions(len(keys))...)
	if err != nil {
		return err
	}
	defer client.Close()
	p := producer.New(rdb, client, len(keys), slog.New(slog.DiscardHandler), metrics.NewRegistry(), tracing.Tracer{})
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- p.Run(running) }()
	var wishes []producer.Request
	for _, key := range keys {
		wishes = append(wishes, producer.Request{
			Entity: schemas.Entity{Source: s.Source, Facet: small, Key: key}, Lane: schemas.Low, Reason: schemas.Prefetch,
		})
	}
	for i, r := range p.EnqueueAll(ctx, wishes) {
		if r.Outcome != producer.Published {
			err = fmt.Errorf("%s is not published: %s, %w", keys[i], r.Outcome, r.Err)
		}
	}
	stop()
	if stopped := <-done; err == nil { // it has confirmed or rolled back all
		err = stopped
	}
	return err
}
