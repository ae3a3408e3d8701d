package limiter

import (
	"context"
	"fmt"
	"time"
)

const (
	// settingsInterval is how often the settings are read: they must be in force
	// within two seconds.
	settingsInterval = time.Second
	// dayCountInterval is how often the day's count is written down, and countLost how
	// long it may fail before no permit is given: what is lost with Redis is
	// estimated from the last count, at the full rate.
	dayCountInterval = 5 * time.Second
	maxDayCountAge   = time.Minute
	// storeTimeout bounds one call to the settings or the counts.
	storeTimeout = time.Second
	// jitterInterval is over how long the jitter is measured: shorter, and a moment of
	// trouble would lower the rate.
	jitterInterval = time.Minute
)

// follow keeps to what is not Redis' until ctx ends: the settings, the day's
// count, the jitter, and what the live view shows of this process.
func (l *Limiter) follow(ctx context.Context) {
	tick := time.NewTicker(settingsInterval)
	defer tick.Stop()
	now := time.Now()
	f := follower{l: l, config: l.deps.config, revision: -1, failing: map[string]bool{}, savedAt: now, jitterCheckedAt: now, reportedAt: now}
	f.readSettings(ctx)
	for {
		select {
		case <-ctx.Done():
			f.saveDayCount(context.WithoutCancel(ctx)) // what was used up to now
			l.removeReport()
			return
		case <-l.dayCountNeeded:
			f.restoreDayCount(ctx)
			continue
		case <-tick.C:
		}
		now = time.Now()
		f.readSettings(ctx)
		f.syncResources(ctx)
		if now.Sub(f.savedAt) >= dayCountInterval {
			f.saveDayCount(ctx)
		}
		if now.Sub(f.jitterCheckedAt) >= jitterInterval {
			f.jitterCheckedAt = now
			f.adaptToJitter()
		}
		f.scheduleReport(now)
	}
}

// follower is what follow remembers. Only its goroutine touches it.
type follower struct {
	l               *Limiter
	config          Config // with the last change that held
	stopped         bool
	revision        int64
	spread          time.Duration   // the jitter that the quota is made for, if measured
	failing         map[string]bool // the troubles, each said once
	savedAt         time.Time       // the count was written, or there was nothing to write
	saved           Count
	jitterCheckedAt time.Time
	reportedAt      time.Time
}

// logCondition says once what is wrong, and once that it is over.
func (f *follower) logCondition(doing string, err error) {
	switch {
	case err != nil && !f.failing[doing]:
		f.l.log.Warn("the limiter goes on with what it knows", "doing", doing, "err", err)
	case err == nil && f.failing[doing]:
		f.l.log.Info("it succeeds again", "doing", doing)
	}
	f.failing[doing] = err != nil
}

// readSettings reads what was changed, and obeys. A change that can't hold leaves the
// quota as it was; a stop in it is obeyed all the same.
func (f *follower) readSettings(ctx context.Context) {
	l := f.l
	if l.deps.Settings == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	o, revision, err := l.deps.Settings.Quota(ctx, l.source)
	f.logCondition("reading the settings", err)
	if err != nil || revision == f.revision {
		return
	}
	config, err := l.deps.config.With(o)
	if err == nil {
		_, err = NewQuota(config)
	}
	if err != nil {
		l.log.Error("what was changed of the quota can't hold; it stays as it was", "revision", revision, "err", err)
	} else {
		f.config = config
		l.log.Info("the quota was set", "revision", revision, "stopped", o.Stopped)
	}
	f.revision, f.stopped = revision, o.Stopped
	f.applySettings()
}

// applySettings makes what was changed, and the measured jitter, the quota in force.
func (f *follower) applySettings() {
	l := f.l
	quota, err := NewQuota(f.config.fitting(f.spread))
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil { // it held without the jitter, and a lower rate always fits
		l.log.Error("the quota can't be made to fit the jitter; it stays as it was", "jitter", f.spread, "err", err)
		quota = l.quota
	}
	l.setQuota(quota, max(0, f.revision), f.stopped)
	l.settingsUnread = false
	l.reportWanted, l.reportForcesCall = l.rdb != nil, l.rdb != nil // so that Redis is told at once, by whoever reads it first
	now := time.Now()
	for _, q := range l.queues {
		if f.stopped {
			for _, s := range q.slots {
				l.refund(s)
			}
			q.slots = nil
		}
		if q.back.After(now) { // what was refused may be granted now
			q.back = now
		}
	}
	l.wake()
}

// restoreDayCount tells Redis what the day has used, as far as that is written down.
func (f *follower) restoreDayCount(ctx context.Context) {
	l := f.l
	l.mu.Lock()
	quota := l.quota
	l.mu.Unlock()
	if quota.day == nil {
		return
	}
	var c Count
	if l.deps.Usage != nil {
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		var err error
		c, err = l.deps.Usage.Used(ctx, l.source, quota.day.policy.Name)
		f.logCondition("reading what the day has used", err)
		if err != nil {
			return // asked again with the next refusal
		}
	}
	event := "used 0 0 0 0"
	if !c.At.IsZero() {
		rate, most := quota.maxUncounted()
		event = fmt.Sprintf("used %d %d %d %d %d", c.DayEnd.UnixMicro(), c.Calls, c.At.UnixMicro(), rate, most)
	}
	l.mu.Lock()
	l.events = append(l.events, event)
	l.mu.Unlock()
	l.wake()
}

// saveDayCount writes the day's count down.
func (f *follower) saveDayCount(ctx context.Context) {
	l := f.l
	l.mu.Lock()
	quota, c := l.quota, l.counted
	l.mu.Unlock()
	if quota.day == nil || l.deps.Usage == nil || c == f.saved || c.At.IsZero() {
		f.savedAt = time.Now()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := l.deps.Usage.SetUsed(ctx, l.source, quota.day.policy.Name, c)
	f.logCondition("writing down what the day has used", err)
	now := time.Now()
	if err == nil {
		f.savedAt, f.saved = now, c
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if lost := now.Sub(f.savedAt) > maxDayCountAge; lost != l.dayCountUnsaved {
		l.dayCountUnsaved = lost
		if lost {
			l.log.Error("no permit is given until what the day has used can be written down again", "err", err)
		}
		l.wake()
	}
}

// scheduleReport has the live view told who waits here, every second while somebody does or calls
// are made, and once more after that: two reports of the same count say that no calls are
// made any more. Of who is idle it is told seldom. It rides on a call for
// permits, so that a Redis that does not answer is probed by nothing else, and a
// permit costs no second call; only where none comes by is one made for it, and
// where none may be made it is one of its own.
func (f *follower) scheduleReport(now time.Time) {
	l := f.l
	if l.rdb == nil {
		return
	}
	l.mu.Lock()
	waiting := l.waiting() > 0
	l.metrics.fade(now)
	calls := l.used()
	due := waiting || l.reportedWaiters || l.lastReports != [2]int64{calls, calls} || now.Sub(f.reportedAt) >= idleReportInterval
	blocked := l.settingsUnread || l.dayCountUnsaved
	l.reportedWaiters = waiting
	if l.reportWanted && !blocked { // nothing came by since the last time
		l.reportForcesCall = true
	}
	l.reportWanted = l.reportWanted || (due && !blocked)
	alone := due && blocked && l.failed == 0
	l.mu.Unlock()
	if due {
		f.reportedAt = now
	}
	if alone {
		l.publishReport()
	}
	l.wake()
}

// adaptToJitter lowers the rate while calls are spread more than is configured.
func (f *follower) adaptToJitter() {
	measured, known := f.l.jitter.measure()
	f.l.metrics.jitter.Set(measured.Seconds())
	configured := f.l.deps.config.Jitter
	f.l.metrics.allowed.Set(configured.Seconds())
	spread := time.Duration(0)
	if known && measured > configured {
		spread = min(measured.Truncate(jitterStep)+jitterStep, time.Second)
	}
	if !known || spread == f.spread {
		return
	}
	f.spread = spread
	if spread > 0 {
		f.l.log.Warn("calls reach the upstream more spread than the quota allows for; the rate is lowered to fit. Raise quota.jitter, or look for what delays this process",
			"measured", measured, "configured", configured, "quota_for", spread)
	} else {
		f.l.log.Info("calls are spread no more than the quota allows for", "measured", measured)
	}
	f.applySettings()
}

// fitting returns the quota with a greater jitter and with targets that it leaves
// room for.
func (c Config) fitting(jitter time.Duration) Config {
	if jitter <= c.Jitter {
		return c
	}
	c.Jitter = jitter
	policies := make([]Policy, len(c.Policies))
	for i, p := range c.Policies {
		if p.Window != Day && p.Limit > maxWindowLogCalls && p.Target > 0 {
			p.Target = p.fitting(jitter)
		}
		policies[i] = p
	}
	c.Policies = policies
	return c
}

// fitting returns the greatest target up to the policy's that the bound leaves
// room for; 0, which is all that it allows, if the reserves alone are too many.
func (p Policy) fitting(jitter time.Duration) int {
	for kept := p.HighReserve.in(time.Duration(p.Window)) + p.LowReserve; p.Target > kept; p.Target -= max(1, p.Target/100) {
		if _, err := newPartitionedWindow(p, jitter); err == nil {
			return p.Target
		}
	}
	return 0
}
