package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
)

// recordID identifies a record in Kafka.
type recordID struct {
	topic     string
	partition int32
	offset    int64
}

// requestRecord is a record of a request topic. It is garbled if it does not contain a valid
// UpdateRequest.
type requestRecord struct {
	recordID
	schemas.UpdateRequest
	garbled bool
}

// deadLetter is a record of the dead-letter topic.
type deadLetter struct {
	origin recordID // the request record that became this dead letter
	key    string   // key of the entity; empty if the request is garbled
	at     time.Time
}

// readRecords reads all request records and all dead letters.
func (s *site) readRecords(ctx context.Context) (requests []requestRecord, deadLetters []deadLetter, err error) {
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		all, err := s.ReadTopic(ctx, schemas.RequestTopic(s.Source, lane))
		if err != nil {
			return nil, nil, err
		}
		for _, r := range all {
			a := requestRecord{recordID: recordID{r.Topic, r.Partition, r.Offset}}
			if a.UpdateRequest, err = schemas.DecodeUpdateRequest(r.Value); err != nil {
				a.garbled = true
			}
			requests = append(requests, a)
		}
	}
	all, err := s.ReadTopic(ctx, schemas.DeadLetterTopic(s.Source))
	if err != nil {
		return nil, nil, err
	}
	for _, r := range all {
		var headers []schemas.Header
		for _, h := range r.Headers {
			headers = append(headers, schemas.Header{Key: h.Key, Value: h.Value})
		}
		d, err := schemas.ParseDeadLetter(r.Key, r.Value, headers)
		if err != nil {
			return nil, nil, err
		}
		l := deadLetter{origin: recordID{d.Topic, d.Partition, d.Offset}, at: d.Time}
		if request, err := schemas.DecodeUpdateRequest(d.Value); err == nil {
			l.key = request.Key
		}
		deadLetters = append(deadLetters, l)
	}
	return requests, deadLetters, nil
}

// failure is an entity's row in the table update_status.
type failure struct {
	state                  string
	number, updated, until int64 // number is a version; updated and until are times in microseconds since 1970
	times                  int   // number of consecutive failures after which no retry was scheduled
}

// holdsAt reports whether the failure held the entity at the time "at". A request that fails
// during the hold writes no further dead letter.
func (f failure) holdsAt(at time.Time) bool {
	return f.state == "SUSPENDED" || f.state == "FAILED" && f.until > at.UnixMicro()
}

// finalState is the state after the run. The maps contain the state of each entity by its key,
// and the records that became dead letters.
type finalState struct {
	stored          map[string]storedState
	failed          map[string]failure
	lastDeadLetter  map[string]time.Time
	deadLetterCount map[string]int
	deadLettered    map[recordID]bool
	lastCall        map[string]time.Time // time of the last call by key, from the upstream's log
}

func (s *site) readFinalState(ctx context.Context, w *stateWatcher, deadLetters []deadLetter, calls []harness.Arrival) (*finalState, error) {
	e := &finalState{
		stored: w.last, failed: map[string]failure{}, lastDeadLetter: map[string]time.Time{}, deadLetterCount: map[string]int{},
		deadLettered: map[recordID]bool{}, lastCall: map[string]time.Time{},
	}
	for _, c := range calls {
		e.lastCall[c.Key] = c.At
	}
	for _, l := range deadLetters {
		e.deadLettered[l.origin] = true
		e.deadLetterCount[l.key]++
		if l.key != "" && l.at.After(e.lastDeadLetter[l.key]) {
			e.lastDeadLetter[l.key] = l.at
		}
	}
	rows, err := w.conn.Query(ctx, "SELECT key, state, version, updated_at, next_retry_at, failures FROM update_status WHERE source = $1 AND facet = $2", s.Source, facet)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var key string
		var f failure
		if err := rows.Scan(&key, &f.state, &f.number, &f.updated, &f.until, &f.times); err != nil {
			return nil, err
		}
		e.failed[key] = f
	}
	return e, rows.Err()
}

// isFinal reports whether the failure is final: no retry is scheduled.
func (f failure) isFinal() bool { return f.state == "FAILED" || f.state == "SUSPENDED" }

// missingDeadLetters returns the number of final failures and a description of each error. An
// entity must have at least one dead letter for each of its consecutive final failures. A
// requested entity that must fail needs a final failure.
func (e *finalState) missingDeadLetters(requests []requestRecord) (total int, wrong []string) {
	for _, key := range slices.Sorted(maps.Keys(e.failed)) {
		f := e.failed[key]
		if !f.isFinal() {
			continue
		}
		total++
		if e.deadLetterCount[key] < max(1, f.times) {
			wrong = append(wrong, fmt.Sprintf("%s: %+v, %d dead letters", key, f, e.deadLetterCount[key]))
		}
	}
	notFailed := map[string]bool{}
	for _, a := range requests {
		if mustFail := strings.HasPrefix(a.Key, "refused") || strings.HasPrefix(a.Key, "broken"); mustFail && !e.failed[a.Key].isFinal() {
			notFailed[a.Key] = true
		}
	}
	for key := range notFailed {
		wrong = append(wrong, key+" has no final failure")
	}
	return total, wrong
}

// coveredByHold reports whether a recorded failure held the entity at the time "moment", and the
// last upstream call for the entity was later than moment - before.
func (e *finalState) coveredByHold(key string, moment time.Time, before time.Duration) bool {
	return e.failed[key].holdsAt(moment) && e.lastCall[key].After(moment.Add(-before))
}

// settled reports whether a request record has ended in one of these ways:
//   - a snapshot or a not-found entry was stored by a fetch that began after the request,
//   - a later failure is recorded,
//   - the request has a dead letter,
//   - the request was accepted although the entity was held, because Redis had lost the hold, and
//     the upstream was called for the entity later.
func (e *finalState) settled(a requestRecord) bool {
	if e.deadLettered[a.recordID] {
		return true
	}
	if a.garbled {
		return false
	}
	if a.Version > 0 && (e.stored[a.Key].version >= a.Version || e.failed[a.Key].number >= a.Version) {
		return true
	}
	if !a.Reason.PassesHolds() && e.coveredByHold(a.Key, a.RequestedAt, 0) {
		return true
	}
	// Compare times only for a record without a version. A record with a version has not ended,
	// because no stored version is high enough. Times are less exact than versions, because
	// RequestedAt is set after the version is assigned.
	return a.Version == 0 && e.fetchedAfter(a.Key, a.RequestedAt)
}

// fetchedAfter reports whether the entity was checked, or failed, after the time "moment".
func (e *finalState) fetchedAfter(key string, moment time.Time) bool {
	return e.stored[key].checked >= moment.UnixMicro() || e.failedSince(key, moment)
}

// failedSince reports whether a failure or a dead letter of the entity is later than the time
// "moment".
func (e *finalState) failedSince(key string, moment time.Time) bool {
	return e.failed[key].updated >= moment.UnixMicro() || !e.lastDeadLetter[key].Before(moment)
}

// countByKind counts the injected faults by their kind.
func countByKind(done []injectedFault) map[string]int {
	count := map[string]int{}
	for _, d := range done {
		name := d.name
		if d.component == "process" || d.component == "upstream" {
			name = d.component + ": " + name
		}
		count[name]++
	}
	return count
}
