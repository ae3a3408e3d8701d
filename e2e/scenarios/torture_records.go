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

// recordID is where a record lies.
type recordID struct {
	topic     string
	partition int32
	offset    int64
}

// requestRecord is a record of a request topic.
type requestRecord struct {
	recordID
	schemas.UpdateRequest
	garbled bool
}

// deadLetter is a dead letter, and the record that it was.
type deadLetter struct {
	of  recordID
	key string
	at  time.Time
}

// readRecords reads what was asked for, and what became a dead letter.
func (s *site) readRecords(ctx context.Context) (requests []requestRecord, letters []deadLetter, err error) {
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
		l := deadLetter{of: recordID{d.Topic, d.Partition, d.Offset}, at: d.Time}
		if request, err := schemas.DecodeUpdateRequest(d.Value); err == nil {
			l.key = request.Key
		}
		letters = append(letters, l)
	}
	return requests, letters, nil
}

// failure is what is written down of an entity that failed.
type failure struct {
	state                  string
	number, updated, until int64 // times in microseconds since 1970
	times                  int   // that it failed since it was well
}

// holdsAt says whether it held the entity at a moment, so that it stands for whatever
// fails then: no other letter is written.
func (f failure) holdsAt(at time.Time) bool {
	return f.state == "SUSPENDED" || f.state == "FAILED" && f.until > at.UnixMicro()
}

// ledger is how everything has ended.
type ledger struct {
	stored          map[string]storedState
	failed          map[string]failure
	lastDeadLetter  map[string]time.Time // the last one of each key
	deadLetterCount map[string]int       // how many each has
	deadLettered    map[recordID]bool
	lastCall        map[string]time.Time // when each key was called for last, by the upstream's log
}

func (s *site) readLedger(ctx context.Context, w *stateWatcher, letters []deadLetter, calls []harness.Arrival) (*ledger, error) {
	e := &ledger{
		stored: w.last, failed: map[string]failure{}, lastDeadLetter: map[string]time.Time{}, deadLetterCount: map[string]int{},
		deadLettered: map[recordID]bool{}, lastCall: map[string]time.Time{},
	}
	for _, c := range calls {
		e.lastCall[c.Key] = c.At
	}
	for _, l := range letters {
		e.deadLettered[l.of] = true
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

// isFinal says whether it is over, for now or until somebody insists.
func (f failure) isFinal() bool { return f.state == "FAILED" || f.state == "SUSPENDED" }

// missingDeadLetters are the failures that have no letter each, and the entities that can only
// fail, were asked for, and are not said to have failed.
func (e *ledger) missingDeadLetters(requests []requestRecord) (of int, wrong []string) {
	for _, key := range slices.Sorted(maps.Keys(e.failed)) {
		f := e.failed[key]
		if !f.isFinal() {
			continue
		}
		of++
		if e.deadLetterCount[key] < max(1, f.times) {
			wrong = append(wrong, fmt.Sprintf("%s: %+v, %d letters", key, f, e.deadLetterCount[key]))
		}
	}
	spared := map[string]bool{}
	for _, a := range requests {
		if can := strings.HasPrefix(a.Key, "refused") || strings.HasPrefix(a.Key, "broken"); can && !e.failed[a.Key].isFinal() {
			spared[a.Key] = true
		}
	}
	for key := range spared {
		wrong = append(wrong, key+" has not failed")
	}
	return of, wrong
}

// coveredByHold says whether an entity's failure from before stands for one that was found
// after a moment, or so much before it.
func (e *ledger) coveredByHold(key string, moment time.Time, before time.Duration) bool {
	return e.failed[key].holdsAt(moment) && e.lastCall[key].After(moment.Add(-before))
}

// settled says whether a record came to an end: a snapshot or an absence of a fetch that
// began after it, a failure of one that is written down, or a letter. Who asks past a
// hold that he should have met, for Redis had forgotten it, is called for all the same.
func (e *ledger) settled(a requestRecord) bool {
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
	// A number is given before the time of the record is taken.
	return a.Version == 0 && e.fetchedAfter(a.Key, a.RequestedAt)
}

// fetchedAfter says whether an entity was fetched after a moment, or found to fail.
func (e *ledger) fetchedAfter(key string, moment time.Time) bool {
	return e.stored[key].checked >= moment.UnixMicro() || e.failedSince(key, moment)
}

func (e *ledger) failedSince(key string, moment time.Time) bool {
	return e.failed[key].updated >= moment.UnixMicro() || !e.lastDeadLetter[key].Before(moment)
}

// countByKind counts faults by kind.
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
