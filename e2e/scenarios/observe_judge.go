package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/deploy"
	"github.com/freshet/freshet/e2e/harness"
)

// rareMetrics are counters that have no series before their first event. This event may not occur in
// a run, so it is no error if these series are missing.
var rareMetrics = []string{
	"freshet_kafka_client_connect_errors_total", "freshet_kafka_client_read_errors_total", "freshet_kafka_client_write_errors_total",
}

// onlyRareMetrics reports whether all metrics that a query reads are in the list rareMetrics.
func onlyRareMetrics(expr string) bool {
	named := deploy.Metrics(expr)
	return len(named) > 0 && !slices.ContainsFunc(named, func(name string) bool { return !slices.Contains(rareMetrics, name) })
}

// judgePanels judges that each query of each dashboard returned samples in this run.
func (w *observation) judgePanels(ctx context.Context) error {
	const rateInterval = "10s" // the range of each rate is short, so that even a single event is visible in this run
	all, err := deploy.Panels(rateInterval)
	if err != nil {
		return err
	}
	results := map[string]queryResult{}
	var exprs []string
	for _, p := range all {
		exprs = append(exprs, p.Exprs...)
	}
	if err := w.queryAll(ctx, exprs, results); err != nil {
		return err
	}
	var noData, excused []string
	for _, p := range all {
		fewest, empty := -1, []string{}
		for _, e := range p.Exprs {
			a := results[e]
			if a.samples == 0 && a.err == "" && onlyRareMetrics(e) {
				excused = append(excused, deploy.Metrics(e)...)
				continue
			}
			if a.samples == 0 {
				empty = append(empty, strings.TrimSpace(e+" "+a.err))
			}
			if fewest < 0 || a.samples < fewest {
				fewest = a.samples
			}
		}
		place := strings.Join(slices.DeleteFunc([]string{p.Dashboard, p.Row, p.Title}, func(s string) bool { return s == "" }), " / ")
		w.table.judge(place, fmt.Sprintf("%d queries, %d samples", len(p.Exprs), max(0, fewest)), "some of each", len(empty) == 0)
		noData = append(noData, empty...)
	}
	if len(noData) > 0 {
		w.table.note = "queries without data:\n    " + strings.Join(noData, "\n    ")
	}
	if len(excused) > 0 {
		w.table.report("queries of rare metrics without data", "%s", joinOrNone(slices.Compact(slices.Sorted(slices.Values(excused)))))
	}
	w.table.judge("panels", strconv.Itoa(len(all)), "some", len(all) > 0)
	return nil
}

// queryResult is the number of samples that a query returned, or the error of the query.
type queryResult struct {
	samples int
	err     string
}

// queryAll evaluates the queries over the whole run. If a query returns no data, queryAll repeats the
// query for up to ten seconds.
func (w *observation) queryAll(ctx context.Context, exprs []string, results map[string]queryResult) error {
	const limit = 10 * time.Second
	return harness.Poll(ctx, limit, func() (bool, error) {
		all := true
		for _, e := range exprs {
			if results[e].samples > 0 {
				continue
			}
			found, err := w.queryRange(ctx, e, w.began, time.Now())
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			a := queryResult{samples: countNumbers(found)}
			if err != nil {
				a.err = "(" + err.Error() + ")"
			}
			results[e] = a
			all = all && (a.samples > 0 || onlyRareMetrics(e))
		}
		return all, nil
	})
}

// judgeRules judges that Prometheus has loaded each rule of the repository, evaluates it without an
// error, and stores samples of each recording rule.
func (w *observation) judgeRules(ctx context.Context) error {
	defined, err := deploy.Rules()
	if err != nil {
		return err
	}
	loaded, err := w.rules(ctx)
	if err != nil {
		return err
	}
	failing := slices.DeleteFunc(slices.Clone(loaded), func(r rule) bool { return r.Health == "ok" })
	w.table.judge("rules loaded", fmt.Sprintf("%d of %d", len(loaded), len(defined)), "all, and some",
		len(loaded) == len(defined) && len(defined) > 0)
	w.table.judge("rules that fail to evaluate", strconv.Itoa(len(failing)), "none", len(failing) == 0)
	for _, r := range failing {
		w.table.report("  "+r.Name, "%s %s", r.Health, r.LastError)
	}
	recorded, results := []string{}, map[string]queryResult{}
	for _, r := range defined {
		if r.Record != "" && !slices.Contains(recorded, r.Record) {
			recorded = append(recorded, r.Record)
		}
	}
	if err := w.queryAll(ctx, recorded, results); err != nil {
		return err
	}
	for _, name := range recorded {
		w.table.judge(name, fmt.Sprintf("%d samples", results[name].samples), "some", results[name].samples > 0)
	}
	return nil
}

// judgeMetricsPage compares docs/metrics.md with the scraped series.
func (w *observation) judgeMetricsPage(ctx context.Context, documented map[string]documentedMetric) error {
	scraped, err := w.seriesSince(ctx, `{job="freshet"}`, w.began)
	if err != nil {
		return err
	}
	missing, undocumented := compareMetrics(documented, scraped)
	w.table.judge("documented metrics, without a series", fmt.Sprintf("%d, %d", len(documented), len(missing)), "some, 0", len(missing) == 0)
	for _, name := range missing {
		w.table.report("  no series", "%s", name)
	}
	w.table.judge("series not documented or with other labels", strconv.Itoa(len(undocumented)), "none", len(undocumented) == 0)
	for _, name := range undocumented {
		w.table.report("  series", "%s", name)
	}
	return nil
}

// judgeNativeHistograms judges that each histogram is also exposed as a native histogram. It starts
// a second Prometheus for that, because Prometheus 2 stores only one of the two kinds of buckets.
func (w *observation) judgeNativeHistograms(ctx context.Context, documented map[string]documentedMetric, targets []target) error {
	p, err := w.s.startPrometheus(ctx, "prometheus-native", targets, false, "--enable-feature=native-histograms")
	if err != nil {
		return err
	}
	defer p.Stop()
	native := &observation{prometheus: p, began: time.Now()}
	var exprs []string
	results, names := map[string]queryResult{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if documented[name].kind == "histogram" {
			e := fmt.Sprintf("histogram_quantile(0.95, %s) and histogram_count(%[1]s) > 0", name)
			exprs, names[e] = append(exprs, e), name
		}
	}
	if err := native.queryAll(ctx, exprs, results); err != nil {
		return err
	}
	for _, e := range exprs {
		w.table.judge("p95 of "+names[e], fmt.Sprintf("%d samples", results[e].samples), "some", results[e].samples > 0)
	}
	return nil
}

// judgeServiceLevels judges that the recorded objective, error ratio and error budget of each
// service level objective are valid ratios.
func (w *observation) judgeServiceLevels(ctx context.Context) error {
	objectives, err := w.query(ctx, "freshet:slo_objective")
	if err != nil {
		return err
	}
	w.table.judge("service levels", strconv.Itoa(len(objectives)), "some", len(objectives) > 0)
	for _, o := range objectives {
		name := o.Metric["slo"]
		level := fmt.Sprintf("{slo=%q}", name)
		errors, err := w.query(ctx, "max(freshet:slo_errors:ratio_rate5m"+level+")")
		if err != nil {
			return err
		}
		left, err := w.query(ctx, "min(freshet:slo_error_budget_left:ratio"+level+")")
		if err != nil {
			return err
		}
		objective := o.last()
		held := objective > 0 && objective < 1 && len(errors) == 1 && len(left) == 1 &&
			errors[0].last() >= 0 && errors[0].last() <= 1 && left[0].last() <= 1
		figure := fmt.Sprintf("objective %.4g, no data", objective)
		if len(errors) == 1 && len(left) == 1 {
			figure = fmt.Sprintf("objective %.4g, errors %.4f, budget left %.4g", objective, errors[0].last(), left[0].last())
		}
		w.table.judge(name, figure, "in (0,1), in [0,1], <=1", held)
	}
	return nil
}
