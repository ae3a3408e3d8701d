package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// intake prepares polled records: it decodes their requests, completes the params, plans the calls,
// and finds out which requests still need a fetch.
type intake struct {
	*base
	db      *database
	settler *settler
	aliases *aliases
	health  *Health
}

// prepare prepares the tasks of polled records. It returns the tasks that must be processed: tasks with
// an invalid record, and tasks that need a fetch. It skips all others. It fails only if ctx ends: the
// records then stay uncommitted, and a worker reads them again.
func (in *intake) prepare(ctx context.Context, tasks []*task) (proceed []*task, err error) {
	for _, t := range tasks {
		in.decode(t)
	}
	if err := in.addParams(ctx, tasks); err != nil {
		return nil, err
	}
	if err := in.aliases.load(ctx, tasks); err != nil {
		return nil, err
	}
	var requests []*task
	for _, t := range tasks {
		if t.invalid != nil {
			proceed = append(proceed, t)
			continue
		}
		requests = append(requests, t)
	}
	if len(requests) == 0 {
		return proceed, nil
	}
	verdicts, err := in.peek(ctx, requests)
	if err != nil {
		return nil, err
	}
	for i, t := range requests {
		if verdicts[i] != schemas.Proceed {
			in.settler.skip(t, verdicts[i])
			continue
		}
		proceed = append(proceed, t)
	}
	return proceed, nil
}

// decode decodes the record's request and plans its calls. It sets t.invalid if the record can
// never be processed by this worker.
func (in *intake) decode(t *task) {
	refuse := func(reason schemas.DeadLetterReason, err error) { t.reason, t.invalid = reason, err }
	if n := len(t.record.Value); n > schemas.MaxRequestBytes {
		refuse(schemas.OversizedRecord, fmt.Errorf("the record's value has %d bytes; no request has more than %d", n, schemas.MaxRequestBytes))
		return
	}
	var err error
	if t.request, err = schemas.DecodeUpdateRequest(t.record.Value); err != nil {
		reason := schemas.Undecodable
		if errors.Is(err, schemas.ErrUnknownMajor) {
			reason = schemas.UnknownMajor
		}
		// The entity of the record is unknown, so the record's topic, partition and offset serve as
		// the key.
		t.request = schemas.UpdateRequest{Entity: schemas.Entity{Key: fmt.Sprintf("%s/%d/%d", t.record.Topic, t.record.Partition, t.record.Offset)}}
		refuse(reason, err)
		return
	}
	if t.request.Version > time.Now().Add(24*time.Hour).UnixMilli() {
		// Versions are milliseconds of Redis' clock. A version more than a day in the future is
		// corrupt, and would be higher than all later versions.
		t.request.Version = 0
	}
	if t.request.Source != in.source.Name() {
		refuse(schemas.InvalidRequest, fmt.Errorf("the request is for source %q, and was read from a topic of %q", t.request.Source, in.source.Name()))
		return
	}
	t.facet, _ = in.source.Facet(t.request.Facet)
	// The record was written by another program, with another spelling of the key. Its version belongs
	// to that spelling.
	if key := t.facet.FoldKey(t.request.Key); key != t.request.Key {
		t.request.Key, t.request.Version = key, 0
	}
	t.params = t.request.Params
	in.aliases.need(t)
	if t.pending || len(missingParams(in.source, t, t.params)) > 0 { // the calls are planned later, with the params of the registered entity and of other facets
		err = in.source.CheckKey(t.request.Facet, t.request.Key)
	} else {
		t.plan, err = planCalls(in.source, t)
	}
	if err != nil {
		refuse(schemas.InvalidRequest, err)
	}
}

// peek looks up the entities' snapshots and failures, and returns which requests still need a
// fetch. It waits while the database or Redis is down.
func (in *intake) peek(ctx context.Context, tasks []*task) ([]schemas.Verdict, error) {
	entities := make([]schemas.Entity, len(tasks))
	requests := make([]schemas.UpdateRequest, len(tasks))
	versions := make([]int64, len(tasks))
	for i, t := range tasks {
		entities[i], requests[i] = t.request.Entity, t.request
	}
	var states []store.State
	err := in.db.retry(ctx, opStates, func(ctx context.Context) (err error) {
		states, err = in.db.States(ctx, entities)
		return err
	})
	if err != nil {
		return nil, err
	}
	var statuses []store.Status
	err = in.db.retry(ctx, opStatus, func(ctx context.Context) (err error) {
		statuses, err = in.db.Statuses(ctx, entities)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, t := range tasks {
		t.stored, versions[i] = states[i], states[i].Version
		if statuses[i].Reason == schemas.HoldAlias {
			t.waited = statuses[i]
		}
		if t.stored.HasContent() && !t.stored.NotFound && !t.pending && t.facet.Derived == nil {
			in.health.confirmations.recordKnownGood(t, false)
		}
	}
	var verdicts []schemas.Verdict
	err = in.retry(ctx, opPeek, func(ctx context.Context) (err error) {
		verdicts, err = in.settler.requests.Peek(ctx, requests, versions)
		return err
	})
	if err != nil {
		return nil, err
	}
	var ends []schemas.End
	for i, t := range tasks {
		if t.satisfiedByTime() {
			verdicts[i] = schemas.Satisfied
		}
		if verdicts[i] == schemas.Proceed {
			if end, failed := endFromStatus(t.request, statuses[i], time.Now()); failed {
				verdicts[i] = schemas.Failed
				ends = append(ends, end)
			}
		}
		if verdicts[i] == schemas.Proceed && t.facet.Conditional && !t.pending {
			if t.plan, err = planCalls(in.source, t); err != nil {
				return nil, err // no error can happen here: the same calls were planned before, only without the stored ETag and Last-Modified
			}
		}
	}
	if len(ends) > 0 {
		if err := in.settler.settle(ctx, ends); err != nil {
			return nil, err
		}
	}
	wakeRetries(ctx, in.settler.retries, tasks, verdicts, statuses)
	return verdicts, nil
}

// wakeRetries announces the retries that belong to records without a fetch. The worker that stored
// these retries, or that made retries due when it stored an alias, may have crashed before it
// announced them.
func wakeRetries(ctx context.Context, retries Retries, tasks []*task, verdicts []schemas.Verdict, statuses []store.Status) {
	var first time.Time
	for i, t := range tasks {
		switch {
		case verdicts[i] == schemas.Proceed:
		case len(t.facet.AliasUsers()) > 0:
			first = poll.Earlier(first, time.Now())
		case statuses[i].State == store.Retrying:
			first = poll.Earlier(first, statuses[i].Until)
		}
	}
	if !first.IsZero() {
		retries.WakeAt(ctx, first)
	}
}

// addParams completes the params of requests with the params that their entities are registered
// with, and plans their calls. Readers of the HTTP API know only the key. The request itself is not
// changed, so that a later retry uses the params that are registered at the time of the retry.
// addParams fails only if ctx ends.
func (in *intake) addParams(ctx context.Context, tasks []*task) error {
	var incomplete []*task
	var entities []schemas.Entity
	for _, t := range tasks {
		if t.invalid == nil && len(missingParams(in.source, t, t.ownParams())) > 0 {
			incomplete, entities = append(incomplete, t), append(entities, t.request.Entity)
		}
	}
	if len(incomplete) == 0 {
		return nil
	}
	var registered []map[string]string
	err := in.db.retry(ctx, opParams, func(ctx context.Context) (err error) {
		registered, err = in.db.EntityParams(ctx, entities)
		return err
	})
	if err != nil {
		return err
	}
	for i, t := range incomplete {
		if len(registered[i]) > 0 {
			t.params = maps.Clone(registered[i])
			for name, value := range t.ownParams() {
				if value != "" {
					t.params[name] = value
				}
			}
			for name, value := range t.request.Params { // a trigger's params are used only where no registered value exists
				if t.params[name] == "" {
					t.params[name] = value
				}
			}
		}
		in.aliases.need(t)
		if missing := missingParams(in.source, t, t.params); t.pending && len(missing) == 0 {
			continue
		}
		if t.plan, err = planCalls(in.source, t); err != nil {
			t.reason, t.invalid = schemas.InvalidRequest, fmt.Errorf("%w; %s", err, paramAdvice(missingParams(in.source, t, t.params)))
		}
	}
	return nil
}

// paramAdvice returns advice for an operator if the params do not make a valid call. `missing` are the
// names of the params without a value.
func paramAdvice(missing []string) string {
	if len(missing) == 0 {
		return "register the entity with other params"
	}
	return "register the entity with a value for " + strings.Join(missing, " and ")
}
