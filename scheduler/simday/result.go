package main

import (
	"fmt"
	"math"
	"slices"
)

// result contains the measured values of the last simulated day.
type result struct {
	name                    string
	n                       int
	calls                   float64
	from                    int32
	recording               bool
	reads, outdated         float64
	outdatedSeconds         float64 // sum over the outdated reads: the seconds since the content became outdated
	high, low               float64
	onTime                  float64
	maxOverdue              int32 // longest delay of a refresh after its due time, in seconds
	minutes                 [1440]float64
	hourReads               [24]float64
	hourOutdated            [24]float64
	oldestCheck, budgetUsed float64
}

func newResult(name string, n int, calls float64) *result {
	return &result{name: name, n: n, calls: calls}
}

func (r *result) begin(second int32) {
	*r = result{name: r.name, n: r.n, calls: r.calls, from: second, recording: true}
}

func (r *result) recordRead(second int32, e *simEntity) {
	hour := second % 86400 / 3600
	r.reads++
	r.hourReads[hour]++
	if second >= e.outdated {
		r.outdated++
		r.hourOutdated[hour]++
		r.outdatedSeconds += float64(second - e.outdated)
	}
}

// recordRefresh counts a refresh. A refresh is on time if it happens at most ten minutes after the
// due time. For long intervals the limit is a twentieth of the time from the last check to the due
// time.
func (r *result) recordRefresh(second int32, a request, e *simEntity) {
	r.low++
	late := second - a.due
	if late <= max(600, (a.due-e.checked)/20) {
		r.onTime++
	}
	r.maxOverdue = max(r.maxOverdue, late)
	if r.recording {
		r.minutes[second%86400/60]++
	}
}

func (r *result) end(g *simulation, second int32) {
	for i := g.queue.head; i != none; i = g.all[i].next {
		r.maxOverdue = max(r.maxOverdue, second-g.all[i].due)
	}
	for i := range g.all {
		r.oldestCheck = math.Max(r.oldestCheck, float64(second-g.all[i].checked))
	}
	r.budgetUsed = (r.high + r.low) / (dailyCalls * g.scale)
}

// peak returns the calls of the busiest minute divided by the mean of its period. The day has two
// periods with one rate cap each: from 02:00 and from 19:00. The first and last ten minutes of a
// period are not counted.
func (r *result) peak() float64 {
	peak := 0.0
	for _, span := range [][2]int{{2*60 + 10, 19*60 - 10}, {19*60 + 10, 24*60 - 10}} {
		part := r.minutes[span[0]:span[1]]
		sum := 0.0
		for _, v := range part {
			sum += v
		}
		peak = math.Max(peak, slices.Max(part)*float64(len(part))/math.Max(sum, 1))
	}
	return peak
}

const (
	header = "outdated reads | mean time outdated | mean over all reads | refreshed on time | longest overdue | oldest check | peak minute / mean | calls for readers | prefetch calls | budget used"
	rule   = "|---|---|---|---|---|---|---|---|---|---|---|"
)

func (r *result) row() string {
	return fmt.Sprintf("%.2f %% | %.1f h | %.0f min | %.1f %% | %.1f h | %.1f d | %.2f | %.2f M | %.2f M | %.1f %%",
		100*r.outdated/r.reads, r.outdatedSeconds/math.Max(r.outdated, 1)/3600, r.outdatedSeconds/r.reads/60, 100*r.onTime/r.low, float64(r.maxOverdue)/3600,
		r.oldestCheck/86400, r.peak(), r.high/1e6*fullEntities/float64(r.n), r.low/1e6*fullEntities/float64(r.n), 100*r.budgetUsed)
}
