package scheduler

import (
	"fmt"
	"sort"
	"sync/atomic"
	"time"
)

const wholeDay = 24 * time.Hour

// workClock converts between time and work, so that due times follow the rate caps. Work is a
// measure of time that passes faster in hours with a higher rate cap. Each day has 24 hours of
// work. No work passes before the facet's notBefore. If due times are spread evenly over
// work, their number per second is proportional to the rate cap of the hour.
//
// Example: with notBefore 02:00, 250 calls a second until 19:00 and 150 afterwards, a day consists
// of 17 × 250 + 5 × 150 = 5,000 parts. The hour after 10:00 has 250 of these parts, which is 1 h 12
// min of work. The hour after 20:00 has 150 parts, or 43 min of work.
type workClock struct {
	zone      *time.Location // time zone of the setting notBefore
	notBefore int            // the setting notBefore, in minutes after midnight
	spending  BudgetConfig
	hours     *time.Location            // time zone of the rate caps
	days      []atomic.Pointer[workday] // a cache of computed days, indexed by the number of the day modulo the length of the cache
}

// workday is one calendar day of a workClock. start, ready and end are in Unix seconds; work passes
// from ready on.
type workday struct {
	number            int64 // number of the day: days since 1970-01-01 by the calendar of workClock.zone
	start, ready, end int64
	empty             bool      // true if the rate caps allow no calls on this day
	cumulative        []float64 // for each minute of the day, the part (0 to 1) of the day's work that has passed
}

func newWorkClock(c Config, s BudgetConfig) (*workClock, error) {
	zone, err := time.LoadLocation(c.TimeZone)
	if err != nil {
		return nil, err
	}
	hours, err := time.LoadLocation(s.TimeZone)
	if err != nil {
		return nil, err
	}
	days := 2*max(c.MaxInterval, c.Tiers.Cold.Every)/wholeDay + 4
	made := &workClock{zone: zone, notBefore: int(c.NotBefore), spending: s, hours: hours, days: make([]atomic.Pointer[workday], days)}
	if made.build(20_000).empty {
		return nil, fmt.Errorf("notBefore: the rate caps allow no call from %s until midnight; raise the rate caps of these hours", clockText(c.NotBefore))
	}
	return made, nil
}

// day returns the workday that contains a time.
func (c *workClock) day(t time.Time) *workday {
	y, m, d := t.In(c.zone).Date()
	return c.numbered(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / 86400)
}

func (c *workClock) numbered(number int64) *workday {
	at := &c.days[uint64(number)%uint64(len(c.days))] //nolint:gosec // the index is a hash, and a negative number also gives a valid index
	if d := at.Load(); d != nil && d.number == number {
		return d
	}
	d := c.build(number)
	at.Store(d)
	return d
}

// midnight returns the first moment of a calendar day. It is later than 00:00 if the day begins
// with a change to summer time.
func (c *workClock) midnight(number int64) time.Time {
	day := time.Unix(number*86400, 0).UTC()
	t := time.Date(day.Year(), day.Month(), day.Day(), 0, 0, 0, 0, c.zone)
	for range 26 * 60 {
		y, m, d := t.Date()
		if !time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Before(day) {
			break
		}
		t = t.Add(time.Minute)
	}
	return t
}

func (c *workClock) build(number int64) *workday {
	start, end := c.midnight(number), c.midnight(number+1)
	d := &workday{number: number, start: start.Unix(), ready: end.Unix(), end: end.Unix()}
	minutes := max(1, int((d.end-d.start+59)/60))
	d.cumulative = make([]float64, minutes+1)
	open := false
	for i := range minutes {
		t := start.Add(time.Duration(i) * time.Minute)
		if h, m, _ := t.Clock(); !open && h*60+m >= c.notBefore {
			open, d.ready = true, t.Unix()
		}
		weight := 0.0
		if open {
			weight = c.spending.at(t.In(c.hours).Hour())
		}
		d.cumulative[i+1] = d.cumulative[i] + weight
	}
	sum := d.cumulative[minutes]
	d.empty = sum == 0
	for i := range d.cumulative {
		if sum > 0 {
			d.cumulative[i] /= sum
		} else { // the rate caps allow no calls on this day, so the work passes at a constant rate
			d.cumulative[i] = float64(i) / float64(minutes)
		}
	}
	return d
}

// workAt returns the work between 1970-01-01 and the time t.
func (c *workClock) workAt(t time.Time) time.Duration {
	d := c.day(t)
	passed := float64(t.UnixNano()-d.start*1e9) / 60e9
	i := min(max(int(passed), 0), len(d.cumulative)-2)
	part := d.cumulative[i] + (d.cumulative[i+1]-d.cumulative[i])*min(max(passed-float64(i), 0), 1)
	return time.Duration(d.number)*wholeDay + time.Duration(part*float64(wholeDay))
}

// timeAt is the inverse of workAt: it returns the time until which the given work has passed since
// 1970-01-01. It never returns a time at which no work passes, for example before notBefore.
func (c *workClock) timeAt(work time.Duration) time.Time {
	number := int64(work / wholeDay)
	if work < 0 {
		number--
	}
	d := c.numbered(number)
	part := float64(work-time.Duration(number)*wholeDay) / float64(wholeDay)
	i := sort.Search(len(d.cumulative)-1, func(i int) bool { return d.cumulative[i+1] > part })
	i = min(i, len(d.cumulative)-2)
	within := 0.0
	if step := d.cumulative[i+1] - d.cumulative[i]; step > 0 {
		within = min(max((part-d.cumulative[i])/step, 0), 0.999999)
	}
	return time.Unix(d.start, 0).Add(time.Duration((float64(i) + within) * float64(time.Minute)))
}

// notReady reports whether the day's content is not ready at a time. `from` and `to` are the start of
// the day and the ready time.
func (c *workClock) notReady(t time.Time) (from, to time.Time, notReady bool) {
	if c.notBefore == 0 {
		return time.Time{}, time.Time{}, false
	}
	d := c.day(t)
	return time.Unix(d.start, 0), time.Unix(d.ready, 0), t.Unix() < d.ready
}
