package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/trace"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// task is one record on its way to its end.
type task struct {
	record     *kgo.Record
	ledger     *ledger
	client     string      // schemas.ClientID; "": of nobody
	discharges *discharges // in which its client's count ends; nil: nowhere
	request    schemas.UpdateRequest
	params     map[string]string // the request's own, and those registered where it has none
	plan       *source.Plan
	stored     store.State
	facet      source.Facet
	calls      int // sent so far
	// failures counts those in a row that the upstream is to blame for, first is
	// when the first call was sent; doubted: the last failure was its own and no retry
	// mends it, and it is asked for once more.
	failures    int
	firstCall   time.Time
	unconfirmed bool
	lastFailed  bool // the last end was a failure, of whomever
	hasSlot     bool // it occupies one of Config.InFlight
	// refusedBy are the credentials that the upstream refused for this record.
	refusedBy []string
	// failedNumber is the number of a fetch of its entity that failed and is written down.
	failedNumber int64
	// invalid says why the record can never be processed here.
	invalid error
	reason  schemas.DeadLetterReason
	span    trace.Span // what is done for it
}

// finish marks the record as done in its ledger, and ends its client's count.
func (t *task) finish() {
	t.ledger.markDone(t.record.Offset, t.record.LeaderEpoch)
	t.discharges.add(t)
}

// entityQueues keeps an entity's tasks in order: one at a time, the next when it has
// ended. Different entities, also of one partition, are worked at once.
type entityQueues struct {
	mu       sync.Mutex
	byEntity map[schemas.Entity]*entityQueue // of entities at work
}

// entityQueue is what waits behind an entity's task.
type entityQueue struct{ waiting []*task }

// enter reports whether the task may start; otherwise it waits in its line.
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

// tryEnter reports whether the task may start, and otherwise leaves it out.
func (k *entityQueues) tryEnter(t *task) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, busy := k.byEntity[t.request.Entity]; busy {
		return false
	}
	k.byEntity[t.request.Entity] = &entityQueue{}
	return true
}

// leave ends a task and returns the next of its entity, or nil. That one learns
// what this one knows to be stored.
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

// dispatch takes records in: those that can't be requests become dead letters,
// those that need no fetch are done, the others are started as there is room.
func (w *Worker) dispatch(ctx context.Context, tasks []*task) {
	for _, t := range tasks {
		w.decode(t)
	}
	if w.addParams(ctx, tasks) != nil {
		return // ctx ended; the records are read again
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
		return // ctx ended; the records are read again
	}
	for i, t := range requests {
		if verdicts[i] != schemas.Proceed {
			w.skip(t, verdicts[i])
			continue
		}
		w.admit(ctx, t)
	}
}

// decode reads the record's request and plans its calls. It sets t.refused if
// the record can never be processed by this worker.
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
		// Without an entity to go by, its record stands alone.
		t.request = schemas.UpdateRequest{Entity: schemas.Entity{Key: fmt.Sprintf("%s/%d/%d", t.record.Topic, t.record.Partition, t.record.Offset)}}
		refuse(reason, err)
		return
	}
	if t.request.Version > time.Now().Add(24*time.Hour).UnixMilli() {
		// Numbers follow Redis' time: this one is garbled, and would outrank all others.
		t.request.Version = 0
	}
	if t.request.Source != w.source.Name() {
		refuse(schemas.InvalidRequest, fmt.Errorf("the request is for source %q, and was read from a topic of %q", t.request.Source, w.source.Name()))
		return
	}
	t.facet, _ = w.source.Facet(t.request.Facet)
	t.params = t.request.Params
	if t.facet.HasMissingParams(t.params) { // addParams plans it
		err = w.source.CheckKey(t.request.Facet, t.request.Key)
	} else {
		t.plan, err = w.planFor(t)
	}
	if err != nil {
		refuse(schemas.InvalidRequest, err)
	}
}

func (w *Worker) planFor(t *task) (*source.Plan, error) {
	return w.source.Plan(source.Request{
		Facet: t.request.Facet, Key: t.request.Key, Params: t.params,
		Validator: source.Validator{ETag: t.stored.ETag, LastModified: t.stored.LastModified},
	})
}

// peek looks up what is stored of the requests' entities and says which of them
// still need a fetch. It waits as long as the database or Redis is away.
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
		if t.stored.HasContent() && !t.stored.Absent {
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
		if verdicts[i] == schemas.Proceed && t.facet.Conditional {
			if t.plan, err = w.planFor(t); err != nil {
				return nil, err // it was planned before, with less
			}
		}
	}
	if len(ends) > 0 {
		if err := w.settle(ctx, ends); err != nil {
			return nil, err
		}
	}
	return verdicts, nil
}

// satisfiedByTime reports whether a request of unknown version is satisfied,
// which its time alone decides: by a fetch that began after it was made.
func (t *task) satisfiedByTime() bool {
	return t.request.Version == 0 && t.stored.CheckedAt.After(t.request.RequestedAt)
}

// alreadyFailed reports whether a fetch that began after the request has failed, as
// has been written down since the request was peeked at: the one before it in its
// line was the same entity's.
func (t *task) alreadyFailed() bool {
	return t.request.Version > 0 && t.request.Version <= t.failedNumber
}

// numberWithoutFetch returns the number under which it is written down that the request was
// not fetched: its own, or one that stands for all requests up to now.
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
