package limiter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/schemas"
)

// View is the limiter of one source as it is now, for people and dashboards.
type View struct {
	Source string `json:"source"`
	// State is flowing, braked, probing (stopped but for one call at a time), ramping
	// (after either), stopped, starting quiet (its state was lost), uncounted (the
	// day's count is being restored), or unused.
	State string     `json:"state"`
	At    time.Time  `json:"at"`              // by Redis' clock
	Until *time.Time `json:"until,omitempty"` // of a brake, of a pause between probes or of a quiet start
	// Revision is that of the settings in force, and NewestRevision that of those
	// that are set: if it is greater, the limits shown are still to come. Rate is
	// the part of the rate that is used.
	Revision       int64        `json:"revision"`
	NewestRevision int64        `json:"newestRevision"`
	RampRatio      float64      `json:"rampRatio"`
	Policies       []PolicyView `json:"policies"`
	// Scopes are what policies with a scope have left for its values, as the processes know.
	Scopes    []ScopeView   `json:"scopes,omitempty"`
	Processes []ProcessView `json:"processes"`
	// High and Low are what each lane may do by now.
	High Share `json:"-"`
	Low  Share `json:"-"`

	birth int64 // of the state, by Redis' clock in us; 0: there is none
}

// PolicyView is what one policy has left.
type PolicyView struct {
	Name   string `json:"name"`
	Window string `json:"window"`
	Limit  int    `json:"limit"`
	Target int    `json:"target,omitempty"` // calls of a window that are used; a day has none
	// Used and Left are calls of the window; of a window kept by lanes only what
	// could be called this instant is known.
	Used      *int64 `json:"used,omitempty"`
	Remaining int64  `json:"remaining"`
	// RemainingForLow is what of it LOW may use.
	RemainingForLow int64      `json:"remainingForLow"`
	ResetsAt        *time.Time `json:"resetsAt,omitempty"`

	length time.Duration // of the window
}

// ProcessView is who waits in one process.
type ProcessView struct {
	Process string    `json:"process"`
	At      time.Time `json:"at"`
	High    LaneView  `json:"high"`
	Low     LaneView  `json:"low"`
	// Scopes are what this process knows of buckets.
	Scopes []ScopeView `json:"scopes,omitempty"`
}

// LaneView is one lane of one process: how many wait, the longest of them for
// how long, what the first waits for, and how many permits were granted and refused since it started.
type LaneView struct {
	Waiting  int     `json:"waiting"`
	OldestMS float64 `json:"oldestMs"`
	Reason   string  `json:"reason,omitempty"`
	Granted  int64   `json:"granted"`
	Rejected int64   `json:"rejected"`
}

const (
	// waitingReportTTL is how long the report of a process with waiters is believed; it comes
	// every second then and while calls are made, once more when they have ended, and every
	// idleReport from an idle one.
	waitingReportTTL   = 5 * time.Second
	idleReportInterval = 15 * time.Second
	reportsKeyTTL      = time.Minute
)

func reportsKey(source string) string { return "quota:{" + source + "}:waiting" }

// publishReport tells the live view who waits here, and sets the metrics to what it shows.
func (l *Limiter) publishReport() {
	now := time.Now()
	l.mu.Lock()
	quota := l.quota
	p := ProcessView{l.process, now, l.laneView(schemas.High, now), l.laneView(schemas.Low, now), l.scopeViews(now)}
	l.lastReports = [2]int64{l.used(), l.lastReports[0]}
	l.reportedWaiters = l.reportedWaiters || p.High.Waiting+p.Low.Waiting > 0 // that nobody waits any more is told too
	if l.clock.redis > 0 {                                                    // the clocks of processes differ
		p.At = time.UnixMicro(l.clock.at(now)).UTC()
	}
	l.mu.Unlock()
	l.metrics.scopes(p.Scopes)
	for lane, v := range map[schemas.Lane]LaneView{schemas.High: p.High, schemas.Low: p.Low} {
		l.metrics.waiting[lane].Set(float64(v.Waiting))
	}
	text, err := json.Marshal(p)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), redisTimeout)
	defer cancel()
	// The metrics first: who sees the report finds them as new as that.
	v, err := readState(ctx, l.rdb, l.source, quota)
	if err != nil {
		return // the limiter's own call says what is wrong
	}
	l.metrics.show(v)
	if v.State == stateRestoringCount { // nobody may have been refused yet
		select {
		case l.dayCountNeeded <- struct{}{}:
		default:
		}
	}
	pipe := l.rdb.Pipeline()
	pipe.HSet(ctx, reportsKey(l.source), l.process, text)
	pipe.Expire(ctx, reportsKey(l.source), reportsKeyTTL)
	_, _ = pipe.Exec(ctx) // told again in a second
}

// removeReport takes this process out of the live view.
func (l *Limiter) removeReport() {
	if l.rdb == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), redisTimeout)
	defer cancel()
	_ = l.rdb.HDel(ctx, reportsKey(l.source), l.process).Err() // it fades otherwise
}

// laneView describes a lane, all its lines together. The caller holds l.mu.
func (l *Limiter) laneView(lane schemas.Lane, now time.Time) LaneView {
	var v LaneView
	var oldest *Permit
	for _, q := range l.queues {
		if q.lane != lane {
			continue
		}
		v.Waiting, v.Granted, v.Rejected = v.Waiting+q.length, v.Granted+q.used, v.Rejected+q.refused
		for _, first := range []*Permit{q.fresh.first, q.retries.first} {
			for p := first; p != nil; p = p.after { // who comes again stands in front
				if oldest == nil || p.since.Before(oldest.since) {
					oldest = p
				}
			}
		}
	}
	if oldest == nil {
		return v
	}
	v.OldestMS = float64(now.Sub(oldest.since).Microseconds()) / 1000
	switch {
	case l.failed > 0:
		v.Reason = "Redis does not answer"
	case l.settingsUnread:
		v.Reason = "the settings can't be read"
	case l.dayCountUnsaved:
		v.Reason = "the day's count can't be written down"
	case l.stopped:
		v.Reason = l.quota.refusalText(refusedByStop)
	default:
		v.Reason = l.quota.refusalText(oldest.queue.refusal)
	}
	return v
}

// ReadView returns the limiter of a source as it is now, from Redis. The quota is
// that of the newest revision of the settings: Redis knows what is left of each
// policy, and not its name.
func ReadView(ctx context.Context, rdb redis.UniversalClient, source string, quota Quota, revision int64) (View, error) {
	v, err := readState(ctx, rdb, source, quota)
	if err != nil {
		return View{}, err
	}
	v.NewestRevision = max(revision, v.Revision)
	v.High, v.Low = quota.share(schemas.High, v), quota.share(schemas.Low, v)
	reports, err := rdb.HGetAll(ctx, reportsKey(source)).Result()
	if err != nil {
		return View{}, fmt.Errorf("read who waits: %w", err)
	}
	v.Processes = []ProcessView{}
	for name, text := range reports {
		var p ProcessView
		readable := json.Unmarshal([]byte(text), &p) == nil
		idle, age := p.High.Waiting+p.Low.Waiting == 0, v.At.Sub(p.At)
		switch {
		case !readable || age > reportsKeyTTL: // it has crashed, or would have taken itself out
			if err := rdb.HDel(ctx, reportsKey(source), name).Err(); err != nil {
				return View{}, fmt.Errorf("forget who is gone: %w", err)
			}
		case idle || age < waitingReportTTL:
			v.Processes = append(v.Processes, p)
		}
	}
	v.Scopes = mergeScopes(v.Processes)
	slices.SortFunc(v.Processes, func(a, b ProcessView) int { return strings.Compare(a.Process, b.Process) })
	return v, nil
}

const (
	// stateRestoringCount is the state in which what the day has used is still to be told.
	stateRestoringCount = "restoring-count"
	// stateQuietPeriod is the state after all was lost.
	stateQuietPeriod = "quiet-period"
	// stateUnused is the state before the first call.
	stateUnused = "unused"
)

// stateBreakerOpen is the state in which nothing is called but what probes the upstream.
const stateBreakerOpen = "breaker-open"

// breakerSection is the section that shows a probing stop.
const breakerSection = 4

// nextProbeAt returns when the next probe may go, by Redis' clock in us; 0: no probing
// stop is in force.
func nextProbeAt(sections []int64) int64 {
	for ; len(sections) >= 5; sections = sections[5:] {
		if sections[0] == breakerSection {
			return sections[1]
		}
	}
	return 0
}

// readState returns what the state in Redis shows.
func readState(ctx context.Context, rdb redis.UniversalClient, source string, quota Quota) (View, error) {
	v := View{Source: source, State: stateUnused, At: time.Now().UTC(), RampRatio: 1, Policies: []PolicyView{}}
	args := []any{0, 0, "", "", quota.midnights(v.At)}
	s, err := eval.Ints(ctx, rdb, lua.LimiterAcquire, eval.Call{Key: stateKey(source), Args: args})
	if err != nil {
		return View{}, fmt.Errorf("look at the limiter: %w", err)
	}
	if len(s) == 0 {
		return v, nil
	}
	if len(s) < 7 {
		return View{}, errUnreadable
	}
	now, birth, until := s[0], s[1], utc(s[4])
	v.birth = birth
	next := nextProbeAt(s[7:])
	v.At, v.Revision, v.RampRatio = utc(now), s[2], float64(s[5])/1000
	switch quiet := birth + quota.Quiet().Microseconds(); {
	case s[3] == 1:
		v.State = "stopped"
	case next > 0:
		v.State = stateBreakerOpen
		if until = utc(next); next > now { // otherwise the next call is the probe
			v.Until = &until
		}
	case s[4] > now:
		v.State, v.Until = "backing-off", &until
	case s[6] == 1:
		v.State = stateRestoringCount
	case now < quiet:
		until = utc(quiet)
		v.State, v.Until = stateQuietPeriod, &until
	case s[5] < 1000:
		v.State = "ramping"
	default:
		v.State = "flowing"
	}
	return v, v.policies(s[7:], quota)
}

func utc(us int64) time.Time { return time.UnixMicro(us).UTC() }

var errUnreadable = errors.New("the limiter's state is of another release")

// policies reads the sections of the state, and finds the policy of each by its
// window.
func (v *View) policies(s []int64, quota Quota) error {
	for ; len(s) >= 5; s = s[5:] {
		p := PolicyView{Name: "of another release"}
		switch s[0] {
		case 1:
			p.Window = micros(s[1]).String()
			for _, l := range quota.partitioned {
				if l.window == micros(s[1]) {
					p.of(l.policy, int(l.perWindow()))
				}
			}
			if v.State != "stopped" && v.State != "backing-off" && v.State != stateBreakerOpen && v.State != stateRestoringCount { // nothing goes this instant
				p.Remaining, p.RemainingForLow = s[2]+s[3]+s[4], s[3]+s[4]
			}
		case 2:
			if s[2] == 0 || s[3] == 0 { // a lane's own ring, behind the policy's
				v.boundLow(s[3], s[4])
				continue
			}
			p.Window = micros(s[1]).String()
			longest := time.Duration(0)
			for _, r := range quota.windowLogs { // of those that fit its reach, the longest
				if window := time.Duration(r.policy.Window); window < micros(s[1]) && window > longest {
					longest = window
					p.of(r.policy, r.calls)
				}
			}
			p.Used, p.Remaining, p.RemainingForLow = &s[4], max(0, s[2]-s[4]), max(0, s[3]-s[4])
		case 3:
			p.Window = Day.String()
			if quota.day != nil {
				p.of(quota.day.policy, 0)
			}
			end := utc(s[4])
			if v.State == stateRestoringCount || s[4] == 0 {
				break // what is used is not known yet
			}
			p.Used, p.Remaining, p.ResetsAt = &s[3], max(0, s[1]-s[3]), &end
			p.RemainingForLow = max(0, p.Remaining-int64(float64(s[2])/1e6*max(0, end.Sub(v.At).Seconds())))
		case breakerSection:
			continue
		default:
			return errUnreadable
		}
		v.Policies = append(v.Policies, p)
	}
	return nil
}

// boundLow lowers LeftForLow of the last policy to the room of LOW's own ring; low 0: the ring
// is HIGH's.
func (v *View) boundLow(low, used int64) {
	if n := len(v.Policies); n > 0 && low > 0 {
		p := &v.Policies[n-1]
		p.RemainingForLow = min(p.RemainingForLow, max(0, low-used))
	}
}

// of fills in what the quota says of the policy; target is what 0 comes to.
func (p *PolicyView) of(policy Policy, target int) {
	p.Name, p.Window, p.Limit, p.Target = policy.Name, policy.Window.String(), policy.Limit, policy.Target
	if p.length = time.Duration(policy.Window); policy.Window == Day {
		p.length = 24 * time.Hour
	}
	if p.Target == 0 {
		p.Target = target
	}
}
