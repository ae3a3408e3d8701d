package limiter

import (
	"strings"
	"time"
)

// dayMargin is how long around midnight a call counts in both days, because the
// upstream's clock is not Redis'.
const dayMargin = 10 * time.Second

// clock relates the local monotonic clock to Redis' clock.
type clock struct {
	before, then time.Time // between these moments
	redis        int64     // Redis' clock showed this, in us
}

const (
	clockSlack = time.Millisecond // that two clocks may differ by chance
	clockDrift = 2000             // and 1/clockDrift of the time between two readings
	clockLife  = 10 * time.Second // a reading is replaced by a worse one then
)

// read takes a reading. It reports by how much Redis' clock was set forward since
// the one before; 0 if time alone explains the difference.
func (c *clock) read(before, then time.Time, redis int64) time.Duration {
	next := clock{before, then, redis}
	if c.redis == 0 || redis < c.redis { // set back: the script sees that itself
		*c = next
		return 0
	}
	passed, most, least := micros(redis-c.redis), then.Sub(c.before), before.Sub(c.then)
	ahead := passed - most - clockSlack - most/clockDrift
	// One that was set back, by less than has passed, is no danger; but measured by
	// the reading of before, a step forward again would not be seen.
	behind := least - passed - clockSlack - least/clockDrift
	if ahead > 0 || behind > 0 || then.Sub(before) <= 2*c.then.Sub(c.before) || then.Sub(c.then) > clockLife {
		*c = next
	}
	return max(0, ahead)
}

// at returns what Redis' clock showed at a local moment, or a little less.
func (c *clock) at(t time.Time) int64 { return c.redis + t.Sub(c.then).Microseconds() }

// midnights returns three around now in the day policy's zone, as the script
// takes them: the clocks of Redis and of this machine need not agree.
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

// dayEnd returns the end of the day in which the script counts a call.
func (q Quota) dayEnd(now time.Time) time.Time {
	year, month, day := now.Add(-dayMargin).In(q.zone).Date()
	return time.Date(year, month, day+1, 0, 0, 0, 0, q.zone)
}

// encodeRateCap returns LOW's interval before and from the full hour next to now.
func (q Quota) encodeRateCap(now time.Time) string {
	if len(q.config.LowRateCaps) == 0 {
		return ""
	}
	hour := now.In(q.zone).Add(30 * time.Minute)
	hour = hour.Add(-time.Duration(hour.Minute())*time.Minute - time.Duration(hour.Second())*time.Second - time.Duration(hour.Nanosecond()))
	before, from := q.rateCapInterval(hour.Add(-time.Minute)), q.rateCapInterval(hour)
	if before == 0 && from == 0 {
		return ""
	}
	var out strings.Builder
	digits(&out, before.Microseconds(), from.Microseconds(), hour.UnixMicro())
	return out.String()
}

// neverInterval is the interval of a rate cap of 0: longer than any state lasts.
const neverInterval = 100 * 365 * 24 * time.Hour

func (q Quota) rateCapInterval(t time.Time) time.Duration {
	for _, c := range q.config.LowRateCaps {
		if c.Applies(t.In(q.zone).Hour()) {
			if c.Rate == 0 {
				return neverInterval
			}
			return time.Duration(float64(time.Second) / float64(c.Rate)).Round(time.Microsecond)
		}
	}
	return 0
}
