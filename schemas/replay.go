package schemas

import (
	"strconv"
)

// Headers of a request that was asked for again from a dead letter. They go along into
// the letter that it may end as.
const (
	replayPrefix = "__dlq.replay."

	headerReplayID    = replayPrefix + "id"
	headerReplayCount = replayPrefix + "count"
	headerReplayOf    = replayPrefix + "of"
)

// MaxReplays is how often what failed is replayed: what has come back so often comes back
// again until somebody mends its cause.
const MaxReplays = 3

// ReplayMark says by which replay a request was asked for.
type ReplayMark struct {
	ID string // of the job; empty: by none
	// Count is how often the request has been replayed, this time included.
	Count int
	// Of is the letter, as partition:offset of its topic. A retry of the request is asked
	// for by no letter.
	Of string
}

// Headers returns the headers of a request's record.
func (r ReplayMark) Headers() []Header {
	if r.ID == "" {
		return nil
	}
	headers := []Header{{headerReplayID, []byte(r.ID)}, {headerReplayCount, []byte(strconv.Itoa(r.Count))}}
	if r.Of != "" {
		headers = append(headers, Header{headerReplayOf, []byte(r.Of)})
	}
	return headers
}

// ReplayOf returns what the headers say. A count that can't be read is the greatest one: it
// is nobody's reason to go on.
func ReplayOf(headers []Header) ReplayMark {
	var r ReplayMark
	for _, h := range headers {
		switch h.Key {
		case headerReplayID:
			r.ID = cut(string(h.Value), maxNameBytes)
		case headerReplayOf:
			r.Of = cut(string(h.Value), maxNameBytes)
		case headerReplayCount:
			var err error
			if r.Count, err = strconv.Atoi(string(h.Value)); err != nil || r.Count < 0 {
				r.Count = MaxReplays
			}
		}
	}
	return r
}

// Replay says how often the letter's request had been replayed, by the headers it came with.
func (d DeadLetter) Replay() ReplayMark { return ReplayOf(d.Headers) }
