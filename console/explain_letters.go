package console

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// meaning is what a reason means, and whether what has it comes back by itself when it is
// asked for again: it does unless somebody mended its cause, or the cause has passed.
type meaning struct {
	says   string
	passes bool   // time alone may mend it
	mend   string // what must have been done otherwise
}

var meanings = map[schemas.DeadLetterReason]meaning{
	schemas.Undecodable: {
		says: "The record is no request that freshet knows; something else wrote to its topic.",
		mend: "nothing mends the record itself: find who wrote it, and purge it",
	},
	schemas.UnknownMajor: {
		says: "The request is of a newer format than the process that read it knows.",
		mend: "upgrade every query service and worker",
	},
	schemas.OversizedRecord: {
		says: "The record is larger than any request can be.",
		mend: "nothing mends the record itself: find who wrote it, and purge it",
	},
	schemas.InvalidRequest: {
		says: "The configuration has no such facet, or the key or a parameter does not fit it.",
		mend: "mend the facet's configuration, in query services and workers, if the key is right",
	},
	schemas.Upstream4xx: {
		says: "The upstream refuses this request for good: it takes the request itself for wrong.",
		mend: "mend what is sent, or its credential",
	},
	schemas.Upstream5xx: {says: "The upstream went on failing for these entities, while it was well for others.", passes: true},
	schemas.Unreachable: {says: "No whole answer came for these entities: time ran out, or the connection broke.", passes: true},
	schemas.NotReady:    {says: "The upstream said, each time, that the content is not there yet.", passes: true},
	schemas.ParseError: {
		says: "The answer is not the content that was expected: the upstream may have changed its format.",
		mend: "mend how the answer is read",
	},
	schemas.OversizedAnswer: {
		says: "The answer is larger than the source's limit.",
		mend: "raise the limit of the source, or ask for less",
	},
	schemas.Unstorable: {
		says: "The database refuses to store the content.",
		mend: "mend what the error names",
	},
}

// reasonMeans is what a reason means, in a sentence.
func reasonMeans(r schemas.DeadLetterReason) string {
	if m, known := meanings[r]; known {
		return m.says
	}
	return "A reason that this release does not know."
}

// died are the letters of one kind.
type died struct {
	Source string
	store.DeadLetterGroup
	Means string
}

// diedSays counts what died since then, in a sentence.
func diedSays(all []died, since, now time.Time) string {
	from := "since yesterday " + since.UTC().Format("15:04")
	if len(all) == 0 {
		return "Nothing died " + from + "."
	}
	var total int64
	most, last := all[0], all[0].Last
	for _, g := range all {
		total += g.Count
		if g.Count > most.Count {
			most = g
		}
		if g.Last.After(last) {
			last = g.Last
		}
	}
	text := fmt.Sprintf("%s died %s, of %s, the last one %s.",
		several(total, "request", "requests"), from, several(len(all), "cause", "causes"), ago(last, now))
	if len(all) > 1 {
		text += fmt.Sprintf(" Most of them, %s, are %s of %s.", exact(most.Count), shown(string(most.Reason), reasonShown), most.Source)
	}
	return text
}
