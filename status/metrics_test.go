package status

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func names(t *testing.T, from prometheus.Gatherer) []string {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := []string{}
	for _, f := range families {
		all = append(all, f.GetName())
	}
	return all
}

func TestMetrics_KeepOnlyThoseOfStatisticsTwice(t *testing.T) {
	all := prometheus.NewRegistry()
	m := NewMetrics(prometheus.WrapRegistererWithPrefix("freshet_", all))
	labelled := prometheus.WrapRegistererWith(prometheus.Labels{"source": "nexon"}, m)
	reads := prometheus.NewCounter(prometheus.CounterOpts{Name: readsMetric})
	labelled.MustRegister(reads, prometheus.NewCounter(prometheus.CounterOpts{Name: "other_reads_total"}), prometheus.NewCounter(prometheus.CounterOpts{Name: "settled_total"}))
	if got, want := names(t, all), []string{"freshet_other_reads_total", "freshet_reads_total", "freshet_settled_total"}; !slices.Equal(got, want) {
		t.Errorf("all metrics: got %q, want %q", got, want)
	}
	if got, want := names(t, m.statistics), []string{readsMetric}; !slices.Equal(got, want) {
		t.Errorf("metrics for statistics: got %q, want %q", got, want)
	}
	labelled.Unregister(reads)
	if got, want := names(t, all), []string{"freshet_other_reads_total", "freshet_settled_total"}; !slices.Equal(got, want) {
		t.Errorf("all metrics without the reads: got %q, want %q", got, want)
	}
	if got := names(t, m.statistics); len(got) != 0 {
		t.Errorf("metrics for statistics without the reads: got %q, want none", got)
	}
}

func TestMetrics_RegisterReportsADuplicate(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	m.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: readsMetric}))
	if err := m.Register(prometheus.NewCounter(prometheus.CounterOpts{Name: readsMetric})); err == nil {
		t.Error("second registration: got no error, want one")
	}
}
