package status

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

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/store"
)

const (
	// readsWindow is the period that the statistics cover, and readsSampleInterval the interval
	// between two samples of the read metrics.
	readsWindow, readsSampleInterval = 5 * time.Minute, 15 * time.Second
	// readsTTL is how long the newest sample is reused, because every open page needs the statistics
	// once a second.
	readsTTL = time.Second
)

// ReadStats contains the numbers of reads of a source, by the freshness of the response.
type ReadStats struct {
	Source                           string
	Fresh, Stale, Updating, NotFound int64
	// AgeP50 and AgeP95 are percentiles of the age of the served snapshots; 0: there were no reads.
	AgeP50, AgeP95 time.Duration
}

// Reads computes statistics of the reads that this process has served, from its metrics.
type Reads struct {
	metrics *Metrics
	sources []string

	mu      sync.Mutex
	samples []readsSample // oldest first; the first sample is readsWindow old or, if the process is younger, was taken at its start
	last    readsSample
}

// NewReads returns the statistics of the sources. They cover less than five minutes until Run has
// run for five minutes.
func NewReads(metrics *Metrics, sources []string) *Reads {
	return &Reads{metrics: metrics, sources: sources}
}

// readsSample holds the read counts of each source, from the start of the process up to the time in
// the field `at`.
type readsSample struct {
	at  time.Time
	all []sourceReads
}

// sourceReads holds the read counts of one source, and the ages of its snapshots when they were
// read.
type sourceReads struct {
	counts ReadStats
	ages   ageHistogram
}

// Recent returns the read statistics of the last five minutes for each source, in the order of the
// sources. Metrics that can't be gathered count as 0.
func (r *Reads) Recent() []ReadStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.last.at) >= readsTTL {
		r.last = r.takeSample(now)
	}
	return r.recent()
}

// Run takes a sample every readsSampleInterval until ctx ends.
func (r *Reads) Run(ctx context.Context) error {
	sample := func(context.Context) {
		sample := r.takeSample(time.Now())
		r.mu.Lock()
		defer r.mu.Unlock()
		r.add(sample)
	}
	sample(ctx)
	poll.Every(ctx, readsSampleInterval, sample)
	return nil
}

func (r *Reads) takeSample(now time.Time) readsSample {
	return readsSample{now, sumReads(r.metrics.gather(), r.sources)}
}

func (r *Reads) add(sample readsSample) {
	r.samples = append(r.samples, sample)
	for len(r.samples) > 1 && sample.at.Sub(r.samples[1].at) >= readsWindow {
		r.samples = r.samples[1:]
	}
}

// recent returns the read statistics of each source between the oldest and the newest sample.
func (r *Reads) recent() []ReadStats {
	all := make([]ReadStats, len(r.last.all))
	for i, t := range r.last.all {
		if len(r.samples) > 0 {
			t = t.since(r.samples[0].all[i])
		}
		all[i] = t.counts
		all[i].AgeP50, all[i].AgeP95 = t.ages.quantile(0.5), t.ages.quantile(0.95)
	}
	return all
}

// since returns the reads after an earlier sample: each count minus the count in that sample.
func (t sourceReads) since(before sourceReads) sourceReads {
	t.counts.Fresh -= before.counts.Fresh
	t.counts.Stale -= before.counts.Stale
	t.counts.Updating -= before.counts.Updating
	t.counts.NotFound -= before.counts.NotFound
	t.ages = t.ages.since(before.ages)
	return t
}

// sumReads returns the read metrics of each source, summed over its facets.
func sumReads(families []*dto.MetricFamily, sources []string) []sourceReads {
	all := make([]sourceReads, len(sources))
	for i, name := range sources {
		all[i] = sourceReads{counts: ReadStats{Source: name}, ages: ageHistogram{buckets: map[ageBucket]int64{}}}
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := labelsOf(m)
			i := slices.Index(sources, labels["source"])
			if i < 0 {
				continue
			}
			switch family.GetName() {
			case readsMetric:
				if n := countOf(&all[i].counts, store.Freshness(labels["freshness"])); n != nil {
					*n += int64(m.GetCounter().GetValue())
				}
			case ageMetric:
				all[i].ages.add(m.GetHistogram())
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

func countOf(r *ReadStats, f store.Freshness) *int64 {
	switch f {
	case store.Fresh:
		return &r.Fresh
	case store.Stale:
		return &r.Stale
	case store.Updating:
		return &r.Updating
	case store.NotFound:
		return &r.NotFound
	}
	return nil
}

// ageHistogram is a histogram of the ages that snapshots had when they were read.
type ageHistogram struct {
	total   int64
	buckets map[ageBucket]int64 // number of served snapshots by their age, without ages of zero, which only the field total counts
}

// ageBucket holds ages in the interval (above, upTo], in seconds.
type ageBucket struct{ above, upTo float64 }

// add adds the native buckets of a Prometheus histogram. It does not use classic buckets: a classic
// bucket may reach from ten minutes to half an hour, but native buckets are about 10 % wide.
// Histograms with different bucket widths can be added.
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

// since returns the ages that were added after an earlier histogram was read: each bucket's count
// minus its earlier count. Prometheus may have made the buckets wider since then. The count of an
// old bucket is then subtracted from the wider bucket that contains it.
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

// quantile returns the q-quantile of the ages, or zero without reads. Reads that no bucket counts
// have the age zero, or a negative age because the clocks of hosts differ.
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
