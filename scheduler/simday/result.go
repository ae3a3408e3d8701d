package main

import (
	"fmt"
	"math"
	"slices"
)

// result is what was seen of one day.
type result struct {
	name           string
	n              int
	calls          float64
	from           int32
	on             bool
	reads, old     float64
	oldFor         float64 // seconds, of the reads that saw what was outdated
	high, low      float64
	onTime         float64
	longest        int32 // overdue
	minutes        [1440]float64
	hourReads      [24]float64
	hourOld        [24]float64
	oldest, budget float64
}

func newResult(name string, n int, calls float64) *result {
	return &result{name: name, n: n, calls: calls}
}

func (r *result) begin(second int32) {
	*r = result{name: r.name, n: r.n, calls: r.calls, from: second, on: true}
}

func (r *result) read(second int32, e *one) {
	hour := second % 86400 / 3600
	r.reads++
	r.hourReads[hour]++
	if second >= e.outdated {
		r.old++
		r.hourOld[hour]++
		r.oldFor += float64(second - e.outdated)
	}
}

// refreshed counts who was asked for; on time is who waited no longer for it, after its
// time, than ten minutes or a twentieth of the time that it had since its last check.
func (r *result) refreshed(second int32, a asked, e *one) {
	r.low++
	late := second - a.due
	if late <= max(600, (a.due-e.checked)/20) {
		r.onTime++
	}
	r.longest = max(r.longest, late)
	if r.on {
		r.minutes[second%86400/60]++
	}
}

func (r *result) end(g *game, second int32) {
	for i := g.first; i != none; i = g.all[i].next {
		r.longest = max(r.longest, second-g.all[i].due)
	}
	for i := range g.all {
		r.oldest = math.Max(r.oldest, float64(second-g.all[i].checked))
	}
	r.budget = (r.high + r.low) / (perDay * g.scale)
}

// peak returns the busiest minute beside the mean, of the hours under one rate cap,
// without what is near their edges.
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
	header = "reads that saw outdated content | mean age of it | all reads' mean age of outdatedness | refreshed on time | longest overdue | oldest check | peak minute to mean | readers' calls | prefetch's calls | budget used"
	rule   = "|---|---|---|---|---|---|---|---|---|---|---|"
)

func (r *result) row() string {
	return fmt.Sprintf("%.2f %% | %.1f h | %.0f min | %.1f %% | %.1f h | %.1f d | %.2f | %.2f M | %.2f M | %.1f %%",
		100*r.old/r.reads, r.oldFor/math.Max(r.old, 1)/3600, r.oldFor/r.reads/60, 100*r.onTime/r.low, float64(r.longest)/3600,
		r.oldest/86400, r.peak(), r.high/1e6*full/float64(r.n), r.low/1e6*full/float64(r.n), 100*r.budget)
}
