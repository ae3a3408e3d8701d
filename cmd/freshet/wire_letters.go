package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// dlqChannel is where processes are told of jobs on dead letters.
const dlqChannel = "dlq"

// letters returns what can be done with the dead letters of the sources.
func (p parts) letters(sources map[string]*source.Source) *dlq.Queue {
	known := map[string]dlq.Source{}
	for name, s := range sources {
		known[name] = s
	}
	return dlq.New(dlq.Deps{
		Store: p.store, Topics: dlq.NewKafka(append(slices.Clone(p.kafka), kgo.ClientID("freshet-letters"))), Enqueuer: replayEnqueuer{p.producer},
		Notifier: poll.New(dlqChannel, p.rdb, p.log, poll.Messages{
			Failing: "jobs on dead letters wait until the database answers", Recovered: "jobs on dead letters go on",
		}),
		Sources: known, Process: workerName(), Actor: actor, Log: p.log, Metrics: p.reg,
	})
}

// replayEnqueuer lets replays ask the producer.
type replayEnqueuer struct{ *producer.Producer }

// Ask asks for each, and waits until Kafka has it.
func (d replayEnqueuer) Enqueue(ctx context.Context, all []dlq.ReplayRequest) []error {
	wishes := make([]producer.Request, len(all))
	for i, a := range all {
		wishes[i] = producer.Request{
			Entity: a.Request.Entity, Params: a.Request.Params, Lane: a.Lane, Reason: schemas.Replay,
			CorrelationID: a.Request.CorrelationID, TraceParent: a.TraceParent, Replay: a.Mark,
		}
	}
	errs := make([]error, len(all))
	for i, r := range d.EnqueueAllAndWait(ctx, wishes) {
		switch {
		case r.Err != nil:
			errs[i] = r.Err
		case !r.Queued():
			errs[i] = fmt.Errorf("whether Kafka has the request is not known yet: %s", r.Outcome)
		}
	}
	return errs
}
