package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

const (
	// lease is how long an event stays claimed. After that any relay may claim it again. The events of a killed
	// relay wait for so long.
	lease = 30 * time.Second
	// kafkaTimeout is the time limit of one delivery attempt. With finishTimeout it is below the lease.
	kafkaTimeout = 20 * time.Second
	// finishTimeout is the time limit of the database update after a delivery.
	finishTimeout = 5 * time.Second
	// maxClaim is the maximum number of events in one claim.
	maxClaim = 256
)

// Channel returns the Redis channel that wakes the relays of a source.
func Channel(source string) string { return "outbox:" + source }

// ClaimsFail is the log condition that lasts while a relay can't claim events.
var ClaimsFail = observe.Condition{Event: "outbox_unclaimed", Failing: "outbox events can't be claimed; retrying", Recovered: "claiming outbox events works again"}

// Relay delivers the outbox events of one source. Any number of relays may run for a source.
type Relay struct {
	source   string
	store    Store
	enqueuer Enqueuer
	kafka    *kgo.Client
	poller   *poll.Poller
	log      *slog.Logger
	metrics  *metrics
}

// New returns the relay of a source. The Kafka client must require the acknowledgement of all
// in-sync replicas.
func New(source string, st Store, enqueuer Enqueuer, kafka *kgo.Client, poller *poll.Poller, log *slog.Logger, reg prometheus.Registerer) *Relay {
	return &Relay{source, st, enqueuer, kafka, poller, log.With("source", source), newMetrics(source, reg)}
}

// Notify wakes this relay, because this process has stored an event.
func (r *Relay) Notify() { r.poller.WakeLocal(time.Now()) }

// Run delivers events until ctx ends. Events of another process that stopped before it delivered
// them are found after one lease at the latest.
func (r *Relay) Run(ctx context.Context) error { return r.poller.Run(ctx, lease, r.deliverDue) }

// deliverDue claims and delivers due events. It returns the time at which the next event is due.
func (r *Relay) deliverDue(ctx context.Context, now time.Time) (next time.Time, err error) {
	all, err := r.store.ClaimOutboxEvents(ctx, r.source, now, lease, maxClaim)
	if err != nil {
		return time.Time{}, err
	}
	if err := r.deliver(ctx, all, now); err != nil {
		return time.Time{}, err
	}
	if len(all) == maxClaim { // the claim was full, so more events may be due
		return now, nil
	}
	next, err = r.store.NextOutboxTime(ctx, r.source)
	if err == nil {
		r.metrics.lag.setNext(next)
	}
	return next, err
}

// deliver publishes the changes of claimed events and requests their triggers. It deletes the
// events that are completely delivered. All other events stay claimed and are retried after the
// lease.
func (r *Relay) deliver(ctx context.Context, all []store.OutboxEvent, now time.Time) error {
	r.metrics.lag.claimed(all, now)
	if len(all) == 0 {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	left := map[int64]bool{} // IDs of the events that are not completely delivered
	// Events without a change to publish come first, so that a failing change topic does not
	// delay their triggers. The triggers of a change wait until it is published: otherwise each
	// retry of the change would repeat the triggers' refreshes.
	unpublished := slices.DeleteFunc(slices.Clone(all), func(e store.OutboxEvent) bool { return e.PublishChange })
	err := r.trigger(limit, unpublished, left, now)
	err = errors.Join(err, r.publish(limit, all, left))
	published := slices.DeleteFunc(slices.Clone(all), func(e store.OutboxEvent) bool { return !e.PublishChange || left[e.ID] })
	err = errors.Join(err, r.trigger(limit, published, left, now))
	var delivered, triggersLeft []int64
	for _, e := range all {
		switch {
		case !left[e.ID]:
			delivered = append(delivered, e.ID)
		case slices.ContainsFunc(published, func(p store.OutboxEvent) bool { return p.ID == e.ID }):
			triggersLeft = append(triggersLeft, e.ID)
		}
	}
	if err := r.recordDelivery(ctx, delivered, triggersLeft); err != nil {
		return err
	}
	r.metrics.lag.delivered(all, left, now.Add(lease))
	if len(left) > 0 && ctx.Err() == nil {
		r.log.Warn("outbox delivery failed; will retry after the lease", "events", len(left), "lease", lease, "err", err)
	}
	return nil
}

// recordDelivery deletes the delivered events. If only the triggers of an event are left to
// deliver, it marks the event's change as published. It does both even if ctx has ended, because
// otherwise the changes would be published again.
func (r *Relay) recordDelivery(ctx context.Context, delivered, published []int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	if len(published) > 0 {
		if err := r.store.MarkChangesPublished(ctx, published); err != nil {
			return err
		}
	}
	if len(delivered) == 0 {
		return nil
	}
	return r.store.DeleteOutboxEvents(ctx, delivered)
}

// publish publishes the changes of events on the change topic. It sets `left` for each event whose
// change Kafka has not acknowledged, and returns the first error.
func (r *Relay) publish(ctx context.Context, all []store.OutboxEvent, left map[int64]bool) (first error) {
	var records []*kgo.Record
	var ids []int64 // IDs of the events, in the order of `records`
	for _, e := range all {
		if !e.PublishChange {
			continue
		}
		record, err := recordOf(e)
		if err != nil { // a change that can't be encoded is dropped, because a retry would fail too
			r.log.Error("change event can't be encoded and is dropped", "entity", e.Entity.String(), "version", e.Version, "err", err)
			continue
		}
		records, ids = append(records, record), append(ids, e.ID)
	}
	// Results arrive in the order of the acknowledgements, which may differ from the order of
	// records.
	for _, result := range r.kafka.ProduceSync(ctx, records...) {
		if result.Err == nil {
			if result.Record.Topic == schemas.ChangeTopic(r.source) {
				r.metrics.published.Inc()
			}
			continue
		}
		left[ids[slices.Index(records, result.Record)]] = true
		if errors.Is(result.Err, kerr.UnknownTopicOrPartition) || errors.Is(result.Err, kerr.UnknownTopicID) {
			// If the topic was deleted and created again, the client must drop the old topic's ID.
			r.kafka.PurgeTopicsFromProducing(result.Record.Topic)
			result.Err = fmt.Errorf("%w; create %s with `freshet topics ensure`", result.Err, result.Record.Topic)
		}
		if first == nil {
			first = result.Err
		}
	}
	return first
}

// recordOf returns the Kafka record of an event: a change, or the end of a run.
func recordOf(e store.OutboxEvent) (*kgo.Record, error) {
	if e.Run != "" {
		return &kgo.Record{Topic: schemas.RunTopic(e.Entity.Source), Key: []byte(e.Entity.Key), Value: []byte(e.Run)}, nil
	}
	c := schemas.Change{Entity: e.Entity, Item: e.Item, Version: e.Version, At: e.At}
	if e.After != (store.Hash{}) {
		c.After = e.After[:]
	}
	if e.Before != (store.Hash{}) {
		c.Before = e.Before[:]
	}
	key, value, err := c.Encode()
	// The record has no timestamp of its own, so the client uses the time of publishing. With the
	// time of an old change as its timestamp, the client's delivery timeout would expire at once.
	return &kgo.Record{Topic: schemas.ChangeTopic(e.Entity.Source), Key: key, Value: value}, err
}

// target is an entity that the triggers of one or more events refresh.
type target struct {
	// request is the request that refreshes the target. It has the params of the latest change, and the
	// lowest depth of the triggers.
	request    prefetched.ClaimedRequest
	lastChange time.Time
	triggers   []store.Trigger
	eventIDs   []int64
	// computed is true if the facet of the target is derived and the change is new. Then the relay does
	// not request the target, but stores an event that requests it after Trigger.Every.
	computed bool
}

// fires reports whether at least one trigger of the target fires, so that the target is refreshed.
func (t *target) fires(state store.State, now time.Time) bool {
	return slices.ContainsFunc(t.triggers, func(tr store.Trigger) bool { return tr.Fires(state, now) })
}

// targetsOf returns the entities that the triggers of the events refresh. Each entity is returned once,
// with one exception: a derived entity is returned twice if its request is due and its inputs have
// changed again.
func targetsOf(all []store.OutboxEvent) (targets []*target) {
	type targetKey struct {
		schemas.Entity
		computed bool
	}
	byKey := map[targetKey]*target{}
	for _, e := range all {
		for _, tr := range e.Triggers {
			entity := schemas.Entity{Source: e.Entity.Source, Facet: tr.Facet, Key: cmp.Or(tr.Key, e.Entity.Key)}
			key := targetKey{entity, tr.Every > 0}
			t := byKey[key]
			if t == nil {
				t = &target{request: prefetched.ClaimedRequest{Entity: entity, Depth: tr.Depth}, computed: key.computed}
				byKey[key], targets = t, append(targets, t)
			}
			t.request.Depth = min(t.request.Depth, tr.Depth)
			if tr.Depth == 0 && !e.At.Before(t.lastChange) { // only triggers that are no links have params
				t.request.Params, t.lastChange = tr.Params, e.At
			}
			if tr.Lane == schemas.High {
				t.request.Lane = schemas.High
			}
			// If the target has different triggers, the request names no page: then it fetches the next
			// page, whichever page that is.
			if len(t.triggers) == 0 {
				t.request.Page = tr.Page
			} else if tr.Page != t.request.Page {
				t.request.Page = ""
			}
			t.triggers, t.eventIDs = append(t.triggers, tr), append(t.eventIDs, e.ID)
		}
	}
	return targets
}

// trigger requests refreshes of the events' targets. It skips a target if none of its triggers fires:
// the target was checked within the triggers' setting backoff. It sets `left` for the events whose
// requests could not be enqueued.
func (r *Relay) trigger(ctx context.Context, all []store.OutboxEvent, left map[int64]bool, now time.Time) error {
	keep := func(t *target) {
		for _, id := range t.eventIDs {
			left[id] = true
		}
	}
	targets := targetsOf(all)
	computed, delayErr := r.delayComputed(ctx, targets, now)
	for _, t := range computed {
		if delayErr != nil {
			keep(t)
		}
	}
	targets = slices.DeleteFunc(targets, func(t *target) bool { return t.computed })
	if len(targets) == 0 {
		return delayErr
	}
	entities := make([]schemas.Entity, len(targets))
	for i, t := range targets {
		entities[i] = t.request.Entity
	}
	states, err := r.store.States(ctx, entities)
	if err != nil {
		for _, t := range targets {
			keep(t)
		}
		return errors.Join(delayErr, err)
	}
	var requests []prefetched.ClaimedRequest
	byEntity := map[schemas.Entity]*target{}
	for i, t := range targets {
		if t.fires(states[i], now) {
			t.request.Version = states[i].Version
			requests = append(requests, t.request)
			byEntity[t.request.Entity] = t
		}
	}
	failed := r.enqueuer.Trigger(ctx, requests)
	for _, f := range failed {
		keep(byEntity[f.Entity])
	}
	r.metrics.requested.Add(float64(len(requests) - len(failed)))
	r.metrics.skipped.Add(float64(len(targets) - len(requests)))
	return delayErr
}
