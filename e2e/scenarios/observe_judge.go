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

// rareMetrics are metrics that begin with the first of what they count, and nothing of the
// kind need have happened.
var rareMetrics = []string{
	"freshet_kafka_client_connect_errors_total", "freshet_kafka_client_read_errors_total", "freshet_kafka_client_write_errors_total",
}

// onlyRareMetrics says whether a query asks for such metrics alone.
func onlyRareMetrics(expr string) bool {
	named := deploy.Metrics(expr)
	return len(named) > 0 && !slices.ContainsFunc(named, func(name string) bool { return !slices.Contains(rareMetrics, name) })
}

// judgePanels judges that each query of each dashboard has had an answer in this run.
func (w *observation) judgePanels(ctx context.Context) error {
	const rateInterval = "10s" // so that something that happens once shows within this run
	all, err := deploy.Panels(rateInterval)
	if err != nil {
		return err
	}
	asked := map[string]answer{}
	var exprs []string
	for _, p := range all {
		exprs = append(exprs, p.Exprs...)
	}
	if err := w.queryAll(ctx, exprs, asked); err != nil {
		return err
	}
	var nothing, excused []string
	for _, p := range all {
		least, silent := -1, []string{}
		for _, e := range p.Exprs {
			a := asked[e]
			if a.samples == 0 && a.err == "" && onlyRareMetrics(e) {
				excused = append(excused, deploy.Metrics(e)...)
				continue
			}
			if a.samples == 0 {
				silent = append(silent, strings.TrimSpace(e+" "+a.err))
			}
			if least < 0 || a.samples < least {
				least = a.samples
			}
		}
		place := strings.Join(slices.DeleteFunc([]string{p.Dashboard, p.Row, p.Title}, func(s string) bool { return s == "" }), " / ")
		w.table.judge(place, fmt.Sprintf("%d queries, %d samples", len(p.Exprs), max(0, least)), "some of each", len(silent) == 0)
		nothing = append(nothing, silent...)
	}
	if len(nothing) > 0 {
		w.table.note = "nothing came of:\n    " + strings.Join(nothing, "\n    ")
	}
	if len(excused) > 0 {
		w.table.report("queries for what did not happen", "%s", joinOrNone(slices.Compact(slices.Sorted(slices.Values(excused)))))
	}
	w.table.judge("panels", strconv.Itoa(len(all)), "some", len(all) > 0)
	return nil
}

// answer is what a query brought.
type answer struct {
	samples int
	err     string
}

// queryAll asks for the whole run, and for what brought nothing again for a while.
func (w *observation) queryAll(ctx context.Context, exprs []string, answers map[string]answer) error {
	const most = 10 * time.Second // what has not come by then has no cause to come
	return harness.Poll(ctx, most, func() (bool, error) {
		all := true
		for _, e := range exprs {
			if answers[e].samples > 0 {
				continue
			}
			found, err := w.queryRange(ctx, e, w.began, time.Now())
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			a := answer{samples: countNumbers(found)}
			if err != nil {
				a.err = "(" + err.Error() + ")"
			}
			answers[e] = a
			all = all && (a.samples > 0 || onlyRareMetrics(e))
		}
		return all, nil
	})
}

// judgeRules judges that Prometheus has each rule, could evaluate it, and has recorded
// what it is for.
func (w *observation) judgeRules(ctx context.Context) error {
	ours, err := deploy.Rules()
	if err != nil {
		return err
	}
	loaded, err := w.rules(ctx)
	if err != nil {
		return err
	}
	sick := slices.DeleteFunc(slices.Clone(loaded), func(r rule) bool { return r.Health == "ok" })
	w.table.judge("rules that are loaded, of those there are", fmt.Sprintf("%d of %d", len(loaded), len(ours)), "all, and some",
		len(loaded) == len(ours) && len(ours) > 0)
	w.table.judge("rules that are not well", strconv.Itoa(len(sick)), "none", len(sick) == 0)
	for _, r := range sick {
		w.table.report("  "+r.Name, "%s %s", r.Health, r.LastError)
	}
	recorded, asked := []string{}, map[string]answer{}
	for _, r := range ours {
		if r.Record != "" && !slices.Contains(recorded, r.Record) {
			recorded = append(recorded, r.Record)
		}
	}
	if err := w.queryAll(ctx, recorded, asked); err != nil {
		return err
	}
	for _, name := range recorded {
		w.table.judge(name, fmt.Sprintf("%d samples", asked[name].samples), "some", asked[name].samples > 0)
	}
	return nil
}

// judgeMetricsPage judges docs/metrics.md by what was scraped.
func (w *observation) judgeMetricsPage(ctx context.Context, said map[string]documentedMetric) error {
	seen, err := w.seriesSince(ctx, `{job="freshet"}`, w.began)
	if err != nil {
		return err
	}
	missing, unsaid := compareMetrics(said, seen)
	w.table.judge("metrics that it names", fmt.Sprintf("%d, %d of them not seen", len(said), len(missing)), "each seen", len(missing) == 0)
	for _, name := range missing {
		w.table.report("  not seen", "%s", name)
	}
	w.table.judge("metrics seen otherwise than it says", strconv.Itoa(len(unsaid)), "none", len(unsaid) == 0)
	for _, name := range unsaid {
		w.table.report("  seen", "%s", name)
	}
	return nil
}

// judgeNativeHistograms judges that each histogram can be had with native buckets too. A Prometheus
// of this age that takes them does not take the classic ones beside them, so it is
// another one.
func (w *observation) judgeNativeHistograms(ctx context.Context, said map[string]documentedMetric, targets []target) error {
	p, err := w.s.startPrometheus(ctx, "prometheus-native", targets, false, "--enable-feature=native-histograms")
	if err != nil {
		return err
	}
	defer p.Stop()
	native := &observation{prometheus: p, began: time.Now()}
	var exprs []string
	asked, names := map[string]answer{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		if said[name].kind == "histogram" {
			e := fmt.Sprintf("histogram_quantile(0.95, %s) and histogram_count(%[1]s) > 0", name)
			exprs, names[e] = append(exprs, e), name
		}
	}
	if err := native.queryAll(ctx, exprs, asked); err != nil {
		return err
	}
	for _, e := range exprs {
		w.table.judge("0.95 quantile of "+names[e], fmt.Sprintf("%d samples", asked[e].samples), "some", asked[e].samples > 0)
	}
	return nil
}

// judgeServiceLevels judges that each service level has an objective, a part of errors and a budget
// that are ratios.
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
