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

// View is the current state of a source's limiter, for operators and dashboards.
type View struct {
	Source string     `json:"source"`
	State  State      `json:"state"`
	At     time.Time  `json:"at"`              // time at which the state was read, by Redis' clock
	Until  *time.Time `json:"until,omitempty"` // end of a backoff or a quiet period, or the time of the next probe
	// Revision is the revision of the settings in force, NewestRevision the revision of the
	// stored settings. If NewestRevision is greater, the limits shown are not in force yet.
	// RampRatio is the share of the full rate in use, from 0.5 to 1.
	Revision       int64        `json:"revision"`
	NewestRevision int64        `json:"newestRevision"`
	RampRatio      float64      `json:"rampRatio"`
	Policies       []PolicyView `json:"policies"`
	// Scopes contains the states of buckets (one policy for one value of its scope), as the
	// processes reported them.
	Scopes    []ScopeView   `json:"scopes,omitempty"`
	Processes []ProcessView `json:"processes"`
	// High and Low are the current rates of the lanes.
	High Share `json:"-"`
	Low  Share `json:"-"`

	birth int64 // when the state was created, by Redis' clock in µs; 0 means no state
}

// PolicyView says how much of one quota policy is used, how much remains, and when it resets.
type PolicyView struct {
	Name   string `json:"name"`
	Window string `json:"window"`
	Limit  int    `json:"limit"`
	Target int    `json:"target,omitempty"` // calls per window that freshet makes under constant demand; 0 for a day
	// Used is the number of calls made in the window, Remaining the number of calls still
	// possible. For a window kept in GCRA partitions Used is unknown, and Remaining is the number
	// of calls possible at this moment.
	Used      *int64 `json:"used,omitempty"`
	Remaining int64  `json:"remaining"`
	// RemainingForLow is the part of Remaining that LOW can use.
	RemainingForLow int64      `json:"remainingForLow"`
	ResetsAt        *time.Time `json:"resetsAt,omitempty"`

	length time.Duration // length of the policy's window
}

// ProcessView is the report of one process about its waiters.
type ProcessView struct {
	Process string    `json:"process"`
	At      time.Time `json:"at"`
	High    LaneView  `json:"high"`
	Low     LaneView  `json:"low"`
	// Scopes are the bucket states that this process received last.
	Scopes []ScopeView `json:"scopes,omitempty"`
}

// LaneView describes one lane in one process. Waiting is the number of waiters; OldestMS and
// Reason are the age and the rejection reason of the oldest waiter. Granted and Rejected count
// slots since the process started.
type LaneView struct {
	Waiting  int        `json:"waiting"`
	OldestMS float64    `json:"oldestMs"`
	Reason   WaitReason `json:"reason,omitempty"`
	Granted  int64      `json:"granted"`
	Rejected int64      `json:"rejected"`
}

const (
	// waitingReportTTL is how long a report with waiters is shown. Such reports come every
	// busyReportInterval, and reports of idle processes every idleReportInterval.
	waitingReportTTL   = 5 * time.Second
	busyReportInterval = 2*time.Second - settingsInterval/2 // every second tick, although ticks are not exact
	idleReportInterval = 15 * time.Second
	reportsKeyTTL      = time.Minute
)

func reportsKey(source string) string { return "quota:{" + source + "}:waiting" }

// ReadView reads the limiter of a source from Redis. `quota` and `revision` must come from the newest
// settings, because the state in Redis contains no policy names.
func ReadView(ctx context.Context, rdb redis.UniversalClient, source string, quota Quota, revision int64) (View, error) {
	v, err := readState(ctx, rdb, source, quota)
	if err != nil {
		return View{}, err
	}
	v.NewestRevision = max(revision, v.Revision)
	v.High, v.Low = quota.share(schemas.High, v), quota.share(schemas.Low, v)
	reports, err := rdb.HGetAll(ctx, reportsKey(source)).Result()
	if err != nil {
		return View{}, fmt.Errorf("read the processes' reports about waiting callers of %s: %w", source, err)
	}
	v.Processes = []ProcessView{}
	for name, text := range reports {
		var p ProcessView
		readable := json.Unmarshal([]byte(text), &p) == nil
		idle, age := p.High.Waiting+p.Low.Waiting == 0, v.At.Sub(p.At)
		switch {
		case !readable || age > reportsKeyTTL: // the process crashed without deleting its report
			if err := rdb.HDel(ctx, reportsKey(source), name).Err(); err != nil {
				return View{}, fmt.Errorf("delete the report of a stopped process: %w", err)
			}
		case idle || age < waitingReportTTL:
			v.Processes = append(v.Processes, p)
		}
	}
	v.Scopes = mergeScopes(v.Processes)
	slices.SortFunc(v.Processes, func(a, b ProcessView) int { return strings.Compare(a.Process, b.Process) })
	return v, nil
}

// breakerSection is the first number of the section that describes the circuit breaker, in the
// state that limiter_acquire returns.
const breakerSection = 4

// nextProbeAt returns the time of the next probe by Redis' clock in µs; 0 means that the
// breaker is closed.
func nextProbeAt(sections []int64) int64 {
	for ; len(sections) >= 5; sections = sections[5:] {
		if sections[0] == breakerSection {
			return sections[1]
		}
	}
	return 0
}

// readState returns the view of the state in Redis. It does not read the reports of the processes
// about their waiting calls.
func readState(ctx context.Context, rdb redis.UniversalClient, source string, quota Quota) (View, error) {
	v := View{Source: source, State: StateUnused, At: time.Now().UTC(), RampRatio: 1, Policies: []PolicyView{}}
	args := []any{0, 0, "", quota.midnights(v.At)}
	s, err := eval.Ints(ctx, rdb, lua.LimiterAcquire, eval.Call{Key: stateKey(source), Args: args})
	if err != nil {
		return View{}, fmt.Errorf("read the limiter's state: %w", err)
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
		v.State = StateStopped
	case next > 0:
		v.State = StateBreakerOpen
		if until = utc(next); next > now { // if next is in the past, the probe is due now, and Until is not set
			v.Until = &until
		}
	case s[4] > now:
		v.State, v.Until = StateBackingOff, &until
	case s[6] == 1:
		v.State = StateRestoringCount
	case now < quiet:
		until = utc(quiet)
		v.State, v.Until = StateQuietPeriod, &until
	case s[5] < 1000:
		v.State = StateRamping
	default:
		v.State = StateFlowing
	}
	return v, v.policies(s[7:], quota)
}

func utc(us int64) time.Time { return time.UnixMicro(us).UTC() }

var errUnreadable = errors.New("the limiter's state in Redis was written by another release")

// policies decodes the sections of the state. It finds the policy of a section by the length of
// the window.
func (v *View) policies(s []int64, quota Quota) error {
	for ; len(s) >= 5; s = s[5:] {
		p := PolicyView{Name: "of another release"}
		switch s[0] {
		case 1:
			p.Window = schemas.FormatDuration(micros(s[1]))
			for _, l := range quota.partitioned {
				if l.window == micros(s[1]) {
					p.of(l.policy, int(l.perWindow()))
				}
			}
			// A source that is stopped, has an open breaker, backs off or restores the day's count can
			// make no call now, so 0 calls remain.
			if v.State != StateStopped && v.State != StateBackingOff && v.State != StateBreakerOpen && v.State != StateRestoringCount {
				p.Remaining, p.RemainingForLow = s[2]+s[3]+s[4], s[3]+s[4]
			}
		case 2:
			if s[2] == 0 || s[3] == 0 { // this section is the log of only one lane; the section before it is the log of the whole policy
				v.boundLow(s[3], s[4])
				continue
			}
			p.Window = schemas.FormatDuration(micros(s[1]))
			longest := time.Duration(0)
			// s[1] is the policy's window plus a margin, in µs. So the policy is the one with the
			// longest window below s[1].
			for _, r := range quota.windowLogs {
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
			if v.State == StateRestoringCount || s[4] == 0 {
				break // the day's count is not known yet, so the view shows none
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

// boundLow lowers RemainingForLow of the last policy in v to the number of free slots in LOW's
// own log, which has `low` slots. If `low` is 0, the log is HIGH's own, and nothing changes.
func (v *View) boundLow(low, used int64) {
	if n := len(v.Policies); n > 0 && low > 0 {
		p := &v.Policies[n-1]
		p.RemainingForLow = min(p.RemainingForLow, max(0, low-used))
	}
}

// of sets the fields that the quota defines. If the policy has no target, Target is set to
// `target`.
func (p *PolicyView) of(policy Policy, target int) {
	p.Name, p.Window, p.Limit, p.Target = policy.Name, policy.Window.String(), policy.Limit, policy.Target
	if p.length = time.Duration(policy.Window); policy.Window == Day {
		p.length = 24 * time.Hour
	}
	if p.Target == 0 {
		p.Target = target
	}
}
