package main

import (
	"cmp"
	"context"
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

const (
	// readsWindow is how far back the reads lie that the console shows, and readsEvery how often
	// a look at them is kept for that.
	readsWindow, readsSampleInterval = 5 * time.Minute, 15 * time.Second
)

// readsHistory has the looks at the metrics of reads, the oldest first: the first is as old as
// readsOver, or of the start. It takes about a millisecond to gather all metrics, and each page
// that is open asks every second, so that the last look is remembered besides.
type readsHistory struct {
	mu   sync.Mutex
	kept []readsSample
	last readsSample
}

// readsSample is what readers were told from the start of the process to a time.
type readsSample struct {
	at  time.Time
	all []sourceReads
}

// sourceReads is that of one source. Its ages are in told.
type sourceReads struct {
	counts console.ReadStats
	told   ageHistogram
}

// Reads returns what the query service told its readers in the last five minutes, for each
// source, in their order. What can't be gathered is as not read.
func (o *overview) Reads() []console.ReadStats {
	r := &o.reads
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.last.at) >= healthCacheTTL {
		r.last = o.lookAtReads(now)
	}
	return r.shown()
}

// sampleReads keeps looks, also while nobody shows them, until ctx ends.
func (o *overview) sampleReads(ctx context.Context) error {
	tick := time.NewTicker(readsSampleInterval)
	defer tick.Stop()
	for {
		look := o.lookAtReads(time.Now())
		o.reads.mu.Lock()
		o.reads.keep(look)
		o.reads.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (o *overview) lookAtReads(now time.Time) readsSample {
	found, err := o.registry.Gather() // with an error it is all that could be
	if err != nil {
		o.log.Debug("not every metric could be gathered", "err", err)
	}
	return readsSample{now, sumReads(found, metricPrefix(o.config.Metrics.Namespace), slices.Sorted(maps.Keys(o.config.Sources)))}
}

func (r *readsHistory) keep(look readsSample) {
	r.kept = append(r.kept, look)
	for len(r.kept) > 1 && look.at.Sub(r.kept[1].at) >= readsWindow {
		r.kept = r.kept[1:]
	}
}

// shown returns what the last look has more than the first that is kept.
func (r *readsHistory) shown() []console.ReadStats {
	all := make([]console.ReadStats, len(r.last.all))
	for i, t := range r.last.all {
		if len(r.kept) > 0 {
			t = t.since(r.kept[0].all[i])
		}
		all[i] = t.counts
		all[i].AgeP50, all[i].AgeP95 = t.told.quantile(0.5), t.told.quantile(0.95)
	}
	return all
}

// since returns what came to it since before.
func (t sourceReads) since(before sourceReads) sourceReads {
	t.counts.Fresh -= before.counts.Fresh
	t.counts.Stale -= before.counts.Stale
	t.counts.Updating -= before.counts.Updating
	t.counts.NotFound -= before.counts.NotFound
	t.told = t.told.since(before.told)
	return t
}

// sumReads sums up the facets of each source.
func sumReads(families []*dto.MetricFamily, prefix string, sources []string) []sourceReads {
	all := make([]sourceReads, len(sources))
	for i, name := range sources {
		all[i] = sourceReads{counts: console.ReadStats{Source: name}, told: ageHistogram{buckets: map[ageBucket]int64{}}}
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
				if n := countOf(&all[i].counts, query.Freshness(labels["freshness"])); n != nil {
					*n += int64(m.GetCounter().GetValue())
				}
			case prefix + "snapshot_age_at_read_seconds":
				all[i].told.add(m.GetHistogram())
			}
		}
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

func countOf(r *console.ReadStats, f query.Freshness) *int64 {
	switch f {
	case query.Fresh:
		return &r.Fresh
	case query.Stale:
		return &r.Stale
	case query.Updating:
		return &r.Updating
	case query.NotFound:
		return &r.NotFound
	}
	return nil
}

// ageHistogram are those of some snapshots as they were read, in buckets.
type ageHistogram struct {
	total   int64
	buckets map[ageBucket]int64 // but those of no age
}

// ageBucket is of ages above and up to a bound, in seconds.
type ageBucket struct{ above, upTo float64 }

// add adds the native buckets of a histogram: those of the ages differ by a tenth, while a
// classic one may reach from ten minutes to half an hour. Two histograms may have come down
// to buckets of two sizes; each is then taken as it is.
func (a *ageHistogram) add(h *dto.Histogram) {
	a.total += int64(h.GetSampleCount()) //nolint:gosec // a count of reads
	base := math.Exp2(math.Exp2(-float64(h.GetSchema())))
	index, count, deltas := int32(0), int64(0), h.GetPositiveDelta()
	for _, span := range h.GetPositiveSpan() {
		index += span.GetOffset()
		for range min(int(span.GetLength()), len(deltas)) {
			count += deltas[0]
			deltas = deltas[1:]
			a.buckets[ageBucket{math.Pow(base, float64(index-1)), math.Pow(base, float64(index))}] += count
			index++
		}
	}
}

// since returns the ages without those of before. Where buckets have come to be larger since,
// they have them within.
func (a ageHistogram) since(before ageHistogram) ageHistogram {
	left := ageHistogram{a.total - before.total, maps.Clone(a.buckets)}
	for b, n := range before.buckets {
		if _, same := left.buckets[b]; same {
			left.buckets[b] -= n
			continue
		}
		for wide := range left.buckets {
			if middle := math.Sqrt(b.above * b.upTo); wide.above < middle && middle <= wide.upTo {
				left.buckets[wide] -= n
				break
			}
		}
	}
	maps.DeleteFunc(left.buckets, func(_ ageBucket, n int64) bool { return n <= 0 })
	return left
}

// quantile returns an age that so many of the snapshots were not older than; zero if there
// are none. What is in no bucket was of no age, by the clocks of two hosts.
func (a ageHistogram) quantile(q float64) time.Duration {
	young := float64(a.total)
	for _, n := range a.buckets {
		young -= float64(n)
	}
	rank := q*float64(a.total) - young
	for _, b := range slices.SortedFunc(maps.Keys(a.buckets), func(x, y ageBucket) int { return cmp.Compare(x.upTo, y.upTo) }) {
		n := float64(a.buckets[b])
		if 0 < rank && rank <= n {
			return time.Duration((b.above + (b.upTo-b.above)*rank/n) * float64(time.Second))
		}
		rank -= n
	}
	return 0
}
