package main

import (
	"slices"
	"testing"
)

const document = "# Metrics\n\n## One\n\nAll have the labels `source` and `priority`.\n\n" +
	"| metric | kind | more labels | what it is |\n|---|---|---|---|\n" +
	"| `took_seconds` | histogram | | how long |\n" +
	"| `asked_total` | counter | `end` | how often: `well` |\n\n" +
	"## Two\n\n| metric | kind | labels | what it is |\n|---|---|---|---|\n" +
	"| `state` | gauge | | where |\n| `pool_…` | | | connections |\n| `go_…`, `process_…` | | | the runtime |\n"

func TestMetricsPage_IsComparedWithTheSeries(t *testing.T) {
	of := func(name string, labels ...string) map[string]string {
		all := map[string]string{"__name__": name, "job": "freshet", "instance": "one", "role": "worker"}
		for _, l := range labels {
			all[l] = "x"
		}
		return all
	}
	agreeing := []map[string]string{
		of("freshet_took_seconds_bucket", "source", "priority", "le"), of("freshet_took_seconds_sum", "source", "priority"),
		of("freshet_asked_total", "source", "priority", "end"), of("freshet_state"), of("freshet_pool_size", "whatever"),
		of("go_goroutines"), of("process_cpu_seconds_total"), of("up"), of("freshet:reads:ratio", "source"),
	}
	missing, undocumented := compareMetrics(readMetrics(document), agreeing)
	if len(missing)+len(undocumented) > 0 {
		t.Errorf("page that fits the series: got missing %q, undocumented %q, want none", missing, undocumented)
	}
	differing := []map[string]string{
		of("freshet_took_seconds_count", "source"), of("freshet_took_seconds"), of("freshet_state"), of("freshet_new_total"),
		of("freshet_pool_size"), of("process_cpu_seconds_total"), of("go_goroutines"),
	}
	missing, undocumented = compareMetrics(readMetrics(document), differing)
	if want := []string{"freshet_asked_total"}; !slices.Equal(missing, want) {
		t.Errorf("missing series: got %q, want %q", missing, want)
	}
	if want := []string{"freshet_new_total", "freshet_took_seconds", "freshet_took_seconds{source}, documented with {priority,source}"}; !slices.Equal(undocumented, want) {
		t.Errorf("undocumented series: got %q, want %q", undocumented, want)
	}
}
