package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/due"
	"github.com/freshet/freshet/letters"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// lettersChannel is where processes are told of jobs on dead letters.
const lettersChannel = "letters"

// letters returns what can be done with the dead letters of the sources.
func (p parts) letters(sources map[string]*source.Source) *letters.Letters {
	known := map[string]letters.Source{}
	for name, s := range sources {
		known[name] = s
	}
	return letters.New(letters.Needs{
		Store: p.store, Mail: letters.NewKafka(append(slices.Clone(p.kafka), kgo.ClientID("freshet-letters"))), Enqueuer: replayEnqueuer{p.producer},
		Bell: due.New(lettersChannel, p.rdb, p.log, due.Words{
			Waits: "jobs on dead letters wait until the database answers", GoesOn: "jobs on dead letters go on",
		}),
		Sources: known, Process: workerName(), Actor: actor, Log: p.log, Metrics: p.reg,
	})
}

// replayEnqueuer lets replays ask the producer.
type replayEnqueuer struct{ *producer.Producer }

// Ask asks for each, and waits until Kafka has it.
func (d replayEnqueuer) Enqueue(ctx context.Context, all []letters.ReplayRequest) []error {
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
