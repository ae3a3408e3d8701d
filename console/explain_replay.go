package console

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/freshet/freshet/dlq"
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
	// tooSoon is within what time that which they died of is taken to be going on.
	tooSoon = 10 * time.Minute
	// Behind these a lane is too far behind: a replay would only lengthen it.
	lowBehind, highBehind = 10 * time.Minute, time.Minute
	// highMany are so many letters that people notice them in HIGH, who wait there.
	highMany = 100
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

// replay is one that somebody thinks of, and what is known of what it would meet.
type replay struct {
	source string
	groups []store.DeadLetterGroup // the open letters that it chooses
	lane   schemas.Lane
	rate   float64 // letters a second; 0: as many as go
	// count are the letters that it would ask for; -1: nobody has counted, and it is all
	// but those that were replayed too often.
	count  int64
	limits *limiter.View // nil: the limiter could not be read
	lanes  []Lane
	jobs   []store.DLQJob
	blind  bool // jobs could not be read
}

// judgeOrder says whether a replay of these groups by the order is safe; count are the
// letters that it would ask for, -1: nobody has counted.
func (c *Console) judgeOrder(ctx context.Context, o dlq.JobSpec, count int64, open []store.DeadLetterGroup, now time.Time) verdict {
	r := replay{source: o.Filter.Source, groups: open, lane: o.Lane, rate: o.Rate, count: count, lanes: c.Now.Lanes(o.Filter.Source)}
	var asked sync.WaitGroup
	ask := func(f func()) { asked.Go(func() { surviving(c.Log, f) }) }
	ask(func() {
		if v, err := c.Limits.View(ctx, r.source); err == nil {
			r.limits = &v
		}
	})
	r.blind = true
	ask(func() {
		all, err := c.Letters.Jobs(ctx)
		r.jobs, r.blind = all, err != nil
	})
	asked.Wait()
	return safeToReplay(r, now)
}

// safeToReplay judges a replay.
func safeToReplay(r replay, now time.Time) verdict {
	v := verdict{Answer: verdictYes}
	var total, spent int64
	var last time.Time
	for _, g := range r.groups {
		total, spent = total+g.Count, spent+g.AtReplayLimit
		if g.Last.After(last) {
			last = g.Last
		}
	}
	if total == 0 {
		v.say(verdictNo, "nothing that the filter chooses is open.")
		return v
	}
	of := r.groups[0].Totals
	beyond := of.All - total
	if beyond > 0 {
		total, spent = of.All, of.AtReplayLimit
	}
	if r.count < 0 {
		r.count = total - spent
	}
	v.meets(r, now)
	if beyond > 0 {
		v.say(verdictNotYet, "%s of them are of more kinds than are told apart, and nobody has judged those; choose fewer.", exact(beyond))
	}
	if now.Sub(last) < tooSoon {
		v.say(verdictNotYet, "the last of these died %s; wait until none has for %s.", ago(last, now), span(tooSoon))
	}
	v.comesBack(r.groups, total)
	switch {
	case spent == total:
		v.say(verdictNo, "all of them were replayed %d times already, as often as may be, and stay open.", schemas.MaxReplays)
	case r.count == 0:
		v.say(verdictNo, "none of them would be asked for: all stay open.")
	case spent > 0:
		v.say(verdictYes, "%s of them were replayed %d times already and would stay open.", exact(spent), schemas.MaxReplays)
	}
	v.spends(r, now)
	if i := slices.IndexFunc(r.lanes, func(l Lane) bool { return l.Lane == r.lane }); i >= 0 {
		v.waits(r, r.lanes[i], now)
	} else {
		v.say(verdictNotYet, "how far the %s lane is behind is not known.", r.lane)
	}
	if r.lane == schemas.High && r.rate == 0 && r.count > highMany {
		v.say(verdictNotYet, "%s go to the HIGH lane at once, before what people wait for; choose LOW, or a rate.", several(r.count, "letter", "letters"))
	}
	if v.Answer == verdictYes {
		v.say(verdictYes, "%s is %s, the last of these died %s, and what they died of may have passed.", r.source, r.limits.State, ago(last, now))
	}
	return v
}

// meets says what a replay would meet that has nothing to do with its letters: a source that
// is not called, and another replay.
func (v *verdict) meets(r replay, now time.Time) {
	if r.limits == nil {
		v.say(verdictNo, "what the limiter of %s does is not known, because it could not be read.", r.source)
	}
	for _, h := range waitsFor(r.limits, r.lane, now) {
		switch {
		case h.Of == ofAll && (r.limits.State == stateQuiet || r.limits.State == StateResuming): // for a second
			v.say(verdictNotYet, "%s is not called now: %s.", r.source, h.Says)
		case h.Of == ofAll:
			v.say(verdictNo, "%s is not called now: %s.", r.source, h.Says)
		case h.Of == ofLane:
			v.say(verdictNotYet, "its requests would wait: %s.", h.Says)
		case h.Of == ofPart:
			v.say(verdictNotYet, "those that need a part of %s that waits would wait as well: %s.", r.source, h.Says)
		}
	}
	if r.blind {
		v.say(verdictNotYet, "whether another replay of %s is under way is not known; the database does not answer.", r.source)
	}
	for _, j := range r.jobs {
		switch {
		case j.Source != r.source || j.Kind != store.ReplayJob:
		case j.State == store.JobRunning:
			v.say(verdictNo, "a replay of %s is under way, with %s of %s done; no other begins before it ends or is stopped.", r.source, exact(j.Done), exact(j.Total))
		case !j.ChunkStartedAt.IsZero():
			v.say(verdictNotYet, "a replay of %s was stopped, and which letters it asked for last is still to be found out; no other begins before that.", r.source)
		}
	}
}

// spends compares the letters with what is left of a day, of which each takes a call at
// least. What a rate keeps for the next day is not compared.
func (v *verdict) spends(r replay, now time.Time) {
	if r.limits == nil {
		return
	}
	for _, p := range r.limits.Policies {
		if p.ResetsAt == nil || p.Remaining == 0 {
			continue
		}
		left, needs := p.Remaining, r.count
		if r.lane == schemas.Low {
			left = p.RemainingForLow
		}
		if r.rate > 0 {
			needs = min(needs, int64(r.rate*max(0, p.ResetsAt.Sub(now).Seconds())))
		}
		if left > 0 && needs > left {
			v.say(verdictNotYet, "it takes %s calls of the day at least, and %s has %s of them until %s; choose fewer, or a rate.",
				exact(needs), r.lane, exact(left), clock(*p.ResetsAt, now))
		}
	}
}

// waits says what a replay would wait behind in its lane.
func (v *verdict) waits(r replay, l Lane, now time.Time) {
	most := lowBehind
	if l.Lane == schemas.High {
		most = highBehind
	}
	switch {
	case !l.Known:
		v.say(verdictNotYet, "how far the %s lane is behind is not known, because Kafka was not asked or does not answer.", l.Lane)
	case stands(l):
		why, _ := whyStands(r.limits, r.lanes, l, now)
		v.say(verdictNotYet, "nobody has worked for %s on the %s in the %s lane, behind which a replay would wait%s.", span(l.Unworked), several(l.Records, "record", "records"), l.Lane, why)
	case l.Records > 0 && !l.WaitKnown:
		v.say(verdictNotYet, "how long the %s in the %s lane takes is not known yet; look again in a minute.", several(l.Records, "record", "records"), l.Lane)
	case l.Records > 0 && behind(l) > most:
		v.say(verdictNotYet, "the %s lane is %s behind; a replay would wait behind that and lengthen it.", l.Lane, span(behind(l)))
	}
}

// comesBack says which of the letters would die again unless somebody mended their cause.
func (v *verdict) comesBack(groups []store.DeadLetterGroup, total int64) {
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
