package limiter

import (
	"context"
	"fmt"
	"time"
)

const (
	// settingsEvery is how often the settings are read: they must be in force
	// within two seconds.
	settingsEvery = time.Second
	// countEvery is how often the day's count is written down, and countLost how
	// long it may fail before no permit is given: what is lost with Redis is
	// estimated from the last count, at the full rate.
	countEvery = 5 * time.Second
	countLost  = time.Minute
	// bookTimeout bounds one call to the settings or the counts.
	bookTimeout = time.Second
	// jitterEvery is over how long the jitter is measured: shorter, and a moment of
	// trouble would lower the rate.
	jitterEvery = time.Minute
)

// follow keeps to what is not Redis' until ctx ends: the settings, the day's
// count, the jitter, and what the live view shows of this process.
func (l *Limiter) follow(ctx context.Context) {
	tick := time.NewTicker(settingsEvery)
	defer tick.Stop()
	now := time.Now()
	f := following{l: l, config: l.deps.config, revision: -1, said: map[string]bool{}, wrote: now, looked: now, reported: now}
	f.settings(ctx)
	for {
		select {
		case <-ctx.Done():
			f.write(context.WithoutCancel(ctx)) // what was used up to now
			l.leave()
			return
		case <-l.count:
			f.count(ctx)
			continue
		case <-tick.C:
		}
		now = time.Now()
		f.settings(ctx)
		f.names(ctx)
		if now.Sub(f.wrote) >= countEvery {
			f.write(ctx)
		}
		if now.Sub(f.looked) >= jitterEvery {
			f.looked = now
			f.watchJitter()
		}
		f.report(now)
	}
}

// following is what follow remembers. Only its goroutine touches it.
type following struct {
	l        *Limiter
	config   Config // with the last change that held
	stopped  bool
	revision int64
	spread   time.Duration   // the jitter that the quota is made for, if measured
	said     map[string]bool // the troubles, each said once
	wrote    time.Time       // the count was written, or there was nothing to write
	written  Count
	looked   time.Time
	reported time.Time
}

// trouble says once what is wrong, and once that it is over.
func (f *following) trouble(doing string, err error) {
	switch {
	case err != nil && !f.said[doing]:
		f.l.log.Warn("the limiter goes on with what it knows", "doing", doing, "err", err)
	case err == nil && f.said[doing]:
		f.l.log.Info("it succeeds again", "doing", doing)
	}
	f.said[doing] = err != nil
}

// settings reads what was changed, and obeys. A change that can't hold leaves the
// quota as it was; a stop in it is obeyed all the same.
func (f *following) settings(ctx context.Context) {
	l := f.l
	if l.deps.Settings == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bookTimeout)
	defer cancel()
	o, revision, err := l.deps.Settings.Quota(ctx, l.source)
	f.trouble("reading the settings", err)
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
	f.obey()
}

// obey makes what was changed, and the measured jitter, the quota in force.
func (f *following) obey() {
	l := f.l
	quota, err := NewQuota(f.config.fitting(f.spread))
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil { // it held without the jitter, and a lower rate always fits
		l.log.Error("the quota can't be made to fit the jitter; it stays as it was", "jitter", f.spread, "err", err)
		quota = l.quota
	}
	l.put(quota, max(0, f.revision), f.stopped)
	l.unset = false
	l.report, l.tells = l.rdb != nil, l.rdb != nil // so that Redis is told at once, by whoever reads it first
	now := time.Now()
	for _, q := range l.lines {
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

// count tells Redis what the day has used, as far as that is written down.
func (f *following) count(ctx context.Context) {
	l := f.l
	l.mu.Lock()
	quota := l.quota
	l.mu.Unlock()
	if quota.day == nil {
		return
	}
	var c Count
	if l.deps.Usage != nil {
		ctx, cancel := context.WithTimeout(ctx, bookTimeout)
		defer cancel()
		var err error
		c, err = l.deps.Usage.Used(ctx, l.source, quota.day.policy.Name)
		f.trouble("reading what the day has used", err)
		if err != nil {
			return // asked again with the next refusal
		}
	}
	event := "used 0 0 0 0"
	if !c.At.IsZero() {
		rate, most := quota.uncounted()
		event = fmt.Sprintf("used %d %d %d %d %d", c.DayEnd.UnixMicro(), c.Calls, c.At.UnixMicro(), rate, most)
	}
	l.mu.Lock()
	l.tell = append(l.tell, event)
	l.mu.Unlock()
	l.wake()
}

// write writes the day's count down.
func (f *following) write(ctx context.Context) {
	l := f.l
	l.mu.Lock()
	quota, c := l.quota, l.counted
	l.mu.Unlock()
	if quota.day == nil || l.deps.Usage == nil || c == f.written || c.At.IsZero() {
		f.wrote = time.Now()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bookTimeout)
	defer cancel()
	err := l.deps.Usage.SetUsed(ctx, l.source, quota.day.policy.Name, c)
	f.trouble("writing down what the day has used", err)
	now := time.Now()
	if err == nil {
		f.wrote, f.written = now, c
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if lost := now.Sub(f.wrote) > countLost; lost != l.uncount {
		l.uncount = lost
		if lost {
			l.log.Error("no permit is given until what the day has used can be written down again", "err", err)
		}
		l.wake()
	}
}

// report has the live view told who waits here, every second while somebody does or calls
// are made, and once more after that: two reports of the same count say that no calls are
// made any more. Of who is idle it is told seldom. It rides on a call for
// permits, so that a Redis that does not answer is probed by nothing else, and a
// permit costs no second call; only where none comes by is one made for it, and
// where none may be made it is one of its own.
func (f *following) report(now time.Time) {
	l := f.l
	if l.rdb == nil {
		return
	}
	l.mu.Lock()
	waiting := l.waiting() > 0
	l.metrics.fade(now)
	calls := l.used()
	due := waiting || l.shown || l.told != [2]int64{calls, calls} || now.Sub(f.reported) >= idleReport
	blocked := l.unset || l.uncount
	l.shown = waiting
	if l.report && !blocked { // nothing came by since the last time
		l.tells = true
	}
	l.report = l.report || (due && !blocked)
	alone := due && blocked && l.failed == 0
	l.mu.Unlock()
	if due {
		f.reported = now
	}
	if alone {
		l.show()
	}
	l.wake()
}

// watchJitter lowers the rate while calls are spread more than is configured.
func (f *following) watchJitter() {
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
	f.obey()
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
		if p.Window != Day && p.Limit > ringMost && p.Target > 0 {
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
		if _, err := newLanes(p, jitter); err == nil {
			return p.Target
		}
	}
	return 0
}
