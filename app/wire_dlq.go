package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// dlqChannel is the Redis channel that notifies query services of replay and purge jobs.
const dlqChannel = "dlq"

// deadLetters returns the dead letter queue of the sources.
func (p queryRole) deadLetters(sources map[string]*source.Source) *dlq.Queue {
	known := map[string]dlq.Source{}
	for name, s := range sources {
		known[name] = s
	}
	return dlq.New(dlq.Deps{
		Store: p.store, Topics: dlq.NewKafka(append(slices.Clone(p.kafka), kgo.ClientID("freshet-dlq"))), Enqueuer: replayEnqueuer{p.producer},
		Notifier: poll.New(dlqChannel, p.rdb, p.log, observe.Condition{
			Event: "dlq_jobs_paused", Failing: "dlq jobs paused; database not reachable", Recovered: "dlq jobs continued; database reachable",
		}),
		Sources: known, Process: cmp.Or(p.name, workerName()), Actor: actor, Log: p.log, Metrics: p.reg,
	})
}

func replayRequest(a dlq.ReplayRequest) producer.Request {
	return producer.Request{
		Entity: a.Request.Entity, Params: a.Request.Params, Lane: a.Lane, Reason: schemas.Replay,
		CorrelationID: a.Request.CorrelationID, TraceParent: a.TraceParent, Replay: a.Mark, Depth: a.Request.Depth,
	}
}

// replayEnqueuer adapts the producer to dlq.Enqueuer.
type replayEnqueuer struct{ *producer.Producer }

// Enqueue enqueues each replay and waits for Kafka's acknowledgement. The result has one element
// for each replay: its error, or nil.
func (d replayEnqueuer) Enqueue(ctx context.Context, all []dlq.ReplayRequest) []error {
	requests := make([]producer.Request, len(all))
	for i, a := range all {
		requests[i] = replayRequest(a)
	}
	errs := make([]error, len(all))
	for i, r := range d.EnqueueAllAndWait(ctx, requests) {
		switch {
		case r.Err != nil:
			errs[i] = r.Err
		case !r.Queued():
			errs[i] = fmt.Errorf("the request is not acknowledged by Kafka yet: %s", r.Outcome)
		}
	}
	return errs
}
