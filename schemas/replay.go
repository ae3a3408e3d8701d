package schemas

import (
	"strconv"
)

// Headers of a replayed request. If the request becomes a dead letter again, these headers are copied
// to the dead letter.
const (
	replayPrefix = "__dlq.replay."

	headerReplayID    = replayPrefix + "id"
	headerReplayCount = replayPrefix + "count"
	headerReplayOf    = replayPrefix + "of"
)

// MaxReplays is the maximum number of replays of one request. A further replay of its dead letter is
// refused, because the cause of the failures must be fixed first.
const MaxReplays = 3

// ReplayMark identifies the replay that published a request.
type ReplayMark struct {
	ID string // ID of the DLQ job; empty if the request is no replay
	// Count is the number of replays of the request so far, including this replay.
	Count int
	// Of is the replayed dead letter, as partition:offset of its topic. It is empty for a retry of
	// a replayed request.
	Of string
}

// Headers returns the headers that mark a record as replayed, or none if ID is empty.
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

// ReplayOf returns the ReplayMark in a record's headers. A malformed count becomes MaxReplays, so
// that the request is not replayed again.
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

// Replay returns the mark of the replay that published the dead letter's request. Its ID is empty
// if the request was not published by a replay.
func (d DeadLetter) Replay() ReplayMark { return ReplayOf(d.Headers) }
