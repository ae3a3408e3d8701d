package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/trace"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// task is one record while it is being processed.
type task struct {
	record  *kgo.Record
	ledger  *ledger
	client  string // the client of the request, as schemas.ClientID; empty if the request names no client
	ends    *ends  // the queues to which the ended request is added; nil if the task belongs to no record
	request schemas.UpdateRequest
	taskParams
	plan   *source.Plan
	stored store.State
	facet  source.Facet
	calls  int // number of calls that were sent for the record
	// failures is the number of failed attempts in a row after which the record was tried again at
	// once. `firstCall` is the start of the first of these attempts. `unconfirmed` is true if the last
	// failure was permanent and was attributed to the entity, so that one more call must confirm it.
	failures    int
	firstCall   time.Time
	unconfirmed bool
	lastFailed  bool // the last call failed: no response, an error, bad content, or a refusal that made the source back off; false after other refusals and maintenance
	hasSlot     bool // the task occupies a slot (Config.MaxInFlight)
	// refusedBy lists the credentials that the upstream refused for this record.
	refusedBy []string
	// failedNumber is the number of the entity's last failed fetch whose failure status is stored;
	// 0 if there was none.
	failedNumber int64
	// invalid is the reason why the record can never be processed, or nil.
	invalid error
	reason  schemas.DeadLetterReason
	span    trace.Span // trace span of the record's processing
}

// finish marks the record as done in its ledger. It also queues the ended request, so that it no longer
// counts as outstanding, and so that the step of its run becomes due.
func (t *task) finish() {
	t.ledger.markDone(t.record.Offset, t.record.LeaderEpoch)
	t.ends.add(t)
}

// entityQueues serialises the tasks of each entity. Tasks of different entities run concurrently,
// also within one partition.
type entityQueues struct {
	mu       sync.Mutex
	byEntity map[schemas.Entity]*entityQueue // has an entry only for entities with a running task
}

// entityQueue holds the tasks that wait for the running task of their entity.
type entityQueue struct{ waiting []*task }

// enter reports whether the task may start. It queues the task if another task of its entity runs.
func (k *entityQueues) enter(t *task) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l, busy := k.byEntity[t.request.Entity]; busy {
		l.waiting = append(l.waiting, t)
		return false
	}
	k.byEntity[t.request.Entity] = &entityQueue{}
	return true
}

// tryEnter reports whether the task may start. Unlike enter, it never queues the task.
func (k *entityQueues) tryEnter(t *task) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, busy := k.byEntity[t.request.Entity]; busy {
		return false
	}
	k.byEntity[t.request.Entity] = &entityQueue{}
	return true
}

// leave ends a task and returns the next task of its entity, or nil. If the ended task has stored a
// failure or a snapshot, leave copies its failedNumber or stored.Version to the next task.
func (k *entityQueues) leave(t *task) *task {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.byEntity[t.request.Entity]
	if len(l.waiting) == 0 {
		delete(k.byEntity, t.request.Entity)
		return nil
	}
	next := l.waiting[0]
	l.waiting = l.waiting[1:]
	next.failedNumber = max(next.failedNumber, t.failedNumber)
	if t.stored.Version > next.stored.Version {
		next.stored.Version, next.stored.CheckedAt = t.stored.Version, t.stored.CheckedAt
	}
	return next
}

// dispatch starts the processing of polled records. Invalid records become dead letters, satisfied
// requests are marked as done, and all other records are admitted (see admit).
func (w *Worker) dispatch(ctx context.Context, tasks []*task) {
	for _, t := range tasks {
		w.decode(t)
	}
	if w.addParams(ctx, tasks) != nil || w.aliases.load(ctx, tasks) != nil {
		return // ctx ended; the records stay uncommitted, and a worker reads them again
	}
	var requests []*task
	for _, t := range tasks {
		if t.invalid != nil {
			w.admit(ctx, t)
			continue
		}
		requests = append(requests, t)
	}
	if len(requests) == 0 {
		return
	}
	verdicts, err := w.peek(ctx, requests)
	if err != nil {
		return // ctx ended; the records stay uncommitted, and a worker reads them again
	}
	for i, t := range requests {
		if verdicts[i] != schemas.Proceed {
			w.skip(t, verdicts[i])
			continue
		}
		w.admit(ctx, t)
	}
}

// decode decodes the record's request and plans its calls. It sets t.invalid if the record can
// never be processed by this worker.
func (w *Worker) decode(t *task) {
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
	if t.request.Source != w.source.Name() {
		refuse(schemas.InvalidRequest, fmt.Errorf("the request is for source %q, and was read from a topic of %q", t.request.Source, w.source.Name()))
		return
	}
	t.facet, _ = w.source.Facet(t.request.Facet)
	// The record was written by another program, with another spelling of the key. Its version belongs
	// to that spelling.
	if key := t.facet.FoldKey(t.request.Key); key != t.request.Key {
		t.request.Key, t.request.Version = key, 0
	}
	t.params = t.request.Params
	w.aliases.need(t)
	if t.pending || len(w.missingParams(t, t.params)) > 0 { // the calls are planned later, with the params of the registered entity and of other facets
		err = w.source.CheckKey(t.request.Facet, t.request.Key)
	} else {
		t.plan, err = w.planFor(t)
	}
	if err != nil {
		refuse(schemas.InvalidRequest, err)
	}
}

func (w *Worker) planFor(t *task) (*source.Plan, error) {
	r := source.Request{Facet: t.request.Facet, Key: t.request.Key, Params: t.params}
	if t.stored.MediaType == t.facet.MediaType() { // readers do not get content of another media type, so it must be fetched again
		r.Validator = source.Validator{ETag: t.stored.ETag, LastModified: t.stored.LastModified}
	}
	if t.walk != nil {
		t.walk.request(&r)
	}
	return w.source.Plan(r)
}

// peek looks up the entities' snapshots and failures, and returns which requests still need a
// fetch. It waits while the database or Redis is down.
func (w *Worker) peek(ctx context.Context, tasks []*task) ([]schemas.Verdict, error) {
	entities := make([]schemas.Entity, len(tasks))
	requests := make([]schemas.UpdateRequest, len(tasks))
	versions := make([]int64, len(tasks))
	for i, t := range tasks {
		entities[i], requests[i] = t.request.Entity, t.request
	}
	var states []store.State
	err := w.retryDB(ctx, opStates, func(ctx context.Context) (err error) {
		states, err = w.store.States(ctx, entities)
		return err
	})
	if err != nil {
		return nil, err
	}
	var statuses []store.Status
	err = w.retryDB(ctx, opStatus, func(ctx context.Context) (err error) {
		statuses, err = w.store.Statuses(ctx, entities)
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
			w.health.recordKnownGood(t, false)
		}
	}
	var verdicts []schemas.Verdict
	err = w.retry(ctx, opPeek, func(ctx context.Context) (err error) {
		verdicts, err = w.requests.Peek(ctx, requests, versions)
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
			if t.plan, err = w.planFor(t); err != nil {
				return nil, err // no error can happen here: the same calls were planned before, only without the stored ETag and Last-Modified
			}
		}
	}
	if len(ends) > 0 {
		if err := w.settle(ctx, ends); err != nil {
			return nil, err
		}
	}
	wakeRetries(ctx, w.retries, tasks, verdicts, statuses)
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

// satisfiedByTime reports whether a request without a version is satisfied: the stored snapshot must
// come from a fetch that began after the request.
func (t *task) satisfiedByTime() bool {
	return t.request.Version == 0 && t.stored.CheckedAt.After(t.request.RequestedAt)
}

// alreadyFailed reports whether a failed fetch of the entity covers the task's request. That fetch
// began after the request, and another task of the entity made it while this task waited.
func (t *task) alreadyFailed() bool {
	return t.request.Version > 0 && t.request.Version <= t.failedNumber
}

// numberWithoutFetch returns the number with which the failure of a request is stored if no fetch
// was made: the request's version or, if the request has none, a number that is higher than all
// earlier numbers.
func (t *task) numberWithoutFetch() int64 {
	if t.request.Version > 0 {
		return t.request.Version
	}
	return max(t.stored.Version+1, time.Now().UnixMilli())
}

func (w *Worker) skip(t *task, v schemas.Verdict) {
	w.metrics.skipped(v)
	t.traceEnd(string(v))
	t.finish()
}
