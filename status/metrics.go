package status

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// The metrics from which this package computes statistics, without the prefix of their names.
const (
	callsMetric        = "upstream_calls_total"
	readsMetric        = "reads_total"
	ageMetric          = "snapshot_age_at_read_seconds"
	prefetchMetric     = "prefetch_requested_total"
	deliveriesMetric   = "hooks_total"
	lastDeliveryMetric = "hook_last_timestamp_seconds"
)

var statisticsMetrics = []string{callsMetric, readsMetric, ageMetric, prefetchMetric, deliveriesMetric, lastDeliveryMetric}

// Metrics registers the metrics of a process. The metrics from which this package computes
// statistics are also registered in a second registry, because statistics are computed every few
// seconds, and gathering all metrics of a process takes more than a millisecond.
type Metrics struct {
	all        prometheus.Registerer
	statistics *prometheus.Registry
}

// NewMetrics returns a Registerer that registers in `all`, which can add a prefix to the names.
func NewMetrics(all prometheus.Registerer) *Metrics {
	return &Metrics{all, prometheus.NewRegistry()}
}

// Register implements prometheus.Registerer.
func (m *Metrics) Register(c prometheus.Collector) error {
	err := m.all.Register(c)
	if err == nil && forStatistics(c) {
		err = m.statistics.Register(c)
	}
	return err
}

// MustRegister implements prometheus.Registerer.
func (m *Metrics) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := m.Register(c); err != nil {
			panic(err)
		}
	}
}

// Unregister implements prometheus.Registerer.
func (m *Metrics) Unregister(c prometheus.Collector) bool {
	m.statistics.Unregister(c)
	return m.all.Unregister(c)
}

// gather returns the metrics for statistics. Their names have no prefix. A metric that can't be
// gathered is left out.
func (m *Metrics) gather() []*dto.MetricFamily {
	found, _ := m.statistics.Gather()
	return found
}

// forStatistics reports whether a collector has one of the metrics for statistics.
func forStatistics(c prometheus.Collector) bool {
	described := make(chan *prometheus.Desc)
	go func() {
		defer close(described)
		c.Describe(described)
	}()
	found := false
	for d := range described {
		text := d.String() // the only way to read the name
		found = found || slices.ContainsFunc(statisticsMetrics, func(name string) bool {
			return strings.Contains(text, `fqName: "`+name+`"`)
		})
	}
	return found
}
