package main

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/freshet/freshet/console"
	"github.com/freshet/freshet/query"
)

// readsRead remembers the last look at the metrics of reads: gathering all of them takes
// about a millisecond, and each page that is open asks every second.
type readsRead struct {
	mu  sync.Mutex
	at  time.Time
	all []console.Reads
}

// Reads returns what the query service has counted since the process started, for each
// source, in their order. What can't be gathered is as not read.
func (o *overview) Reads() []console.Reads {
	r := &o.reads
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) >= healthLife {
		found, err := o.registry.Gather() // with an error it is all that could be
		if err != nil {
			o.log.Debug("not every metric could be gathered", "err", err)
		}
		r.at, r.all = time.Now(), readsSummed(found, metricPrefix(o.config.Metrics.Namespace), slices.Sorted(maps.Keys(o.config.Sources)))
	}
	return slices.Clone(r.all)
}

// readsSummed sums up the facets of each source.
func readsSummed(families []*dto.MetricFamily, prefix string, sources []string) []console.Reads {
	all := make([]console.Reads, len(sources))
	old := make([]ages, len(sources))
	for i, name := range sources {
		all[i].Source = name
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := labelsOf(m)
			i := slices.Index(sources, labels["source"])
			if i < 0 {
				continue
			}
			switch family.GetName() {
			case prefix + "reads_total":
				if n := countOf(&all[i], query.Freshness(labels["freshness"])); n != nil {
					*n += int64(m.GetCounter().GetValue())
				}
			case prefix + "snapshot_age_at_read_seconds":
				old[i].add(m.GetHistogram())
			}
		}
	}
	for i := range all {
		all[i].AgeHalf, all[i].AgeMost = old[i].quantile(0.5), old[i].quantile(0.95)
	}
	return all
}

func labelsOf(m *dto.Metric) prometheus.Labels {
	labels := prometheus.Labels{}
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

func countOf(r *console.Reads, f query.Freshness) *int64 {
	switch f {
	case query.Fresh:
		return &r.Fresh
	case query.Stale:
		return &r.Stale
	case query.Updating:
		return &r.Updating
	case query.NotFound:
		return &r.Absent
	}
	return nil
}

// ages are those of some snapshots as they were read, in buckets.
type ages struct {
	total   uint64
	buckets []ageBucket // but those of no age
}

// ageBucket counts ages above and up to a bound, in seconds.
type ageBucket struct {
	above, upTo float64
	count       int64
}

// add adds the native buckets of a histogram: those of the ages differ by a tenth, while a
// classic one may reach from ten minutes to half an hour. Two histograms may have come down
// to buckets of two sizes; each is then taken as it is.
func (a *ages) add(h *dto.Histogram) {
	a.total += h.GetSampleCount()
	base := math.Exp2(math.Exp2(-float64(h.GetSchema())))
	index, count, deltas := int32(0), int64(0), h.GetPositiveDelta()
	for _, span := range h.GetPositiveSpan() {
		index += span.GetOffset()
		for range min(int(span.GetLength()), len(deltas)) {
			count += deltas[0]
			deltas = deltas[1:]
			a.buckets = append(a.buckets, ageBucket{math.Pow(base, float64(index-1)), math.Pow(base, float64(index)), count})
			index++
		}
	}
}

// quantile returns an age that so many of the snapshots were not older than; zero if there
// are none. What is in no bucket was of no age, by the clocks of two hosts.
func (a *ages) quantile(q float64) time.Duration {
	slices.SortFunc(a.buckets, func(x, y ageBucket) int { return cmp.Compare(x.upTo, y.upTo) })
	young := float64(a.total)
	for _, b := range a.buckets {
		young -= float64(b.count)
	}
	rank := q*float64(a.total) - young
	for _, b := range a.buckets {
		n := float64(b.count)
		if 0 < rank && rank <= n {
			return time.Duration((b.above + (b.upTo-b.above)*rank/n) * float64(time.Second))
		}
		rank -= n
	}
	return 0
}
