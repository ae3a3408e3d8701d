package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/retries"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store"
)

// working returns the worker role for lanes of the named sources, or of all sources. The role calls
// the function "up" when the workers have started. At shutdown the limiters keep granting permits
// until the last worker has stopped.
func working(lanes []schemas.Lane, up func(), names ...string) role {
	return func(ctx context.Context, p parts) error { return workerRole{p}.work(ctx, lanes, up, names) }
}

// workerRole joins the parts of the worker.
type workerRole struct{ parts }

// waitForRedis waits until Redis responds, so that a worker can start during an outage of Redis.
// watchConnections logs the outage. waitForRedis returns an error if Redis may evict keys.
func (p workerRole) waitForRedis(ctx context.Context) error {
	for {
		err := limiter.CheckRedis(ctx, p.rdb)
		switch {
		case errors.Is(err, limiter.ErrEvictionEnabled):
			return err
		case err == nil || !poll.Pause(ctx, time.Second):
			return nil
		}
	}
}

// drainMargin is added to the call timeout to get the drain timeout at shutdown, so that the result
// of the longest call can still be stored.
const drainMargin = 5 * time.Second

func (p workerRole) work(ctx context.Context, lanes []schemas.Lane, up func(), names []string) error {
	if err := p.waitForRedis(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	if err := p.checkMigrations(ctx); err != nil {
		return err
	}
	sources, err := p.sources(names...)
	if err != nil {
		return err
	}
	background := newGroup(context.WithoutCancel(ctx))
	foreground := newGroup(withEither(ctx, background.ctx))
	stop := func(err error) error { return errors.Join(err, foreground.stop(), background.stop()) }
	overrides := p.settings()
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		s := sources[name]
		defer s.Close()
		c := p.config.Sources[name]
		l, err := limiter.New(name, c.quota(), limiter.Deps{
			Redis: p.rdb, Settings: overrides, Usage: dayCounts{p.store}, Unused: p.unused, Process: cmp.Or(p.name, workerName()), Log: p.log, Metrics: p.reg,
		})
		if err != nil {
			return stop(fmt.Errorf("sources.%s.quota.%w", name, err))
		}
		background.run(l.Run)
		closeBreakers := func(credential string) {
			if credential == "" { // a credential without a name is the only credential of the source: its rejection opened the breaker of the source
				l.CloseBreaker(time.Now())
			}
			l.CloseCredentialBreaker(credential)
		}
		for _, at := range secretRefs(c.Config) {
			background.run(func(ctx context.Context) error { return reloadSecret(ctx, at, s, closeBreakers, p.log) })
		}
		tokens, err := startRenewal(p.parts, background, s, l, closeBreakers)
		if err != nil {
			return stop(err)
		}
		retrier := retries.New(name, p.store, retryEnqueuer{p.producer}, p.rdb, p.log, p.reg)
		foreground.run(retrier.Run)
		relay := p.relay(name)
		foreground.run(relay.Run)
		runPoller := newRunPoller(p.parts, s)
		foreground.run(runPoller.Run)
		calls := newCallWriter(p.parts, name)
		background.run(calls.Run)
		deps := consumer.Deps{
			Store: p.store, Requests: p.producer.Coalescer, Permits: permits{l}, Retries: retrier, Outbox: relay, Aliases: aliasEnqueuer{p.producer}, Walks: collection.New(p.store), Items: collection.New(p.store), Runs: runPoller, Lag: p.lag, Health: consumer.NewHealth(), Hints: consumer.NewHints(status.Hints{Redis: p.rdb, Source: name}),
			RecordCall: func(c consumer.CallRecord) { calls.RecordCall(status.Call(c)) },
			Tokens:     tokens, Kafka: p.kafkaClient, Log: p.log, Metrics: p.reg, Tracer: p.trace,
		}
		for _, lane := range lanes {
			bounds := consumer.DefaultConfig(lane)
			bounds.WorkerName, bounds.MaxBodyBytes, bounds.MaxInFlight = cmp.Or(p.name, workerName()), int64(c.Workers.MaxBodyMemory), c.Workers.High.MaxInFlight
			bounds.Triggers = c.Prefetch.triggers()
			bounds.DrainTimeout = max(bounds.DrainTimeout, c.Timeout+drainMargin)
			bounds.ServerSideAssignment = p.config.Kafka.GroupProtocol == "consumer"
			if lane == schemas.Low {
				bounds.MaxInFlight = c.Workers.Low.MaxInFlight
			}
			w, err := consumer.New(bounds, s, lane, deps)
			if err != nil {
				return stop(err)
			}
			p.workers.add(w)
			foreground.run(w.Run)
		}
	}
	up()
	<-foreground.ctx.Done()
	return stop(nil)
}

// workerName returns host/pid, the name of this process in dead letters, audit and console.
func workerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// permits adapts the limiter to consumer.Permits.
type permits struct{ *limiter.Limiter }

// Acquire waits for a permit.
func (p permits) Acquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return toPermit(p.Limiter.Acquire(ctx, lane, toLimiterCall(c)))
}

// AcquireRetry waits for a permit for a request whose last call failed. While other requests wait,
// requests with a failed call get at most every fourth permit.
func (p permits) AcquireRetry(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return toPermit(p.Limiter.AcquireRetry(ctx, lane, toLimiterCall(c)))
}

// Reacquire waits for a new permit after an earlier permit has expired unused. The limiter serves the
// caller of Reacquire before all other callers.
func (p permits) Reacquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return toPermit(p.Limiter.Reacquire(ctx, lane, toLimiterCall(c)))
}

func toPermit(p *limiter.Permit, err error) (consumer.Permit, error) {
	if err != nil {
		return nil, err
	}
	return limiterPermit{p}, nil
}

// toLimiterCall converts a source's call to the limiter's form.
func toLimiterCall(c source.Call) limiter.Call {
	return limiter.Call{
		Endpoint: c.Facet + "/" + c.Document, Host: c.Host, Method: c.Method, Key: c.Key, Resource: c.Resource,
		Values: c.Params, Costs: c.Costs, Credentials: c.Credentials, Client: c.Client,
	}
}

// limiterPermit adapts a permit of the limiter to consumer.Permit.
type limiterPermit struct{ *limiter.Permit }

// ReportEnd reports the result of the call to the limiter.
func (a limiterPermit) ReportEnd(e source.CallResult) {
	a.Permit.ReportEnd(e.Status, e.Notices, e.Refused)
}

// aliasEnqueuer adapts the producer to consumer.Aliases.
type aliasEnqueuer struct{ *producer.Producer }

// RequestAlias enqueues the request and waits for Kafka's acknowledgement.
func (d aliasEnqueuer) RequestAlias(ctx context.Context, r schemas.UpdateRequest, stored int64) (hold string, until time.Time, err error) {
	result := d.EnqueueAndWait(ctx, producer.Request{
		Entity: r.Entity, Lane: r.Lane, Reason: r.Reason, CorrelationID: r.CorrelationID, Floor: stored,
	})
	switch {
	case result.Err != nil:
		return "", time.Time{}, result.Err
	case result.Queued():
		return "", time.Time{}, nil
	case result.Outcome == producer.Held:
		return result.HoldReason, result.Until, nil
	}
	return "", time.Time{}, fmt.Errorf("request of %s: %s", r.Entity, result.Outcome)
}

// retryEnqueuer adapts the producer to retries.Enqueuer.
type retryEnqueuer struct{ *producer.Producer }

// Enqueue enqueues each due retry and waits for Kafka's acknowledgement. It returns the retries
// that were not enqueued.
func (d retryEnqueuer) Enqueue(ctx context.Context, due []store.Status) []store.Status {
	requests := make([]producer.Request, len(due))
	for i, s := range due {
		requests[i] = retryRequest(s)
	}
	var left []store.Status
	for i, r := range d.EnqueueAllAndWait(ctx, requests) {
		if !r.Queued() {
			left = append(left, due[i])
		}
	}
	return left
}

func retryRequest(s store.Status) producer.Request {
	return producer.Request{
		Entity: s.Entity, Params: s.Params, Lane: s.Lane, Reason: schemas.Retry,
		CorrelationID: s.CorrelationID, TraceParent: s.TraceParent, Replay: s.Replay, Depth: s.Depth,
	}
}
