package limiter

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
)

// record contains the facts of a run. The judge uses only these facts, and not the state of the
// limiters.
type record struct {
	calls    []call
	grants   map[inFlightCall]grants
	refunds  map[inFlightCall]int
	backoffs []backoffRecord
	// backedOffAt is when Redis received the last backoff, by Redis' clock in µs.
	backedOffAt int64
	stop        probes
	backedOffBy refusals
	scripted
	forgot bool     // Redis has lost counts of calls
	said   []string // log of the events of the run
	wrongs []string
}

// call records when a simulated call was sent and when it reached the upstream.
type call struct {
	spent, arrived time.Time
	high           bool
}

// inFlightCall identifies a time slot by the process that got it and by its time on Redis' clock,
// in µs.
type inFlightCall struct {
	process int
	at      int64
}

// grants counts how often one time slot was granted and spent. The times `first` and `last` are the
// slot's true time: `first` as computed when the slot was granted first, `last` as computed when it
// was granted last.
type grants struct {
	n, spent int
	first    time.Time
	last     time.Time
}

// backoffRecord is one backoff that Redis received.
type backoffRecord struct {
	reported, until time.Time
	probing         bool // if set, this is the pause before a breaker's first probe, not a backoff
}

const (
	// learnt is the longest time until changed settings are in force. A process reads the change within
	// a second, and sends it to Redis within another second. Permits that were reserved before can
	// still be used after that.
	learnt = 2*time.Second + redisTimeout + horizon + permitLife
	// standstill is the step by which Redis' clock can be set back without a loss of the state.
	standstill = 10 * ms
)

func (w *world) logStory(format string, args ...any) {
	w.said = append(w.said, fmt.Sprintf("%12v  ", time.Since(w.start))+fmt.Sprintf(format, args...))
}

func (w *world) wrong(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note(format, args...)
}

// note records a violation for a caller that holds w.mu. A caller without the lock uses w.wrong.
func (w *world) note(format string, args ...any) {
	w.wrongs = append(w.wrongs, fmt.Sprintf("%v  ", time.Since(w.start))+fmt.Sprintf(format, args...))
}

// storyText returns the log of the run.
func (w *world) storyText() string {
	head := fmt.Sprintf("seed %d: %s %v, %d of 1000 calls to Redis fail, %d of 1000 permits are dealt with badly, demand %+v, %d calls, usage kept %v, busy for %v",
		w.seed, w.trial.name, w.trial.config.Policies, w.fails, w.misuses, w.demand, len(w.calls), w.usage, w.trial.busy)
	return head + "\n" + strings.Join(w.said, "\n")
}

// granted records the slots that Redis granted to a process.
func (w *world) granted(p *process, g grant, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.answered = true
	for _, wait := range append(slices.Clone(g.high), g.low...) {
		slot := inFlightCall{p.name, g.now + wait.Microseconds()}
		of := w.grants[slot]
		if of.n == 0 {
			of.first = at.Add(wait)
		}
		of.n, of.last = of.n+1, at.Add(wait)
		w.grants[slot] = of
	}
}

// spent records a call and judges its permit.
func (w *world) spent(p *process, permit *Permit, high bool, delay time.Duration) {
	now := time.Now()
	slot := inFlightCall{p.name, permit.slot.at}
	w.mu.Lock()
	w.calls = append(w.calls, call{now, now.Add(delay), high})
	if now.Add(delay).Before(w.midnight) {
		w.sent[0]++
	} else {
		w.sent[1]++
	}
	of := w.grants[slot]
	of.spent++
	w.grants[slot] = of
	refunds, stopped := w.refunds[slot], p.stopped
	w.mu.Unlock()
	if high != (permit.queue.lane == schemas.High) {
		w.wrong("a permit of the other lane")
	}
	switch {
	case of.spent+refunds > of.n:
		w.wrong("slot %d of process %d was granted %d times, spent %d and refunded %d", slot.at, p.name, of.n, of.spent, refunds)
	case now.Before(of.first.Add(-standstill)):
		w.wrong("spent %v before its slot", of.first.Sub(now))
	case now.After(of.last.Add(permitLife)):
		w.wrong("spent %v after its slot", now.Sub(of.last))
	case !stopped.IsZero() && now.Sub(stopped) > permitLife:
		w.wrong("process %d spent a permit %v after it had read the stop", p.name, now.Sub(stopped))
	}
}

// forget records that Redis has lost all changes since the time `since`: backoffs, and all settings
// after the one with the index `newest`.
func (w *world) forget(since time.Time, newest int) {
	w.forgot, w.lost, w.backedOffAt, w.stop.blind, w.newest = true, true, 0, true, newest
	for i := range w.backoffs {
		if b := &w.backoffs[i]; b.reported.After(since) && b.until.After(time.Now()) {
			b.until = time.Now()
		}
	}
}

// shortenBackoffs shortens the expected backoffs by the duration by which Redis' clock was set
// forward.
func (w *world) shortenBackoffs(by time.Duration) {
	for i := range w.backoffs {
		w.backoffs[i].until = w.backoffs[i].until.Add(-by)
	}
}

// judge returns all violations.
func (w *world) judge() []string {
	slices.SortFunc(w.calls, func(a, b call) int { return a.arrived.Compare(b.arrived) })
	for slot, n := range w.refunds {
		if of := w.grants[slot]; n+of.spent > of.n {
			w.wrong("slot %d of process %d was granted %d times, spent %d and refunded %d", slot.at, slot.process, of.n, of.spent, n)
			break
		}
	}
	w.windows()
	w.days()
	w.pauses()
	w.flow()
	if n := len(w.wrongs); n > 10 {
		return append(w.wrongs[:10], fmt.Sprintf("and %d more", n-10))
	}
	return w.wrongs
}

// inForce calls `of` for each quota that was in force at some time between `from` and `to`, and
// returns the greatest result.
func (w *world) inForce(from, to time.Time, of func(c Config) int) int {
	most := 0
	for i, s := range w.settings {
		if s.at.After(to) || (i+1 < len(w.settings) && w.settings[i+1].at.Add(learnt).Before(from)) {
			continue
		}
		most = max(most, of(s.config))
	}
	return most
}

// windows checks each sliding window, including its start and its end. A window must not have more
// arrivals than the limit, and not more arrivals of LOW than LOW's share.
func (w *world) windows() {
	for i, p := range w.trial.config.Policies {
		if p.Window == Day {
			continue
		}
		w.window(p, "calls", false, func(c Config) int { return c.Policies[i].Limit })
		w.window(p, "LOW calls", true, func(c Config) int { return lowShare(c, i) })
	}
}

// lowShare returns how many calls of a window LOW can make. In a sliding-window log these are all
// calls except HIGH's reserve. In GCRA partitions they are the slots of the partitions shared and low.
func lowShare(c Config, i int) int {
	q, err := NewQuota(c)
	if err != nil {
		return 0
	}
	for _, r := range q.windowLogs {
		if r.policy.Name == c.Policies[i].Name {
			return r.low
		}
	}
	for _, l := range q.partitioned {
		if l.policy.Name == c.Policies[i].Name {
			return l.partitions[1].slots(l.reach) + l.partitions[2].slots(l.reach)
		}
	}
	return 0
}

func (w *world) window(p Policy, what string, low bool, limit func(Config) int) {
	length := time.Duration(p.Window)
	var in []call
	over, worst := 0, ""
	for _, c := range w.calls {
		if low && c.high {
			continue
		}
		in = append(in, c)
		for c.arrived.Sub(in[0].arrived) > length {
			in = in[1:]
		}
		if most := w.inForce(in[0].arrived, c.arrived, limit); len(in)-most > over {
			over = len(in) - most
			worst = fmt.Sprintf("policy %s: %d %s from %v to %v, %d are allowed", p.Name, len(in), what, in[0].arrived.Sub(w.start), c.arrived.Sub(w.start), most)
		}
	}
	if over > 0 {
		w.wrongs = append(w.wrongs, worst)
	}
}

// days checks that no calendar day, by the upstream's clock, has more calls than its limit.
func (w *world) days() {
	if !w.counts() {
		return
	}
	i := slices.IndexFunc(w.trial.config.Policies, func(p Policy) bool { return p.Window == Day })
	limit := func(c Config) int { return c.Policies[i].Limit }
	for day, most := range []int{w.inForce(w.start, w.midnight, limit), w.inForce(w.midnight, w.over, limit)} {
		if n := w.sent[day]; n > most {
			w.wrongs = append(w.wrongs, fmt.Sprintf("%d calls in the day %d, %d are allowed", n, day, most))
		}
	}
}

// pauses checks that no call is made during an emergency stop or a backoff.
func (w *world) pauses() {
	for i, s := range w.settings {
		if !s.override.Stopped {
			continue
		}
		until := w.over
		for _, later := range w.settings[i+1:] {
			if !later.override.Stopped {
				until = later.at
				break
			}
		}
		w.none(s.at.Add(learnt), until, "while stopped")
	}
	for _, b := range w.backoffs {
		w.none(b.reported.Add(horizon+permitLife+ms), b.until, "while backing off")
	}
}

func (w *world) none(from, to time.Time, when string) {
	n, first := 0, call{}
	for _, c := range w.calls {
		if c.spent.After(from) && c.spent.Before(to) {
			if n == 0 {
				first = c
			}
			n++
		}
	}
	if n > 0 {
		w.wrongs = append(w.wrongs, fmt.Sprintf("%d calls %s, the first at %v", n, when, first.spent.Sub(w.start)))
	}
}

// flow checks the last part of a run. This part has no faults, and more callers than permits. In it
// the callers must get all permits that the quota allows.
func (w *world) flow() {
	last := w.settings[len(w.settings)-1]
	if w.trial.loose || w.backedOff || last.override.Stopped || w.demand.low < w.trial.low {
		return
	}
	q, err := NewQuota(last.config)
	if err != nil {
		w.wrongs = append(w.wrongs, err.Error())
		return
	}
	rate := 0.0
	for i, b := range q.Bounds() {
		length := time.Duration(b.Window)
		if b.Window == Day {
			length = 24 * time.Hour
		}
		if r := b.Low / length.Seconds(); i == 0 || r < rate {
			rate = r
		}
	}
	// A sliding-window log can grant all its slots in one burst per r.reach, which is slightly
	// longer than the window. So the judged time is a multiple of r.reach.
	judged, spare := w.trial.judged, 0
	for i, r := range q.windowLogs {
		window := time.Duration(r.policy.Window)
		whole := int(judged / window)
		judged = max(judged, time.Duration(whole)*r.reach)
		if i == 0 || r.calls < spare {
			spare = r.calls
		}
	}
	n := 0
	for _, c := range w.calls {
		if c.spent.After(w.over.Add(-judged)) && !c.spent.After(w.over) {
			n++
		}
	}
	if want := rate * judged.Seconds(); float64(n+spare) < 0.9*want {
		w.wrongs = append(w.wrongs, fmt.Sprintf("only %d calls in the last %v; LOW alone could make %.1f", n, judged, want))
	}
}
