package limiter

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/observe"
)

const (
	// settingsInterval is how often the settings are read. A change must be in force within two
	// seconds.
	settingsInterval = time.Second
	// dayCountInterval is how often the day's count is saved. If saving fails for maxDayCountAge,
	// no more permits are granted. The reason: after a loss of Redis' data, the limiter must
	// assume calls at the full rate since the last save.
	dayCountInterval = 5 * time.Second
	maxDayCountAge   = time.Minute
	// storeTimeout is the timeout of one call to Settings or Usage.
	storeTimeout = time.Second
	// jitterInterval is how long the jitter is measured. A shorter interval would warn because of a
	// single slow moment.
	jitterInterval = time.Minute
)

// run does the periodic work of the limiter until ctx ends: it reads the settings, restores and saves
// the day's count, measures the jitter and publishes reports.
func (f *follower) run(ctx context.Context) {
	tick := time.NewTicker(settingsInterval)
	defer tick.Stop()
	l, now := f.l, time.Now()
	f.revision, f.savedAt, f.jitterCheckedAt, l.reports.at = -1, now, now, now
	f.readSettings(ctx)
	for {
		select {
		case <-ctx.Done():
			f.saveDayCount(context.WithoutCancel(ctx)) // save the calls granted since the last save
			l.reports.remove()
			return
		case <-l.alloc.day.needed:
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
			f.checkJitter()
		}
		l.reports.schedule(now)
	}
}

// follower does the periodic work of a Limiter. Only the goroutine of run uses its fields, except l.
type follower struct {
	l               *Limiter
	revision        int64
	conditions      observe.Conditions
	savedAt         time.Time // when the day's count was last saved, or last had no change to save
	saved           Count
	jitterCheckedAt time.Time
}

var (
	conditionSettings = observe.Condition{
		Event: "quota_settings_unread", Failing: "quota settings not read from the database; the previous settings stay in force", Recovered: "reading the quota settings works again",
	}
	conditionDayRead = observe.Condition{
		Event: "day_count_unread", Failing: "saved count of the day's calls not read from the database; reading is retried", Recovered: "reading the saved count of the day's calls works again",
	}
	conditionDaySave = observe.Condition{
		Event: "day_count_unsaved", Failing: "count of the day's calls not saved in the database; saving is retried", Recovered: "saving the count of the day's calls works again",
	}
	conditionJitter = observe.Condition{
		Event: "jitter_exceeded", Failing: "measured jitter exceeds quota.jitter; raise quota.jitter, or find the cause of the delays in this process",
		Recovered: "measured jitter no longer exceeds quota.jitter",
	}
)

// readSettings reads the newest override and applies it. If the override makes the quota invalid, the
// previous quota stays in force, but an emergency stop in the override is applied.
func (f *follower) readSettings(ctx context.Context) {
	l := f.l
	if l.deps.Settings == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	o, revision, err := l.deps.Settings.Quota(ctx, l.source)
	f.conditions.Record(l.log, conditionSettings, err)
	if err != nil || revision == f.revision {
		return
	}
	config, err := l.deps.config.With(o)
	var quota Quota
	if err == nil {
		quota, err = NewQuota(config)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.log.Error("new quota settings are invalid; the quota is unchanged", "revision", revision, "err", err)
		quota = l.alloc.active.quota
	} else {
		l.log.Info("quota settings applied", "revision", revision, "stopped", o.Stopped)
	}
	f.revision = revision
	l.alloc.applySettings(quota, revision, o.Stopped)
	l.reports.wanted, l.alloc.forceCall = l.deps.Redis != nil, l.deps.Redis != nil // the next call to Redis sends the new quota
	l.wake()
}

// restoreDayCount sends the saved count of the day to Redis.
func (f *follower) restoreDayCount(ctx context.Context) {
	l := f.l
	l.mu.Lock()
	quota := l.alloc.active.quota
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
		f.conditions.Record(l.log, conditionDayRead, err)
		if err != nil {
			return // when Redis next rejects a call because the count is missing, this function is called again
		}
	}
	event := noDayCountEvent()
	if !c.At.IsZero() {
		rate, most := quota.maxUncounted()
		event = dayCountEvent(c, rate, most)
	}
	l.mu.Lock()
	l.alloc.pending.add(event)
	l.mu.Unlock()
	l.wake()
}

// saveDayCount saves the day's count.
func (f *follower) saveDayCount(ctx context.Context) {
	l := f.l
	l.mu.Lock()
	quota, c := l.alloc.active.quota, l.alloc.day.counted
	l.mu.Unlock()
	if quota.day == nil || l.deps.Usage == nil || c == f.saved || c.At.IsZero() {
		f.savedAt = time.Now()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := l.deps.Usage.SetUsed(ctx, l.source, quota.day.policy.Name, c)
	f.conditions.Record(l.log, conditionDaySave, err)
	now := time.Now()
	if err == nil {
		f.savedAt, f.saved = now, c
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if unsaved := now.Sub(f.savedAt) > maxDayCountAge; unsaved != l.alloc.day.unsaved {
		l.alloc.day.unsaved = unsaved
		if unsaved {
			l.log.Error("count of the day's calls not saved for too long; no permits are granted", "err", err)
		}
		l.wake()
	}
}

// checkJitter warns while the measured jitter exceeds the configured jitter. The upstream can then
// receive more calls than its limit (see the proof in doc.go). An interval with too few calls for a
// measurement changes nothing.
func (f *follower) checkJitter() {
	l := f.l
	measured, known := l.jitter.measure()
	l.metrics.jitter.Set(measured.Seconds())
	configured := l.deps.config.Jitter
	l.metrics.allowed.Set(configured.Seconds())
	if !known {
		return
	}
	var err error
	if measured > configured {
		err = fmt.Errorf("the measured jitter is %v, the configured jitter is %v", measured, configured)
	}
	f.conditions.Record(l.log, conditionJitter, err)
}
