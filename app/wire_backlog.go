package app

import (
	"sort"
	"time"
)

const (
	// backlogPointInterval is the minimum time between two points of a backlog. Points are kept for
	// backlogHistory: the lock of an older request has expired, so no estimate is needed for it.
	backlogPointInterval = 20 * time.Millisecond
	backlogHistory       = 45 * time.Second
)

// backlog counts the HIGH records of a source that were published before a given record. Kafka's offsets
// are sampled every 5 s; the requests that this process publishes are added at once. Offsets here are sums
// over all partitions.
type backlog struct {
	sampled   time.Time // when the offsets were sampled; zero: never
	committed float64   // committed offset at the time `sampled`
	// points are end offsets by time, oldest first.
	points []backlogPoint
	// idle is the estimated part of the time since `sampled` in which no record waited.
	idle time.Duration
}

type backlogPoint struct {
	at  time.Time
	end float64
}

// sample sets the offsets that were sampled at the time `at`. It keeps the records that this process has
// published after `at`.
func (b *backlog) sample(at time.Time, committed, end int64) {
	if !at.After(b.sampled) {
		return
	}
	estimated := b.endAt(at)
	first := sort.Search(len(b.points), func(i int) bool { return b.points[i].at.After(at) })
	later := b.points[first:]
	points := append(make([]backlogPoint, 0, len(b.points)+1), b.points[:first]...)
	points = append(points, backlogPoint{at, float64(end)})
	for _, p := range later {
		points = append(points, backlogPoint{p.at, float64(end) + p.end - estimated})
	}
	for len(points) > 1 && at.Sub(points[0].at) > backlogHistory {
		points = points[1:]
	}
	b.sampled, b.committed, b.points, b.idle = at, float64(committed), points, 0
}

// publish adds n records that this process publishes now. `busy` is the estimated time from the last
// sample until the workers have processed all earlier records.
func (b *backlog) publish(now time.Time, n int, busy time.Duration) {
	if b.sampled.IsZero() {
		return
	}
	b.idle = max(b.idle, now.Sub(b.sampled)-busy)
	last := len(b.points) - 1
	if last > 0 && now.Sub(b.points[last-1].at) < backlogPointInterval && b.points[last-1].at.After(b.sampled) {
		b.points[last].end += float64(n)
		return
	}
	end := b.points[last].end
	b.points = append(b.points, backlogPoint{now, end}, backlogPoint{now, end + float64(n)})
}

// endAt returns the end offset at the time `at`. It interpolates linearly between two points.
func (b *backlog) endAt(at time.Time) float64 {
	next := sort.Search(len(b.points), func(i int) bool { return b.points[i].at.After(at) })
	switch {
	case len(b.points) == 0:
		return 0
	case next == 0:
		return b.points[0].end
	case next == len(b.points):
		return b.points[next-1].end
	}
	from, to := b.points[next-1], b.points[next]
	part := float64(at.Sub(from.at)) / float64(to.at.Sub(from.at))
	return from.end + part*(to.end-from.end)
}

// before returns the number of records that were published before the time `at` and not yet committed
// at the last sample. `served` is how long workers have had records to process since that sample.
func (b *backlog) before(at, now time.Time) (records float64, served time.Duration) {
	return max(0, b.endAt(at)-b.committed), max(0, now.Sub(b.sampled)-b.idle)
}
