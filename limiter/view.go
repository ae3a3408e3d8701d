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
	// State is flowing, braked, ramping (after a brake), stopped, starting quiet
	// (its state was lost), uncounted (the day's count is being restored), or
	// unused.
	State string     `json:"state"`
	Until *time.Time `json:"until,omitempty"` // of a brake or a quiet start
	// Revision is that of the settings in force; Rate their part that is used.
	Revision  int64         `json:"revision"`
	Rate      float64       `json:"rate"`
	Policies  []PolicyView  `json:"policies"`
	Processes []ProcessView `json:"processes"`
}

// PolicyView is what one policy has left.
type PolicyView struct {
	Name   string `json:"name"`
	Window string `json:"window"`
	Limit  int    `json:"limit"`
	// Used and Left are calls of the window; of a window kept by lanes only what
	// could be called this instant is known.
	Used *int64 `json:"used,omitempty"`
	Left int64  `json:"left"`
	// LeftForLow is what of it LOW may use.
	LeftForLow int64      `json:"leftForLow"`
	ResetsAt   *time.Time `json:"resetsAt,omitempty"`
}

// ProcessView is who waits in one process.
type ProcessView struct {
	Process string    `json:"process"`
	At      time.Time `json:"at"`
	High    LaneView  `json:"high"`
	Low     LaneView  `json:"low"`
}

// LaneView is one lane of one process: how many wait, the first of them for how
// long and why, and how many permits were granted and refused since it started.
type LaneView struct {
	Waiting  int     `json:"waiting"`
	OldestMS float64 `json:"oldestMs"`
	Why      string  `json:"why,omitempty"`
	Granted  int64   `json:"granted"`
	Refused  int64   `json:"refused"`
}

const (
	// reportLife is how long a process' report is believed.
	reportLife = 5 * time.Second
	reportsTTL = time.Minute
)

func reportsKey(source string) string { return "quota:{" + source + "}:waiting" }

// wantReport has the next call to Redis tell the live view who waits here.
func (l *Limiter) wantReport() {
	if l.rdb == nil {
		return
	}
	l.mu.Lock()
	waiting := l.high.length+l.low.length > 0
	l.report = waiting || l.shown
	l.shown = waiting
	l.mu.Unlock()
	l.wake()
}

// show tells the live view who waits here, and sets the metrics to what it shows.
func (l *Limiter) show() {
	now := time.Now()
	l.mu.Lock()
	quota := l.quota
	p := ProcessView{l.process, now, l.laneView(&l.high, now), l.laneView(&l.low, now)}
	l.mu.Unlock()
	for lane, v := range map[schemas.Lane]LaneView{schemas.High: p.High, schemas.Low: p.Low} {
		l.metrics.waiting[lane].Set(float64(v.Waiting))
	}
	text, err := json.Marshal(p)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	pipe := l.rdb.Pipeline()
	pipe.HSet(ctx, reportsKey(l.source), l.process, text)
	pipe.Expire(ctx, reportsKey(l.source), reportsTTL)
	if _, err := pipe.Exec(ctx); err != nil {
		return // the limiter's own call says what is wrong
	}
	if v, err := look(ctx, l.rdb, l.source, quota); err == nil {
		l.metrics.show(v)
	}
}

// laneView describes a lane. The caller holds l.mu.
func (l *Limiter) laneView(q *queue, now time.Time) LaneView {
	v := LaneView{Waiting: q.length, Granted: q.used, Refused: q.refused}
	if q.first == nil {
		return v
	}
	v.OldestMS = float64(now.Sub(q.first.since).Microseconds()) / 1000
	switch {
	case l.failed > 0:
		v.Why = "Redis does not answer"
	case l.uncount:
		v.Why = "the day's count can't be written down"
	case l.stopped:
		v.Why = l.quota.reason(whyStopped)
	default:
		v.Why = l.quota.reason(q.why)
	}
	return v
}

// ReadView returns the limiter of a source as it is now, from Redis. Of the quota
// it takes only the names.
func ReadView(ctx context.Context, rdb redis.UniversalClient, source string, quota Quota) (View, error) {
	v, err := look(ctx, rdb, source, quota)
	if err != nil {
		return View{}, err
	}
	reports, err := rdb.HGetAll(ctx, reportsKey(source)).Result()
	if err != nil {
		return View{}, fmt.Errorf("read who waits: %w", err)
	}
	v.Processes = []ProcessView{}
	for _, text := range reports {
		var p ProcessView
		idle := json.Unmarshal([]byte(text), &p) == nil && p.High.Waiting+p.Low.Waiting == 0
		if p.Process != "" && (idle || time.Since(p.At) < reportLife) {
			v.Processes = append(v.Processes, p)
		}
	}
	slices.SortFunc(v.Processes, func(a, b ProcessView) int { return strings.Compare(a.Process, b.Process) })
	return v, nil
}

// look returns what the state in Redis shows.
func look(ctx context.Context, rdb redis.UniversalClient, source string, quota Quota) (View, error) {
	v := View{Source: source, State: "unused", Rate: 1, Policies: []PolicyView{}}
	args := []any{0, 0, "", "", quota.midnights(time.Now())}
	s, err := eval.Once(ctx, rdb, lua.LimiterAcquire, eval.Call{Key: stateKey(source), Args: args}).Int64Slice()
	if err != nil {
		return View{}, fmt.Errorf("look at the limiter: %w", err)
	}
	if len(s) == 0 {
		return v, nil
	}
	if len(s) < 7 {
		return View{}, errUnreadable
	}
	now, birth, until := s[0], s[1], time.UnixMicro(s[4])
	v.Revision, v.Rate = s[2], float64(s[5])/1000
	switch quiet := birth + quota.Quiet().Microseconds(); {
	case s[3] == 1:
		v.State = "stopped"
	case s[4] > now:
		v.State, v.Until = "braked", &until
	case s[6] == 1:
		v.State = "uncounted"
	case now < quiet:
		until = time.UnixMicro(quiet)
		v.State, v.Until = "starting quiet", &until
	case s[5] < 1000:
		v.State = "ramping"
	default:
		v.State = "flowing"
	}
	return v, v.policies(s[7:], quota)
}

var errUnreadable = errors.New("the limiter's state is of another release")

// policies reads the sections of the state.
func (v *View) policies(s []int64, quota Quota) error {
	names := quota.sections()
	for len(s) >= 5 {
		p := PolicyView{Name: "of another release"}
		if len(names) > 0 {
			p.Name, names = names[0], names[1:]
		}
		for _, c := range quota.config.Policies {
			if c.Name == p.Name {
				p.Window, p.Limit = c.Window.String(), c.Limit
			}
		}
		switch s[0] {
		case 1:
			p.Left, p.LeftForLow = s[2]+s[3]+s[4], s[3]+s[4]
		case 2:
			p.Used, p.Left, p.LeftForLow = &s[4], s[2]-s[4], max(0, s[3]-s[4])
		case 3:
			end := time.UnixMicro(s[4])
			if end.Before(time.UnixMicro(0).Add(time.Hour)) {
				break // not counted yet
			}
			p.Used, p.Left, p.ResetsAt = &s[3], s[1]-s[3], &end
			p.LeftForLow = max(0, p.Left-int64(float64(s[2])/1e6*max(0, time.Until(end).Seconds())))
		default:
			return errUnreadable
		}
		v.Policies = append(v.Policies, p)
		s = s[5:]
	}
	return nil
}
