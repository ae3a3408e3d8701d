package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/retries"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// working works the lanes of the named sources, or of all, until ctx ends.
// Permits flow until the last worker has stopped. up is called once they work.
func working(lanes []schemas.Lane, up func(), names ...string) role {
	return func(ctx context.Context, p parts) error { return p.work(ctx, lanes, up, names) }
}

// waitForRedis waits for Redis, as workers do that lose it later: a deployment in the
// midst of its outage must not have to be repeated.
func (p parts) waitForRedis(ctx context.Context) error {
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for n := 0; ; n++ {
		err := limiter.CheckRedis(ctx, p.rdb)
		switch {
		case errors.Is(err, limiter.ErrEvictionEnabled):
			return err
		case err == nil && n > 0:
			p.log.Info("Redis answers", "tries", n)
			return nil
		case err == nil || ctx.Err() != nil:
			return nil
		case n == 0:
			p.log.Warn("the worker waits for Redis before it begins; look at redis.addresses if it is not away", "err", err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// drainMargin is what a stop allows, beyond the longest call, for writing what it brought.
const drainMargin = 5 * time.Second

func (p parts) work(ctx context.Context, lanes []schemas.Lane, up func(), names []string) error {
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
	behind := newGroup(context.WithoutCancel(ctx))
	front := newGroup(withEither(ctx, behind.ctx))
	stop := func(err error) error { return errors.Join(err, front.stop(), behind.stop()) }
	changes := p.settings()
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		s := sources[name]
		defer s.Close()
		c := p.config.Sources[name]
		l, err := limiter.New(name, c.quota(), limiter.Deps{
			Redis: p.rdb, Settings: changes, Usage: changes, Process: workerName(), Log: p.log, Metrics: p.reg,
		})
		if err != nil {
			return stop(fmt.Errorf("sources.%s.quota.%w", name, err))
		}
		behind.run(l.Run)
		renewed := func(credential string) {
			if credential == "" { // it is the only one, and refused with it is the source
				l.CloseBreaker(time.Now())
			}
			l.CloseCredentialBreaker(credential)
		}
		for _, at := range secretRefs(c.Config) {
			behind.run(func(ctx context.Context) error { return reloadSecret(ctx, at, s, renewed, p.log) })
		}
		again := retries.New(name, p.store, retryEnqueuer{p.producer}, p.rdb, p.log, p.reg)
		front.run(again.Run)
		relay := p.relay(name)
		front.run(relay.Run)
		deps := consumer.Deps{
			Store: p.store, Requests: p.producer.Coalescer, Permits: permits{l}, Retries: again, Outbox: relay, Lag: p.lag, Health: consumer.NewHealth(),
			Kafka: p.kafkaClient, Log: p.log, Metrics: p.reg, Tracer: p.trace,
		}
		for _, lane := range lanes {
			bounds := consumer.DefaultConfig(lane)
			bounds.WorkerName, bounds.MaxBodyBytes, bounds.MaxInFlight = workerName(), int64(c.Workers.MaxBodyMemory), c.Workers.High.MaxInFlight
			bounds.Triggers = c.triggers()
			bounds.DrainTimeout = max(bounds.DrainTimeout, c.Timeout+drainMargin)
			bounds.ServerSideAssignment = p.config.Kafka.GroupProtocol == "consumer"
			if lane == schemas.Low {
				bounds.MaxInFlight = c.Workers.Low.MaxInFlight
			}
			w, err := consumer.New(bounds, s, lane, deps)
			if err != nil {
				return stop(err)
			}
			front.run(w.Run)
		}
	}
	up()
	<-front.ctx.Done()
	return stop(nil)
}

// workerName tells workers apart in dead letters.
func workerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// permits lets the worker ask the limiter.
type permits struct{ *limiter.Limiter }

// Acquire waits for a permit.
func (p permits) Acquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return admitted(p.Limiter.Acquire(ctx, lane, charged(c)))
}

// AcquireRetry waits for a permit after a failure.
func (p permits) AcquireRetry(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return admitted(p.Limiter.AcquireRetry(ctx, lane, charged(c)))
}

// Reacquire waits for a permit in front of the others.
func (p permits) Reacquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return admitted(p.Limiter.Reacquire(ctx, lane, charged(c)))
}

func admitted(p *limiter.Permit, err error) (consumer.Permit, error) {
	if err != nil {
		return nil, err
	}
	return admission{p}, nil
}

// charged is a call as the limiter charges it.
func charged(c source.Call) limiter.Call {
	return limiter.Call{
		Endpoint: c.Facet + "/" + c.Document, Method: c.Method, Key: c.Key, Resource: c.Resource,
		Values: c.Params, Costs: c.Costs, Credentials: c.Credentials, Client: c.Client,
	}
}

// admission is a permit of the limiter.
type admission struct{ *limiter.Permit }

// ReportEnd tells the limiter how the call ended.
func (a admission) ReportEnd(e source.CallResult) { a.Permit.ReportEnd(e.Status, e.Notices) }

// retryEnqueuer lets scheduled retries ask the producer.
type retryEnqueuer struct{ *producer.Producer }

// Ask asks for each retry, and waits until Kafka has it. What could not be asked for
// is to be asked for once more.
func (d retryEnqueuer) Enqueue(ctx context.Context, due []store.Status) []store.Status {
	wishes := make([]producer.Request, len(due))
	for i, s := range due {
		wishes[i] = producer.Request{
			Entity: s.Entity, Params: s.Params, Lane: s.Lane, Reason: schemas.Retry,
			CorrelationID: s.CorrelationID, TraceParent: s.TraceParent, Replay: s.Replay,
		}
	}
	var left []store.Status
	for i, r := range d.EnqueueAllAndWait(ctx, wishes) {
		if !r.Queued() {
			left = append(left, due[i])
		}
	}
	return left
}
