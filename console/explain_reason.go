package console

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

// explanations has a sentence for each dead letter reason, with the fix that is needed before a
// replay. If a sentence names no fix, the cause may disappear by itself.
var explanations = map[schemas.DeadLetterReason]string{
	schemas.Undecodable:     "The record is not a valid update request; another program wrote it to the topic. It can't be fixed: find that program, and purge the record.",
	schemas.UnknownMajor:    "The request has a newer format version than the process that read it supports. Upgrade every query service and worker.",
	schemas.OversizedRecord: "The record exceeds the maximum size of a request. It can't be fixed: find the program that wrote it, and purge the record.",
	schemas.InvalidRequest:  "The configuration has no such facet, or the key or a parameter does not fit it. If the key is right, fix the facet's configuration in query services and workers.",
	schemas.Upstream4xx:     "The upstream rejects this request as invalid, so a retry usually fails again. Fix the request or its credential first.",
	schemas.Upstream5xx:     "The upstream failed repeatedly for these entities, while requests for others succeeded.",
	schemas.Unreachable:     "No complete response arrived for these entities: a timeout, or a broken connection.",
	schemas.NotReady:        "The upstream reported at every attempt that the content is not ready yet.",
	schemas.ParseError:      "The response has an unexpected format: the upstream may have changed it. Fix the extraction of the response.",
	schemas.OversizedAnswer: "The response exceeds the source's size limit. Raise the limit of the source, or request less data.",
	schemas.Unstorable:      "The database rejects the content. Fix the cause that the error names.",
	schemas.NotComputed:     "The content of this derived facet can't be computed from the stored items. Correct the measure that the error names, or the item.",
}

// explainReason returns the text that explains a dead letter reason.
func explainReason(r schemas.DeadLetterReason) string {
	if text, known := explanations[r]; known {
		return text
	}
	return "This release does not know this reason."
}

// deadLetterGroup is a group of dead letters with the same cause, with its source and an
// explanation.
type deadLetterGroup struct {
	Source string
	deadletters.Group
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
	text := fmt.Sprintf("%s %s, with %s. The newest dead letter was written %s.",
		plural(total, "dead letter", "dead letters"), from, plural(len(all), "cause", "causes"), formatAgo(last, now))
	if len(all) > 1 {
		text += fmt.Sprintf(" The most frequent cause is %s of %s, with %s.", displayText(string(largest.Reason), maxReasonShown), largest.Source, plural(largest.Count, "dead letter", "dead letters"))
	}
	return text
}
