package limiter

import (
	"slices"
	"time"
)

// scripted is the judge's model of the state in Redis: quiet periods, counts and settings. It
// checks every granted slot, also slots that are never spent.
type scripted struct {
	lost bool // Redis has lost its state, and no process has called the script since
	// birth is the time at which the script found that its state in Redis was lost. `last` is the time
	// of its last run. Both are in µs by Redis' clock. After birth the script grants no time slot for
	// the length of the quiet period.
	birth, last int64
	silence     time.Time
	sent        [2]int // number of calls sent before and after midnight
	newest      int    // the newest setting that Redis received
}

// answered judges a reply of the script. The caller holds w.mu.
func (w *world) answered(d demand, g grant, at, redisNow time.Time) {
	if revision := int(decodeQuota(d.terms.text).Revision); revision > w.newest {
		if w.raises(w.newest, revision) {
			// The lost state has counted at most the calls that the old limit allows. So the additional
			// calls that the new, higher limit allows can be granted at once.
			w.silence = time.Time{}
		}
		w.newest = revision
	}
	w.quietened(d, g, at, redisNow)
	w.counted(d, g, redisNow)
	if n := len(g.high) + len(g.low); n > 0 && w.settings[w.newest].override.Stopped {
		w.note("%d slots were granted after Redis had received the stop", n)
	}
}

// raises reports whether the limit of a policy with a log is higher in the newer settings.
func (w *world) raises(older, newer int) bool {
	limit := func(p Policy, revision int) int {
		if o := w.settings[revision].override.Policies[p.Name].Limit; o != nil {
			return *o
		}
		return p.Limit
	}
	return slices.ContainsFunc(w.trial.config.Policies, func(p Policy) bool {
		return p.Window != Day && limit(p, newer) <= maxWindowLogCalls && limit(p, newer) > limit(p, older)
	})
}

// quietened checks the slots after a loss of state: none may be granted while a call that the lost
// state has counted can be in the window.
func (w *world) quietened(d demand, g grant, at, redisNow time.Time) {
	now, lost := redisNow.UnixMicro(), w.lost || redisNow.Add(standstill).UnixMicro() < w.last
	for _, e := range d.events {
		lost = lost || e.kind == eventStep && e.numbers[0] >= w.birth
	}
	if w.last = max(now, w.last); lost {
		w.lost, w.last, w.birth, w.silence = false, now, now, at.Add(w.quietStart())
		// The judge assumes that an open breaker was opened now or earlier. Otherwise began could be in
		// the future, if the clock was set back.
		w.stop.began = min(w.stop.began, now)
	}
	for _, wait := range append(slices.Clone(g.high), g.low...) {
		if early := w.silence.Sub(at.Add(wait)); early > time.Microsecond {
			w.note("a slot %v before the end of the quiet period", early)
			break
		}
	}
}

// quietStart returns how long the quiet period after a loss of state must be with the run's quota.
func (w *world) quietStart() time.Duration {
	quiet := time.Duration(0)
	for _, p := range w.trial.config.Policies {
		window := time.Duration(p.Window)
		switch {
		case p.Window == Day:
			continue
		case p.Limit > maxWindowLogCalls:
			window = min(window, time.Second)
		}
		quiet = max(quiet, window+permitLife+w.trial.config.Jitter+horizon)
	}
	return quiet
}

// counted checks that Redis' count of a day includes all calls that were sent.
func (w *world) counted(d demand, g grant, redisNow time.Time) {
	uncounted := g.refusalHigh == refusedByDayCount || g.refusalLow == refusedByDayCount
	if d.high+d.low == 0 || uncounted || !w.counts() {
		return
	}
	day := 0
	if !redisNow.Before(w.midnight.Add(dayMargin)) {
		day = 1
	}
	if n := w.sent[day]; int64(n) > g.used {
		w.note("Redis counted %d calls of day %d, but %d were sent", g.used, day, n)
	}
}

// counts reports whether the run has a day policy, and no loss of state has made its count unknown.
func (w *world) counts() bool {
	return (w.usage || !w.forgot) && slices.ContainsFunc(w.trial.config.Policies, func(p Policy) bool { return p.Window == Day })
}
