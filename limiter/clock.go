package limiter

import (
	"time"
)

// dayMargin is the time before and after midnight in which a call counts in both days, because
// the upstream's clock differs from that of Redis.
const dayMargin = 10 * time.Second

// clock relates the local monotonic clock to that of Redis.
type clock struct {
	before, then time.Time // the local times directly before and after the read of Redis' clock
	redis        int64     // the time that Redis' clock showed, in µs

	birth  int64     // when the state of the last reply began, by Redis' clock in µs
	called time.Time // the local time directly before the call to Redis that got the last reply
}

const (
	clockSlack = time.Millisecond // a clock difference up to this is ignored
	clockDrift = 2000             // two clocks drift by at most 1/clockDrift
	clockLife  = 10 * time.Second // a reading older than this is replaced even by a less precise reading

	unusedBirth = 1 // birth of the state of a source that was never called (UNUSED_BIRTH of the script)
)

// read records that Redis' clock showed the time `redis` (in µs) at some moment between the local
// times `before` and `then`, and that the state in Redis began when the clock showed `birth`. It
// returns by how much Redis' clock was set forward since the last call of `read`; 0 means that it was
// not set forward, as far as `read` can detect.
func (c *clock) read(before, then time.Time, redis, birth int64) time.Duration {
	next := clock{before, then, redis, birth, before}
	if ahead := c.aheadSinceBirth(then, redis, birth); ahead > 0 {
		*c = next
		return ahead
	}
	c.birth, c.called = birth, before
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

// aheadSinceBirth returns by how much Redis' clock was set forward since the state in Redis began. A
// comparison with the last reading does not show this step if the clock was set back by more before the
// state began. If the last reply was about another state, the present state began after the call that got
// that reply. So it cannot be older than the time since that call.
//
// Example: a reply at 12:00:00 shows 12:00:00. The clock is set back by 12 s, another process calls Redis
// at 12:00:01, and the state is lost: birth 11:59:49. The clock is set forward by 7 s. A reply at 12:00:02
// shows 11:59:57, which is earlier than the last reading, but 8 s after the birth: the clock was set
// forward by at least 6 s.
func (c *clock) aheadSinceBirth(then time.Time, redis, birth int64) time.Duration {
	if c.redis == 0 || birth == c.birth || birth <= unusedBirth {
		return 0
	}
	longest := then.Sub(c.called)
	return max(0, micros(redis-birth)-longest-clockSlack-longest/clockDrift)
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
	var three []int64
	for d := day - 1; d <= day+1; d++ {
		three = append(three, time.Date(year, month, d, 0, 0, 0, 0, q.zone).UnixMicro())
	}
	return encodeJSON(three)
}

// dayEnd returns the end of the day in which the script counts a call made at `now`. Until
// dayMargin after midnight the script still counts in the old day, so dayEnd returns the midnight
// that has just passed.
func (q Quota) dayEnd(now time.Time) time.Time {
	year, month, day := now.Add(-dayMargin).In(q.zone).Date()
	return time.Date(year, month, day+1, 0, 0, 0, 0, q.zone)
}
