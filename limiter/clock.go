package limiter

import (
	"strings"
	"time"
)

// dayMargin is the time before and after midnight in which a call counts in both days, because
// the upstream's clock differs from that of Redis.
const dayMargin = 10 * time.Second

// clock relates the local monotonic clock to that of Redis.
type clock struct {
	before, then time.Time // the local times directly before and after the read of Redis' clock
	redis        int64     // the time that Redis' clock showed, in µs
}

const (
	clockSlack = time.Millisecond // a clock difference up to this is ignored
	clockDrift = 2000             // two clocks drift by at most 1/clockDrift
	clockLife  = 10 * time.Second // a reading older than this is replaced even by a less precise reading
)

// read records that Redis' clock showed the time `redis` (in µs) at some moment between the local
// times `before` and `then`. It returns by how much Redis' clock was set forward since the last call
// of `read`; 0 means that it was not set forward, as far as `read` can detect.
func (c *clock) read(before, then time.Time, redis int64) time.Duration {
	next := clock{before, then, redis}
	if c.redis == 0 || redis < c.redis { // no step forward: this is the first reading, or Redis' clock was set back, which the script itself detects
		*c = next
		return 0
	}
	elapsed, longest, shortest := micros(redis-c.redis), then.Sub(c.before), before.Sub(c.then)
	ahead := elapsed - longest - clockSlack - longest/clockDrift
	// If `behind` is positive, Redis' clock was set back slightly, which is harmless. But the new
	// reading must be kept, or a later step forward to the old time would not be detected.
	behind := shortest - elapsed - clockSlack - shortest/clockDrift
	if ahead > 0 || behind > 0 || then.Sub(before) <= 2*c.then.Sub(c.before) || then.Sub(c.then) > clockLife {
		*c = next
	}
	return max(0, ahead)
}

// at returns the time of Redis' clock in µs at the local time t. The result can be slightly too
// early, never too late.
func (c *clock) at(t time.Time) int64 { return c.redis + t.Sub(c.then).Microseconds() }

// midnights returns the three midnights nearest to `now` in the day policy's time zone, encoded
// for the script. Three are needed because Redis' clock and the local clock can differ.
func (q Quota) midnights(now time.Time) string {
	if q.day == nil {
		return ""
	}
	year, month, day := now.In(q.zone).Date()
	if now.In(q.zone).Hour() >= 12 {
		day++
	}
	var out strings.Builder
	for d := day - 1; d <= day+1; d++ {
		digits(&out, time.Date(year, month, d, 0, 0, 0, 0, q.zone).UnixMicro())
	}
	return out.String()
}

// dayEnd returns the end of the day in which the script counts a call made at `now`. Until
// dayMargin after midnight the script still counts in the old day, so dayEnd returns the midnight
// that has just passed.
func (q Quota) dayEnd(now time.Time) time.Time {
	year, month, day := now.Add(-dayMargin).In(q.zone).Date()
	return time.Date(year, month, day+1, 0, 0, 0, 0, q.zone)
}
