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

// place is where a record lies.
type place struct {
	topic     string
	partition int32
	offset    int64
}

// asked is a record of a request topic.
type asked struct {
	place
	schemas.UpdateRequest
	garbled bool
}

// letter is a dead letter, and the record that it was.
type letter struct {
	of  place
	key string
	at  time.Time
}

// requestsAndLetters reads what was asked for, and what became a dead letter.
func (s *site) requestsAndLetters(ctx context.Context) (requests []asked, letters []letter, err error) {
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		all, err := s.ReadTopic(ctx, schemas.RequestTopic(s.Source, lane))
		if err != nil {
			return nil, nil, err
		}
		for _, r := range all {
			a := asked{place: place{r.Topic, r.Partition, r.Offset}}
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
		l := letter{of: place{d.Topic, d.Partition, d.Offset}, at: d.Time}
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

// stands says whether it held the entity at a moment, so that it stands for whatever
// fails then: no other letter is written.
func (f failure) stands(at time.Time) bool {
	return f.state == "SUSPENDED" || f.state == "FAILED" && f.until > at.UnixMicro()
}

// ends is how everything has ended.
type ends struct {
	stored  map[string]seen
	failed  map[string]failure
	letters map[string]time.Time // the last one of each key
	written map[string]int       // how many each has
	buried  map[place]bool
	called  map[string]time.Time // when each key was called for last, by the upstream's log
}

func (s *site) ends(ctx context.Context, w *witness, letters []letter, calls []harness.Arrival) (*ends, error) {
	e := &ends{
		stored: w.last, failed: map[string]failure{}, letters: map[string]time.Time{}, written: map[string]int{},
		buried: map[place]bool{}, called: map[string]time.Time{},
	}
	for _, c := range calls {
		e.called[c.Key] = c.At
	}
	for _, l := range letters {
		e.buried[l.of] = true
		e.written[l.key]++
		if l.key != "" && l.at.After(e.letters[l.key]) {
			e.letters[l.key] = l.at
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

// final says whether it is over, for now or until somebody insists.
func (f failure) final() bool { return f.state == "FAILED" || f.state == "SUSPENDED" }

// unburied are the failures that have no letter each, and the entities that can only
// fail, were asked for, and are not said to have failed.
func (e *ends) unburied(requests []asked) (of int, wrong []string) {
	for _, key := range slices.Sorted(maps.Keys(e.failed)) {
		f := e.failed[key]
		if !f.final() {
			continue
		}
		of++
		if e.written[key] < max(1, f.times) {
			wrong = append(wrong, fmt.Sprintf("%s: %+v, %d letters", key, f, e.written[key]))
		}
	}
	spared := map[string]bool{}
	for _, a := range requests {
		if can := strings.HasPrefix(a.Key, "refused") || strings.HasPrefix(a.Key, "broken"); can && !e.failed[a.Key].final() {
			spared[a.Key] = true
		}
	}
	for key := range spared {
		wrong = append(wrong, key+" has not failed")
	}
	return of, wrong
}

// stoodFor says whether an entity's failure from before stands for one that was found
// after a moment, or so much before it.
func (e *ends) stoodFor(key string, moment time.Time, before time.Duration) bool {
	return e.failed[key].stands(moment) && e.called[key].After(moment.Add(-before))
}

// ended says whether a record came to an end: a snapshot or an absence of a fetch that
// began after it, a failure of one that is written down, or a letter. Who asks past a
// hold that he should have met, for Redis had forgotten it, is called for all the same.
func (e *ends) ended(a asked) bool {
	if e.buried[a.place] {
		return true
	}
	if a.garbled {
		return false
	}
	if a.Version > 0 && (e.stored[a.Key].version >= a.Version || e.failed[a.Key].number >= a.Version) {
		return true
	}
	if !a.Reason.PassesHolds() && e.stoodFor(a.Key, a.RequestedAt, 0) {
		return true
	}
	// A number is given before the time of the record is taken.
	return a.Version == 0 && e.after(a.Key, a.RequestedAt)
}

// after says whether an entity was fetched after a moment, or found to fail.
func (e *ends) after(key string, moment time.Time) bool {
	return e.stored[key].checked >= moment.UnixMicro() || e.failedSince(key, moment)
}

func (e *ends) failedSince(key string, moment time.Time) bool {
	return e.failed[key].updated >= moment.UnixMicro() || !e.letters[key].Before(moment)
}

// tally counts faults by kind.
func tally(done []doneHurt) map[string]int {
	count := map[string]int{}
	for _, d := range done {
		name := d.name
		if d.part == "process" || d.part == "upstream" {
			name = d.part + ": " + name
		}
		count[name]++
	}
	return count
}
