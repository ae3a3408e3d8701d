package console

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// explanation describes a dead letter reason to operators.
type explanation struct {
	text      string
	transient bool   // true if the cause may disappear by itself, so that a replay may succeed without a fix
	fix       string // if not transient: the fix that is needed before a replay
}

var explanations = map[schemas.DeadLetterReason]explanation{
	schemas.Undecodable: {
		text: "The record is not a valid update request; another program wrote it to the topic.",
		fix:  "the record can't be fixed: find the program that wrote it, and purge the record",
	},
	schemas.UnknownMajor: {
		text: "The request has a newer format version than the process that read it supports.",
		fix:  "upgrade every query service and worker",
	},
	schemas.OversizedRecord: {
		text: "The record exceeds the maximum size of a request.",
		fix:  "the record can't be fixed: find the program that wrote it, and purge the record",
	},
	schemas.InvalidRequest: {
		text: "The configuration has no such facet, or the key or a parameter does not fit it.",
		fix:  "if the key is right, fix the facet's configuration in query services and workers",
	},
	schemas.Upstream4xx: {
		text: "The upstream rejects this request as invalid; a retry can't succeed.",
		fix:  "fix the request or its credential",
	},
	schemas.Upstream5xx: {text: "The upstream failed repeatedly for these entities, while requests for others succeeded.", transient: true},
	schemas.Unreachable: {text: "No complete response arrived for these entities: a timeout, or a broken connection.", transient: true},
	schemas.NotReady:    {text: "The upstream reported at every attempt that the content is not ready yet.", transient: true},
	schemas.ParseError: {
		text: "The response has an unexpected format: the upstream may have changed it.",
		fix:  "fix the extraction of the response",
	},
	schemas.OversizedAnswer: {
		text: "The response exceeds the source's size limit.",
		fix:  "raise the limit of the source, or request less data",
	},
	schemas.Unstorable: {
		text: "The database rejects the content.",
		fix:  "fix the cause that the error names",
	},
}

// explainReason returns the text that explains a dead letter reason.
func explainReason(r schemas.DeadLetterReason) string {
	if m, known := explanations[r]; known {
		return m.text
	}
	return "A reason that this release does not know."
}

// deadLetterGroup is a group of dead letters with the same cause, with its source and an
// explanation.
type deadLetterGroup struct {
	Source string
	store.DeadLetterGroup
	Explanation string
}

// deadLettersMessage describes in one or two sentences how many dead letters were written since a
// time.
func deadLettersMessage(all []deadLetterGroup, since, now time.Time) string {
	from := "since yesterday " + since.UTC().Format("15:04")
	if len(all) == 0 {
		return "No dead letters " + from + "."
	}
	var total int64
	largest, last := all[0], all[0].Last
	for _, g := range all {
		total += g.Count
		if g.Count > largest.Count {
			largest = g
		}
		if g.Last.After(last) {
			last = g.Last
		}
	}
	text := fmt.Sprintf("%s %s, with %s, the newest %s.",
		plural(total, "dead letter", "dead letters"), from, plural(len(all), "cause", "causes"), formatAgo(last, now))
	if len(all) > 1 {
		text += fmt.Sprintf(" Most of them, %s, are %s of %s.", formatInt(largest.Count), displayText(string(largest.Reason), maxReasonShown), largest.Source)
	}
	return text
}
