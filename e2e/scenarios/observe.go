package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

// critical is the severity of alerts that nobody may get for nothing.
const critical = "critical"

// observation is a Prometheus that watches the scenario's processes, and what is judged.
type observation struct {
	*prometheus
	s     *site
	began time.Time
	table *table
	known []string // alerts that an outage may have left behind
}

// observe judges whether operators see what happens: every panel and rule has its data,
// the alerts of an outage come and go with it, and docs/metrics.md tells of what there is.
func observe(ctx context.Context, s *site, o options) error {
	said, err := readMetricsFile(s.Root)
	if err != nil {
		return err
	}
	s.Token = rand.Text() + rand.Text() // so that what clients may ask for is counted too
	// So that everything happens within seconds.
	s.Edits = []string{
		"freshFor: 1h", "freshFor: 10s", "notFoundFor: 1h", "notFoundFor: 10s", "failedFor: 6h", "failedFor: 10m",
		"cooldown: 1m", "cooldown: 1s", "retry: [1m, 2m, 4m]", "retry: [1s, 2s]", "    keepFor:", "    publishChanges: true\n    keepFor:",
		`{mode: adaptive, notBefore: "02:00", timeZone: Asia/Seoul}`, "{triggers: {" + small + ": {backoff: 0s}}}",
	}
	if err := s.Prepare(ctx, map[string]string{facet: "basic", small: "basic"}, "--latency", "5ms-50ms"); err != nil {
		return err
	}
	if err := s.Store(ctx, append(failingSnapshots(), expiredSnapshots())...); err != nil {
		return fmt.Errorf("store what is to fail, and what is to be deleted: %w", err)
	}
	if err := s.Register(ctx, facet, dueKeys); err != nil {
		return fmt.Errorf("register what is to be prefetched: %w", err)
	}
	targets, api, err := s.startObserved(ctx)
	if err != nil {
		return err
	}
	p, err := s.startPrometheus(ctx, "prometheus", targets, true)
	if err != nil {
		return err
	}
	w := &observation{prometheus: p, s: s, began: time.Now()}
	c := s.startClients(ctx, api)
	defer c.stop()
	type part struct {
		name  string
		judge func(context.Context) error
	}
	parts := []part{{"all is well", func(ctx context.Context) error {
		return w.judgeNormal(ctx, c, len(targets), time.Duration(o.seconds)*time.Second)
	}}}
	outages := s.outages(targets[len(targets)-1])
	for i, out := range outages {
		wait := !o.brief || i+1 < len(outages)
		parts = append(parts, part{out.name, func(ctx context.Context) error { return w.judgeOutage(ctx, out, wait) }})
	}
	parts = append(
		parts,
		part{"the prefetch", w.judgePrefetch}, part{"the dashboards", w.judgePanels}, part{"the rules", w.judgeRules}, part{"the service levels", w.judgeServiceLevels},
		part{"docs/metrics.md", func(ctx context.Context) error { return w.judgeMetricsPage(ctx, said) }},
		part{"native histograms", func(ctx context.Context) error { return w.judgeNativeHistograms(ctx, said, targets) }},
	)
	for _, p := range parts {
		fmt.Fprintln(s.Out, p.name)
		w.table = &table{}
		if err := p.judge(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		s.addResult(p.name, w.table)
	}
	return nil
}

// judgeNormal is how it mostly is.
func (w *observation) judgeNormal(ctx context.Context, c *clients, processes int, length time.Duration) error {
	if err := w.untilStarted(ctx, processes); err != nil {
		return err
	}
	// Not before: where hardly anything else is asked for, the upstream would be taken
	// to be sick.
	if err := w.s.Control(ctx, simulator.Control{Faults: clientFaults()}); err != nil {
		return err
	}
	began, answers, failed := time.Now(), c.answers.Load(), c.failed.Load()
	if err := harness.Pause(ctx, length); err != nil {
		return err
	}
	answers, failed = c.answers.Load()-answers, c.failed.Load()-failed
	w.table.judge("answers, of them with 5xx or none", fmt.Sprintf("%d, %d", answers, failed), "some, <=1 %", answers > 0 && failed*100 <= answers)
	if last := c.last.Load(); failed > 0 && last != nil {
		w.table.report("  the last of them", "%s", *last)
	}
	found, err := w.alertsDuring(ctx, began, time.Now())
	w.judgeAlerts(found, nil)
	return err
}

// judgePrefetch judges that what nobody asks for has happened: a panel of what never did
// would show something too, a line at 0.
func (w *observation) judgePrefetch(ctx context.Context) error {
	for _, name := range []string{"prefetch_requested_total", "changes_published_total", "triggers_requested_total", "retention_deleted_total", "reads_recorded_total"} {
		// The highest of the run: a process may have been stopped since.
		all, err := w.queryRange(ctx, "sum("+namespace+name+")", w.began, time.Now())
		if err != nil {
			return err
		}
		most := 0.0
		for _, s := range all {
			for _, v := range s.Values {
				most = max(most, v.value)
			}
		}
		w.table.judge(name, fmt.Sprintf("%.0f", most), "some", most > 0)
	}
	return nil
}

// untilStarted waits until all processes are seen and work, so that no alert says that one
// is away or that nobody works.
func (w *observation) untilStarted(ctx context.Context, processes int) error {
	began, seen := time.Now(), false
	var left []string
	err := harness.Poll(ctx, 2*harness.Timeout, func() (bool, error) {
		all, err := w.query(ctx, fmt.Sprintf(`rate(freshet_settled_total{end="changed"}[10s]) > 0 and on () count(up == 1) == %d`, processes))
		seen = seen || len(all) > 0
		if err != nil || !seen {
			return false, err
		}
		found, err := w.alerts(ctx)
		left = slices.DeleteFunc(slices.Sorted(maps.Keys(found)), func(name string) bool { return found[name].severity != critical })
		return len(left) == 0, err
	})
	w.table.judge("all are seen, and work, and no critical alert", fmt.Sprintf("after %v", time.Since(began).Round(time.Second)), "some time", seen && len(left) == 0)
	for _, name := range left {
		w.table.report("  it stays", "%s", name)
	}
	return err
}

// judgeAlerts judges that no critical alert was there but those named, and tells of others.
func (w *observation) judgeAlerts(found map[string]alert, but []string) {
	var wrong, others []string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		switch {
		case slices.Contains(but, name):
		case found[name].severity == critical:
			wrong = append(wrong, name)
		default:
			others = append(others, name)
		}
	}
	w.table.judge("critical alerts for nothing", joinOrNone(wrong), "none", len(wrong) == 0)
	w.table.report("other alerts", "%s", joinOrNone(others))
}

func joinOrNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
