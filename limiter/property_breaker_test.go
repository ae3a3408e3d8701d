package limiter

import "time"

// probes is the judge's model of the circuit breaker. It is computed only from the events that Redis
// has received, and not from the script's state. After a loss of state or a step of the clock, the
// judge does not use it.
type probes struct {
	in          bool
	blind       bool
	began       int64 // when the breaker opened, by Redis' clock in µs
	ended       int64
	next        time.Time
	pause, most time.Duration
	last        int64     // slot of the newest probe, by Redis' clock in µs; 0 means none, or not sent
	lastProbe   time.Time // time of the newest probe's slot by the simulated clock
}

// minProbePause is the minimum pause between probes (MIN_PROBE_PAUSE of the script).
const minProbePause = time.Second

// refunded records that a probe was not sent. Then the next probe comes soon, and the pause is not
// doubled.
func (s *probes) refunded(at time.Time, slot int64) {
	if !s.in || s.last == 0 || slot != s.last {
		return
	}
	s.last, s.pause = 0, max(minProbePause, s.pause/2)
	s.next = later(at, s.lastProbe).Add(minProbePause)
}

// openBreaker makes one random process open the breaker.
func (w *world) openBreaker(first, most time.Duration) {
	p := w.processes[w.rng.IntN(len(w.processes))]
	w.backedOff = true
	p.limiter.OpenBreaker(first, most, time.Now().Add(-span(w.rng, 0, 2*time.Second)))
}

// closeBreaker lets every process report the success of a call that was sent `ago` before now.
func (w *world) closeBreaker(ago time.Duration) {
	for _, p := range w.processes {
		p.limiter.CloseBreaker(time.Now().Add(-ago))
	}
}

// applyOpen and applyClose record the events that Redis received. The caller holds w.mu.
func (w *world) applyOpen(at time.Time, redisNow int64, first, most time.Duration, sent int64) {
	s := &w.stop
	switch {
	case s.in && first > s.pause:
		s.next, s.pause = s.next.Add(first-s.pause), first
		fallthrough
	case s.in:
		s.most = max(s.most, most, first)
	case sent >= s.ended:
		*s = probes{in: true, blind: s.blind, began: redisNow, next: at.Add(first), pause: first, most: max(first, most)}
		if !s.blind {
			w.backoffs = append(w.backoffs, backoffRecord{reported: at, until: s.next, probing: true})
		}
	}
}

func (w *world) applyClose(at time.Time, redisNow, sent int64) {
	s := &w.stop
	if !s.in || sent <= s.began {
		return
	}
	s.in, s.ended = false, redisNow
	for i := range w.backoffs {
		if b := &w.backoffs[i]; b.probing && b.until.After(at) {
			b.until = at
		}
	}
}

// probed checks the slots that were granted while the breaker is open: at most one probe, after the
// pause. `wrong` describes a violation. The caller holds w.mu.
func (w *world) probed(g grant, at, redisNow time.Time) (wrong string) {
	s := &w.stop
	if !s.in || s.blind {
		return ""
	}
	all := append(append([]time.Duration{}, g.high...), g.low...)
	if len(all) > 1 {
		return "several slots were granted in a pause between probes"
	}
	for _, wait := range all {
		slot := at.Add(wait)
		if slot.Before(s.next.Add(-2 * time.Microsecond)) {
			return "a slot was granted " + s.next.Sub(slot).String() + " before the next probe"
		}
		s.last, s.lastProbe = redisNow.Add(wait).UnixMicro(), slot
		s.pause = min(s.most, 2*s.pause)
		s.next = slot.Add(s.pause)
		if g.refusalHigh != refusedByBreaker && g.refusalLow != refusedByBreaker {
			return "a probe was granted that is not called one"
		}
	}
	return ""
}

// refusals is the judge's model of a backoff. After a refusal, only one probe at a time may be granted,
// until a probe was answered and not refused. The model is computed from the events that Redis has
// received.
type refusals struct {
	halfOpen  bool
	at        int64     // when Redis received the last refusal, by its clock in µs
	until     time.Time // earliest time at which the pause may end
	last      int64     // slot of the newest probe, by Redis' clock in µs; 0 means none, or not sent
	lastProbe time.Time // time of the newest probe's slot by the simulated clock
}

func (b *refusals) refused(at time.Time, redisNow int64, pause, base time.Duration, sent int64) {
	switch {
	case sent >= b.at:
		b.at, pause = redisNow, max(pause, min(base, time.Millisecond))
	case pause == 0:
		return
	}
	b.halfOpen, b.until = true, later(b.until, at.Add(pause))
}

func (b *refusals) refunded(slot int64) {
	if slot == b.last {
		b.last = 0
	}
}

func (b *refusals) resumed(at time.Time, slot int64) {
	if slot >= b.at && !at.Before(b.until) {
		*b = refusals{at: b.at}
	}
}

// probed checks the slots granted after a refusal.
func (b *refusals) probed(g grant, at, redisNow time.Time) (wrong string) {
	all := append(append([]time.Duration{}, g.high...), g.low...)
	if !b.halfOpen || len(all) == 0 {
		return ""
	}
	slot := at.Add(all[0])
	switch {
	case len(all) > 1:
		return "several slots were granted before the probe of a backoff was answered"
	case b.last > 0 && slot.Sub(b.lastProbe) < time.Second-2*time.Microsecond:
		return "a probe of a backoff was granted " + slot.Sub(b.lastProbe).String() + " after the one in flight"
	}
	b.last, b.lastProbe = redisNow.Add(all[0]).UnixMicro(), slot
	return ""
}
