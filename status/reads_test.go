package status

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func TestReads_SumsFacets(t *testing.T) {
	reg := prometheus.NewRegistry()
	reads := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "reads_total"}, []string{"source", "facet", "freshness"})
	ages := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "snapshot_age_at_read_seconds", NativeHistogramBucketFactor: 1.1}, []string{"source", "facet"})
	reg.MustRegister(reads, ages)
	for i := range 100 {
		facet := []string{"a", "b"}[i%2]
		reads.WithLabelValues("one", facet, "FRESH").Inc()
		ages.WithLabelValues("one", facet).Observe(float64(i + 1))
	}
	reads.WithLabelValues("two", "a", "NOT_FOUND").Add(3)
	reads.WithLabelValues("gone", "a", "FRESH").Inc()
	for range 9 {
		ages.WithLabelValues("young", "a").Observe(0)
	}
	ages.WithLabelValues("young", "a").Observe(-1) // a negative age, as it results from a clock difference between hosts
	for i := range 10 {
		ages.WithLabelValues("mixed", "a").Observe(100 * float64(i/6)) // six of the ten reads have the age zero
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sources := []string{"one", "two", "young", "mixed"}
	r := Reads{last: readsSample{time.Now(), sumReads(families, sources)}}
	got := r.recent()
	near := func(got, want time.Duration) bool { return (got - want).Abs() < want/10 } // a quantile may differ by 10 %, because a bucket is about 10 % wide
	if got[0].Fresh != 100 || !near(got[0].AgeP50, 50*time.Second) || !near(got[0].AgeP95, 95*time.Second) {
		t.Errorf("first source: got %+v, want 100 fresh, ages of about 50s and 95s", got[0])
	}
	if got[1] != (ReadStats{Source: "two", NotFound: 3}) || got[2] != (ReadStats{Source: "young"}) {
		t.Errorf("other sources: got %+v, want 3 not found of two, nothing of young", got[1:])
	}
	if got[3].AgeP50 != 0 || !near(got[3].AgeP95, 100*time.Second) {
		t.Errorf("last source: got %+v, want ages of 0 and about 100s", got[3])
	}
}

func TestReads_CoverFiveMinutes(t *testing.T) {
	reg := prometheus.NewRegistry()
	reads := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "reads_total"}, []string{"source", "facet", "freshness"})
	old := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "snapshot_age_at_read_seconds", NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 12}, []string{"source", "facet"})
	reg.MustRegister(reads, old)
	record := func(n int, age time.Duration) {
		for range n {
			reads.WithLabelValues("one", "a", "STALE").Inc()
			old.WithLabelValues("one", "a").Observe(age.Seconds())
		}
	}
	var r Reads
	then := time.Now()
	look := func(at time.Duration) ReadStats {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		r.last = readsSample{then.Add(at), sumReads(families, []string{"one"})}
		r.add(r.last)
		return r.recent()[0]
	}
	look(0)
	record(1000, 10*time.Hour)
	if got := look(time.Minute); got.Stale != 1000 || got.AgeP50 < 9*time.Hour {
		t.Errorf("first minute: got %+v, want 1000 stale, a median age of at least 9h", got)
	}
	for i := range 12 { // these ages cover such a wide range that the buckets become wider
		record(1, time.Second<<i)
	}
	record(100, 10*time.Minute)
	if got := look(5 * time.Minute); got.Stale != 1112 {
		t.Errorf("five minutes: got %+v, want 1112 stale", got)
	}
	got := look(6 * time.Minute)
	if got.Stale != 112 || got.AgeP50 < 5*time.Minute || got.AgeP50 > 20*time.Minute || got.AgeP95 > 2*time.Hour {
		t.Errorf("after the first minute: got %+v, want 112 stale, a median age of 5m to 20m, a 95 %% quantile of at most 2h", got)
	}
	if got := look(20 * time.Minute); got != (ReadStats{Source: "one"}) || len(r.samples) != 2 {
		t.Errorf("without new reads: got %+v, %d samples; want nothing but the source, 2 samples", got, len(r.samples))
	}
}

func TestAgeHistogram_ToleratesMissingBuckets(t *testing.T) {
	a := ageHistogram{buckets: map[ageBucket]int64{}}
	a.add(&dto.Histogram{SampleCount: new(uint64(3)), Schema: new(int32(3)), PositiveSpan: []*dto.BucketSpan{{Offset: new(int32(1)), Length: new(uint32(5))}}, PositiveDelta: []int64{3}})
	if base := math.Exp2(1. / 8); len(a.buckets) != 1 || a.buckets[ageBucket{1, base}] != 3 {
		t.Errorf("buckets: got %+v, want only 3 in bucket 1 of base %v", a, base)
	}
}
