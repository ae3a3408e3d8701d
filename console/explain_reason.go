package console

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// explanation is what a reason means, and whether what has it comes back by itself when it is
// asked for again: it does unless somebody mended its cause, or the cause has passed.
type explanation struct {
	text      string
	transient bool   // time alone may mend it
	fix       string // what must have been done otherwise
}

var explanations = map[schemas.DeadLetterReason]explanation{
	schemas.Undecodable: {
		text: "The record is no request that freshet knows; something else wrote to its topic.",
		fix:  "nothing mends the record itself: find who wrote it, and purge it",
	},
	schemas.UnknownMajor: {
		text: "The request is of a newer format than the process that read it knows.",
		fix:  "upgrade every query service and worker",
	},
	schemas.OversizedRecord: {
		text: "The record is larger than any request can be.",
		fix:  "nothing mends the record itself: find who wrote it, and purge it",
	},
	schemas.InvalidRequest: {
		text: "The configuration has no such facet, or the key or a parameter does not fit it.",
		fix:  "mend the facet's configuration, in query services and workers, if the key is right",
	},
	schemas.Upstream4xx: {
		text: "The upstream refuses this request for good: it takes the request itself for wrong.",
		fix:  "mend what is sent, or its credential",
	},
	schemas.Upstream5xx: {text: "The upstream went on failing for these entities, while it was well for others.", transient: true},
	schemas.Unreachable: {text: "No whole answer came for these entities: time ran out, or the connection broke.", transient: true},
	schemas.NotReady:    {text: "The upstream said, each time, that the content is not there yet.", transient: true},
	schemas.ParseError: {
		text: "The answer is not the content that was expected: the upstream may have changed its format.",
		fix:  "mend how the answer is read",
	},
	schemas.OversizedAnswer: {
		text: "The answer is larger than the source's limit.",
		fix:  "raise the limit of the source, or ask for less",
	},
	schemas.Unstorable: {
		text: "The database refuses to store the content.",
		fix:  "mend what the error names",
	},
}

// explainReason is what a reason means, in a sentence.
func explainReason(r schemas.DeadLetterReason) string {
	if m, known := explanations[r]; known {
		return m.text
	}
	return "A reason that this release does not know."
}

// deadLetterGroup are the letters of one kind.
type deadLetterGroup struct {
	Source string
	store.DeadLetterGroup
	Explanation string
}

// deadLettersMessage counts what died since then, in a sentence.
func deadLettersMessage(all []deadLetterGroup, since, now time.Time) string {
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
		plural(total, "request", "requests"), from, plural(len(all), "cause", "causes"), formatAgo(last, now))
	if len(all) > 1 {
		text += fmt.Sprintf(" Most of them, %s, are %s of %s.", formatInt(most.Count), displayText(string(most.Reason), maxReasonShown), most.Source)
	}
	return text
}
