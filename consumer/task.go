package consumer

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/trace"

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

// newTask returns the task of a record, with its client.
func newTask(r *kgo.Record, l *ledger, e *ends) *task {
	t := &task{record: r, ledger: l, ends: e}
	t.client = schemas.ClientOf(t.headers())
	return t
}

// finish marks the record as done in its ledger. It also queues the ended request, so that it no longer
// counts as outstanding, and so that the step of its run becomes due.
func (t *task) finish() {
	t.ledger.markDone(t.record.Offset, t.record.LeaderEpoch)
	t.ends.add(t)
}

// planCalls returns the upstream calls that fetch the task's entity.
func planCalls(s *source.Source, t *task) (*source.Plan, error) {
	r := source.Request{Facet: t.request.Facet, Key: t.request.Key, Params: t.params}
	if t.stored.MediaType == t.facet.MediaType() { // readers do not get content of another media type, so it must be fetched again
		r.Validator = source.Validator{ETag: t.stored.ETag, LastModified: t.stored.LastModified}
	}
	if t.walk != nil {
		t.walk.request(&r)
	}
	return s.Plan(r)
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

// missingParams returns the names of the params for which neither the key, the facet nor params has
// a value.
func missingParams(s *source.Source, t *task, params map[string]string) []string {
	return s.MissingParams(t.request.Facet, t.request.Key, params)
}

// ownParams returns the params of the request that take precedence over the registered params. For
// a trigger it returns none, because a trigger's params come from another facet. The params of a next
// page come from the request of the page before.
func (t *task) ownParams() map[string]string {
	if t.request.Reason == schemas.Trigger || t.request.Reason == schemas.NextPage {
		return nil
	}
	return t.request.Params
}
