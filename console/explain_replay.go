package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// The verdicts on a replay, from the worst on.
const (
	verdictNo     = "No"
	verdictNotYet = "Not yet"
	verdictYes    = "Yes"
)

const (
	// tooSoon is within what time the same error is taken to be going on.
	tooSoon = 10 * time.Minute
	// lowBehind is from where on LOW is far behind: a replay would only lengthen it.
	lowBehind = 10 * time.Minute
)

// verdict says whether it is safe to replay, and why.
type verdict struct {
	Answer  string
	Reasons []string
}

// String is the verdict as a sentence or several.
func (v verdict) String() string { return v.Answer + ": " + strings.Join(v.Reasons, " ") }

func (v *verdict) say(answer, format string, args ...any) {
	order := []string{verdictNo, verdictNotYet, verdictYes}
	if slices.Index(order, answer) < slices.Index(order, v.Answer) {
		v.Answer = answer
	}
	v.Reasons = append(v.Reasons, fmt.Sprintf(format, args...))
}

// safeToReplay judges a replay of the open letters of these groups, which are all of one
// source. limits is nil if the limiter could not be asked.
func safeToReplay(source string, groups []store.LetterGroup, limits *limiter.View, lanes []Lane, now time.Time) verdict {
	v := verdict{Answer: verdictYes}
	var total, spent int64
	var last time.Time
	for _, g := range groups {
		total, spent = total+g.Count, spent+g.Spent
		if g.Last.After(last) {
			last = g.Last
		}
	}
	if total == 0 {
		v.say(verdictNo, "nothing that the filter chooses is open.")
		return v
	}
	switch {
	case limits == nil:
		v.say(verdictNo, "what the limiter of %s does is not known, because Redis does not answer.", source)
	case limits.State == stateStopped, limits.State == stateBraked, limits.State == stateProbing, limits.State == stateUncount:
		v.say(verdictNo, "%s is not called now: %s.", source, brakeSays(limits, now))
	}
	if now.Sub(last) < tooSoon {
		v.say(verdictNotYet, "the same error came again %s; wait until it has not come for %s.", ago(last, now), span(tooSoon))
	}
	v.comesBack(groups, total)
	switch {
	case spent == total:
		v.say(verdictNo, "all of them were replayed %d times already, as often as may be, and stay open.", schemas.MaxReplays)
	case spent > 0:
		v.say(verdictYes, "%s of them were replayed %d times already and would stay open.", exact(spent), schemas.MaxReplays)
	}
	for _, l := range lanes {
		if l.Lane == schemas.Low {
			v.waits(l)
		}
	}
	if v.Answer == verdictYes {
		v.say(verdictYes, "%s is %s, the last of these died %s, and what they died of may have passed.", source, limits.State, ago(last, now))
	}
	return v
}

// waits says what a replay would wait behind in its lane.
func (v *verdict) waits(l Lane) {
	switch {
	case !l.Known:
		v.say(verdictNotYet, "how far the %s lane is behind is not known, because Kafka was not asked or does not answer.", l.Lane)
	case stands(l):
		v.say(verdictNotYet, "nobody has worked for %s on the %s in the %s lane; a replay would wait behind that.", span(l.Unworked), several(l.Records, "record", "records"), l.Lane)
	case l.Records > 0 && !l.WaitKnown:
		v.say(verdictNotYet, "how long the %s in the %s lane takes is not known yet; look again in a minute.", several(l.Records, "record", "records"), l.Lane)
	case l.Wait > lowBehind:
		v.say(verdictNotYet, "the %s lane is %s behind; a replay would wait behind that and lengthen it.", l.Lane, span(l.Wait))
	}
}

// comesBack says which of the letters would die again unless somebody mended their cause.
func (v *verdict) comesBack(groups []store.LetterGroup, total int64) {
	counts := map[schemas.DeadLetterReason]int64{}
	var reasons []schemas.DeadLetterReason
	var lasting int64
	for _, g := range groups {
		if meanings[g.Reason].passes {
			continue
		}
		if counts[g.Reason] == 0 {
			reasons = append(reasons, g.Reason)
		}
		counts[g.Reason] += g.Count
		lasting += g.Count
	}
	answer := verdictNotYet
	if lasting == total {
		answer = verdictNo
	}
	for _, r := range reasons {
		mend := meanings[r].mend
		if mend == "" {
			mend = "look what the error says"
		}
		v.say(answer, "%s of %s would come back unless this is done first: %s.", exact(counts[r]), shown(string(r), reasonShown), mend)
	}
	if lasting > 0 && lasting < total {
		v.Reasons = append(v.Reasons, "The others can be replayed alone, by a filter on their reason.")
	}
}
