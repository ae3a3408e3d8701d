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

// Possible values of verdict.Answer, the worst first.
const (
	verdictNo     = "No"
	verdictNotYet = "Not yet"
	verdictYes    = "Yes"
)

const (
	// minQuietTime is the minimum time since the last new dead letter before a replay is advised.
	minQuietTime = 10 * time.Minute
	// maxLowLag and maxHighLag are the maximum lags of the LOW lane and of the HIGH lane at which a
	// replay into that lane is advised. If the lag is higher, a replay would increase it further.
	maxLowLag, maxHighLag = 10 * time.Minute, time.Minute
	// maxHighBurst is the maximum number of requests that may be replayed into the HIGH lane at
	// once. More of them would noticeably delay requests of readers.
	maxHighBurst = 100
)

// verdict is the answer to the question whether a replay is safe now, with the reasons.
type verdict struct {
	Answer  string
	Reasons []string
}

// String returns the answer and all reasons as one text.
func (v verdict) String() string { return v.Answer + ": " + strings.Join(v.Reasons, " ") }

// add adds a reason and its answer to the verdict. Answer becomes the worst of all added answers.
func (v *verdict) add(answer, format string, args ...any) {
	order := []string{verdictNo, verdictNotYet, verdictYes}
	if slices.Index(order, answer) < slices.Index(order, v.Answer) {
		v.Answer = answer
	}
	v.Reasons = append(v.Reasons, fmt.Sprintf(format, args...))
}

// replay describes a planned replay and the current state of its source.
type replay struct {
	source string
	groups []store.DeadLetterGroup // the open dead letters that match the filter
	lane   schemas.Lane
	rate   float64 // dead letters a second; 0: unlimited
	// count is the number of dead letters to replay. -1: the number is unknown. Then it is computed:
	// all dead letters that match the filter, except the ones that were already replayed 3 times
	// (schemas.MaxReplays).
	count       int64
	limits      *limiter.View // nil: the limiter could not be read
	lanes       []LaneLag
	jobs        []store.DLQJob
	jobsUnknown bool // true if the field jobs could not be filled, because a read failed
}

// judgeOrder reads the state of the source, and returns the verdict on a replay of the dead letters
// in "open". count is the number of dead letters to replay; -1: unknown.
func (c *Console) judgeOrder(ctx context.Context, o dlq.JobSpec, count int64, open []store.DeadLetterGroup, now time.Time) verdict {
	r := replay{source: o.Filter.Source, groups: open, lane: o.Lane, rate: o.Rate, count: count, lanes: c.Overview.Lanes(o.Filter.Source)}
	var reads sync.WaitGroup
	read := func(f func()) { reads.Go(func() { recoverPanic(c.Log, f) }) }
	read(func() {
		if v, err := c.Limits.View(ctx, r.source); err == nil {
			r.limits = &v
		}
	})
	r.jobsUnknown = true
	read(func() {
		all, err := c.DLQ.Jobs(ctx)
		r.jobs, r.jobsUnknown = all, err != nil
	})
	reads.Wait()
	return safeToReplay(r, now)
}

// safeToReplay checks all conditions of a planned replay, and returns the verdict.
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
		v.add(verdictNo, "no open dead letter matches the filter.")
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
	v.checkSource(r, now)
	if beyond > 0 {
		v.add(verdictNotYet, "%s of them belong to further groups, which were not judged; select fewer.", formatInt(beyond))
	}
	if now.Sub(last) < minQuietTime {
		v.add(verdictNotYet, "the newest one failed %s; wait until none has failed for %s.", formatAgo(last, now), formatDuration(minQuietTime))
	}
	v.checkCauses(r.groups, total)
	switch {
	case spent == total:
		v.add(verdictNo, "all of them were replayed %d times already, the maximum, and stay open.", schemas.MaxReplays)
	case r.count == 0:
		v.add(verdictNo, "none of them would be replayed: all stay open.")
	case spent > 0:
		v.add(verdictYes, "%s of them were replayed %d times already and would stay open.", formatInt(spent), schemas.MaxReplays)
	}
	v.checkDayBudget(r, now)
	if i := slices.IndexFunc(r.lanes, func(l LaneLag) bool { return l.Lane == r.lane }); i >= 0 {
		v.checkLane(r, r.lanes[i], now)
	} else {
		v.add(verdictNotYet, "the lag of the %s lane is unknown.", r.lane)
	}
	if r.lane == schemas.High && r.rate == 0 && r.count > maxHighBurst {
		v.add(verdictNotYet, "%s would go to the HIGH lane at once, ahead of requests that readers wait for; choose LOW, or a rate.", plural(r.count, "dead letter", "dead letters"))
	}
	if v.Answer == verdictYes {
		v.add(verdictYes, "%s is %s, the newest one failed %s, and the cause may be resolved.", r.source, r.limits.State, formatAgo(last, now))
	}
	return v
}

// checkSource checks the conditions that do not depend on the dead letters: the state of the
// source, and other replays.
func (v *verdict) checkSource(r replay, now time.Time) {
	if r.limits == nil {
		v.add(verdictNo, "the state of the limiter of %s is unknown, because it could not be read.", r.source)
	}
	for _, h := range blockersOf(r.limits, r.lane, now) {
		switch {
		// These two states last only about a second, so the answer is "Not yet", and not "No".
		case h.Scope == scopeSource && (r.limits.State == limiter.StateQuietPeriod || r.limits.State == limiter.StateResuming):
			v.add(verdictNotYet, "%s is not called now: %s.", r.source, h.Message)
		case h.Scope == scopeSource:
			v.add(verdictNo, "%s is not called now: %s.", r.source, h.Message)
		case h.Scope == scopeLane:
			v.add(verdictNotYet, "its requests would wait: %s.", h.Message)
		case h.Scope == scopePart:
			v.add(verdictNotYet, "requests that need a blocked scope of %s would wait: %s.", r.source, h.Message)
		}
	}
	if r.jobsUnknown {
		v.add(verdictNotYet, "whether another replay of %s is running is unknown; the database does not answer.", r.source)
	}
	for _, j := range r.jobs {
		switch {
		case j.Source != r.source || j.Kind != store.ReplayJob:
		case j.State == store.JobRunning:
			v.add(verdictNo, "a replay of %s is running, with %s of %s done; a new one can start only after it ends or is stopped.", r.source, formatInt(j.Done), formatInt(j.Total))
		case !j.ChunkStartedAt.IsZero():
			v.add(verdictNotYet, "a replay of %s was stopped, and its last chunk is still being checked; a new one can start only after that.", r.source)
		}
	}
}

// checkDayBudget checks whether the calls that remain today are enough for the replay. It assumes
// one call for each dead letter. If the replay has a rate, it counts only the dead letters that are
// replayed before the daily reset.
func (v *verdict) checkDayBudget(r replay, now time.Time) {
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
			v.add(verdictNotYet, "it takes %s calls of the day at least, and %s has %s of them until %s; select fewer, or set a rate.",
				formatInt(needs), r.lane, formatInt(left), formatTime(*p.ResetsAt, now))
		}
	}
}

// checkLane checks whether the lag of the lane is low enough for a replay.
func (v *verdict) checkLane(r replay, l LaneLag, now time.Time) {
	maxLag := maxLowLag
	if l.Lane == schemas.High {
		maxLag = maxHighLag
	}
	switch {
	case !l.RecordsKnown:
		v.add(verdictNotYet, "the lag of the %s lane is unknown, because Kafka does not answer.", l.Lane)
	case stalled(l):
		why, _ := stallReason(r.limits, r.lanes, l, now)
		v.add(verdictNotYet, "no worker has worked for %s on the %s in the %s lane, behind which a replay would wait%s.", formatDuration(l.StalledFor), plural(l.Records, "record", "records"), l.Lane, why)
	case l.Records > 0 && !l.WaitKnown:
		v.add(verdictNotYet, "how long the %s in the %s lane takes is not known yet; check again in a minute.", plural(l.Records, "record", "records"), l.Lane)
	case l.Records > 0 && lag(l) > maxLag:
		v.add(verdictNotYet, "the %s lane is %s behind; a replay would wait behind that and increase it.", l.Lane, formatDuration(lag(l)))
	}
}

// checkCauses checks for which dead letters a replay is useless until the cause has been fixed.
func (v *verdict) checkCauses(groups []store.DeadLetterGroup, total int64) {
	counts := map[schemas.DeadLetterReason]int64{}
	var reasons []schemas.DeadLetterReason
	var lasting int64
	for _, g := range groups {
		if explanations[g.Reason].transient {
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
		mend := explanations[r].fix
		if mend == "" {
			mend = "check the error"
		}
		v.add(answer, "%s of %s would fail again unless this is done first: %s.", formatInt(counts[r]), displayText(string(r), maxReasonShown), mend)
	}
	if lasting > 0 && lasting < total {
		v.Reasons = append(v.Reasons, "The others can be replayed separately, with a filter on their reason.")
	}
}
