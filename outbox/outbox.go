// Package changes carries out what follows from stored changes: they are told on the
// source's change topic, and other facets of the same key are refreshed. What is to
// follow was written down in the transaction that stored the change (store.OutboxEvents), so
// that nothing follows from what was not stored, and nothing is forgotten.
//
// Invariants:
//   - An effect is deleted only when Kafka has acknowledged all that follows from it.
//     Until then it comes round, so everything happens at least once.
//   - A trigger that waits for quiet follows once no change of its entity was stored for that
//     time, or its longest delay after the first change has passed. Then all these changes
//     lead to one refresh. A change that is stored while it follows leads to another one.
//   - A trigger is left out only if the other facet was checked within the trigger's
//     back-off, or is held (its failure has a retry, or an end, of its own). It waits for
//     its change to be told, where that is to be.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// lease is how long claimed effects have to follow before they come round.
	lease = time.Minute
	// kafkaTimeout bounds one attempt at Kafka, well within the lease.
	kafkaTimeout = 20 * time.Second
	// finishTimeout bounds the end of what has been carried out.
	finishTimeout = 5 * time.Second
	// maxClaim is claimed at once.
	maxClaim = 256
)

// Channel is where the loops of a source hear of effects.
func Channel(source string) string { return "outbox:" + source }

// Messages are what the loop says.
var Messages = poll.Messages{Failing: "what follows from changes waits until this succeeds", Recovered: "what follows from changes goes on"}

// Relay carries out what follows from the changes of one source. Any number may run.
type Relay struct {
	source   string
	store    Store
	enqueuer Enqueuer
	kafka    *kgo.Client
	poller   *poll.Poller
	log      *slog.Logger
	metrics  *metrics
}

// New returns the relay of a source; Run carries out. The client must have every
// record acknowledged by all replicas.
func New(source string, st Store, enqueuer Enqueuer, kafka *kgo.Client, loop *poll.Poller, log *slog.Logger, reg prometheus.Registerer) *Relay {
	return &Relay{source, st, enqueuer, kafka, loop, log.With("source", source), newMetrics(source, reg)}
}

// Notify tells that something was written down that is to follow.
func (r *Relay) Notify() { r.poller.WakeLocal(time.Now()) }

// Run carries out until ctx ends. What another process wrote down and does not carry out
// is found at the latest when a claim would end.
func (r *Relay) Run(ctx context.Context) error { return r.poller.Run(ctx, lease, r.deliverDue) }

func (r *Relay) deliverDue(ctx context.Context, now time.Time) (next time.Time, err error) {
	all, err := r.store.ClaimOutboxEvents(ctx, r.source, now, lease, maxClaim)
	if err != nil {
		return time.Time{}, err
	}
	if err := r.deliver(ctx, all, now); err != nil {
		return time.Time{}, err
	}
	if len(all) == maxClaim { // there may be more; a claim counts from when it is made
		return now, nil
	}
	next, err = r.store.NextOutboxTime(ctx, r.source)
	if err == nil {
		r.metrics.lag.setNext(next)
	}
	return next, err
}

// deliver has all that follows from the effects happen, and ends those of which it did.
func (r *Relay) deliver(ctx context.Context, all []store.OutboxEvent, now time.Time) error {
	r.metrics.lag.claimed(all, now)
	if len(all) == 0 {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	left := map[int64]bool{}
	// What need not be told triggers first: a change topic that does not answer is none of
	// its business. What could not be told comes round whole, and triggers once it is: else
	// each round would spend calls on what was refreshed a minute before.
	silent := slices.DeleteFunc(slices.Clone(all), func(e store.OutboxEvent) bool { return e.PublishChange })
	err := r.trigger(limit, silent, left, now)
	err = errors.Join(err, r.publish(limit, all, left))
	told := slices.DeleteFunc(slices.Clone(all), func(e store.OutboxEvent) bool { return !e.PublishChange || left[e.ID] })
	err = errors.Join(err, r.trigger(limit, told, left, now))
	var ended, triggers []int64
	for _, e := range all {
		switch {
		case !left[e.ID]:
			ended = append(ended, e.ID)
		case slices.ContainsFunc(told, func(t store.OutboxEvent) bool { return t.ID == e.ID }):
			triggers = append(triggers, e.ID)
		}
	}
	if err := r.recordDelivery(ctx, ended, triggers); err != nil {
		return err
	}
	r.metrics.lag.delivered(all, left, now.Add(lease))
	if len(left) > 0 && ctx.Err() == nil {
		r.log.Warn("what follows from changes could not be had, and comes round again", "changes", len(left), "within", lease, "err", err)
	}
	return nil
}

// recordDelivery writes down what was done, also when ctx has ended: what Kafka has would be
// told once more.
func (r *Relay) recordDelivery(ctx context.Context, ended, told []int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	if len(told) > 0 {
		if err := r.store.MarkChangesPublished(ctx, told); err != nil {
			return err
		}
	}
	if len(ended) == 0 {
		return nil
	}
	return r.store.DeleteOutboxEvents(ctx, ended)
}

// publish publishes those changes that are to be told. left is given those of which Kafka
// has not said that it has them, and the first of the reasons is returned.
func (r *Relay) publish(ctx context.Context, all []store.OutboxEvent, left map[int64]bool) (first error) {
	var records []*kgo.Record
	var of []int64
	for _, e := range all {
		if !e.PublishChange {
			continue
		}
		record, err := recordOf(e)
		if err != nil { // nothing could ever mend it
			r.log.Error("a change can't be told", "entity", e.Entity.String(), "version", e.Version, "err", err)
			continue
		}
		records, of = append(records, record), append(of, e.ID)
	}
	// Results come in the order in which they ended.
	for _, result := range r.kafka.ProduceSync(ctx, records...) {
		if result.Err == nil {
			r.metrics.published.Inc()
			continue
		}
		left[of[slices.Index(records, result.Record)]] = true
		if errors.Is(result.Err, kerr.UnknownTopicOrPartition) || errors.Is(result.Err, kerr.UnknownTopicID) {
			// A topic that was made again is another one, which the client takes for the old
			// one until it has forgotten that.
			r.kafka.PurgeTopicsFromProducing(schemas.ChangeTopic(r.source))
			result.Err = fmt.Errorf("%w; `freshet topics ensure` creates %s", result.Err, schemas.ChangeTopic(r.source))
		}
		if first == nil {
			first = result.Err
		}
	}
	return first
}

func recordOf(e store.OutboxEvent) (*kgo.Record, error) {
	c := schemas.Change{Entity: e.Entity, Version: e.Version, At: e.At, After: e.After[:]}
	if e.Before != (store.Hash{}) {
		c.Before = e.Before[:]
	}
	key, value, err := c.Encode()
	// Its time is when it is told: the client would give up at once what is as old as
	// its delivery may take.
	return &kgo.Record{Topic: schemas.ChangeTopic(e.Entity.Source), Key: key, Value: value}, err
}

// target is a facet that changes concern.
type target struct {
	request  store.ClaimedRequest // with the params of the last of the changes
	last     time.Time
	triggers []store.Trigger
	eventIDs []int64 // the effects
}

// fires reports whether any of the triggers does.
func (w *target) fires(state store.State, now time.Time) bool {
	return slices.ContainsFunc(w.triggers, func(t store.Trigger) bool { return t.Fires(state, now) })
}

// targetsOf returns the facets that the changes concern, each once.
func targetsOf(all []store.OutboxEvent) (some []*target) {
	of := map[schemas.Entity]*target{}
	for _, e := range all {
		for _, t := range e.Triggers {
			entity := schemas.Entity{Source: e.Entity.Source, Facet: t.Facet, Key: e.Entity.Key}
			w := of[entity]
			if w == nil {
				w = &target{request: store.ClaimedRequest{Entity: entity}}
				of[entity], some = w, append(some, w)
			}
			if !e.At.Before(w.last) {
				w.request.Params, w.last = t.Params, e.At
			}
			w.triggers, w.eventIDs = append(w.triggers, t), append(w.eventIDs, e.ID)
		}
	}
	return some
}

// trigger asks for the facets that the changes concern and that were not refreshed a
// moment ago.
func (r *Relay) trigger(ctx context.Context, all []store.OutboxEvent, left map[int64]bool, now time.Time) error {
	some := targetsOf(all)
	if len(some) == 0 {
		return nil
	}
	of := make([]schemas.Entity, len(some))
	for i, w := range some {
		of[i] = w.request.Entity
	}
	keep := func(w *target) {
		for _, id := range w.eventIDs {
			left[id] = true
		}
	}
	states, err := r.store.States(ctx, of)
	if err != nil {
		for _, w := range some {
			keep(w)
		}
		return err
	}
	var asks []store.ClaimedRequest
	because := map[schemas.Entity]*target{}
	for i, w := range some {
		if w.fires(states[i], now) {
			w.request.Version = states[i].Version
			asks = append(asks, w.request)
			because[w.request.Entity] = w
		}
	}
	undone := r.enqueuer.Trigger(ctx, asks)
	for _, a := range undone {
		keep(because[a.Entity])
	}
	r.metrics.requested.Add(float64(len(asks) - len(undone)))
	r.metrics.skipped.Add(float64(len(some) - len(asks)))
	return nil
}
