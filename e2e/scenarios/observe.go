package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

// critical is the severity of the most serious alerts. Such an alert must fire only during an outage
// that causes it.
const critical = "critical"

// observation contains the Prometheus that scrapes the scenario's processes, and the table of the
// part of the scenario that is running.
type observation struct {
	*prometheus
	s     *site
	began time.Time
	table *table
	known []string // alerts of earlier outages, which may still be active
}

// moreConfig is the configuration of a webhook, of a run and of two facets of a source. A delivery has its key in the
// header X-Key. The run fetches a collection, and the facet statistics is derived from its items.
const moreConfig = `
webhooks:
  changed:
    verify: {scheme: token, header: Authorization, prefix: "Bearer ", secretFile: %q}
    map: [{facet: %s, key: "header:X-Key"}]
runs:
  worn: {steps: {worn: {}}}
facets:
  worn:
    documents: {worn: {path: "/character/item-equipment?ocid={key}", paging: {link: true, items: item_equipment}}}
    collection: {id: item_equipment_slot}
  statistics:
    derived: {over: {worn: {}}, measures: {items: {count: true}}, every: 1s}
`

// observe judges the monitoring. Every panel and every rule must have data, and docs/metrics.md
// must document every series. The alerts of each outage must fire during the outage and resolve
// after it.
func observe(ctx context.Context, s *site, o options) error {
	documented, err := readMetricsFile(s.Root)
	if err != nil {
		return err
	}
	secret := filepath.Join(s.Dir, "hook-secret")
	s.Token = rand.Text() + rand.Text()                                  // an admin token switches access control on, so that the metrics of access control have data
	if err := os.WriteFile(secret, []byte(s.Token), 0o600); err != nil { // the load sends deliveries with the admin token as the secret of the webhook
		return fmt.Errorf("write the secret of the webhook: %w", err)
	}
	// The lifetimes and delays in the configuration are shortened, so that every change of state
	// happens within seconds.
	s.Edits = []string{
		"freshFor: 1h", "freshFor: 10s", "notFoundFor: 1h", "notFoundFor: 10s", "failedFor: 6h", "failedFor: 10m",
		"cooldown: 1m", "cooldown: 1s", "retry: [1m, 2m, 4m]", "retry: [1s, 2s]", "    keepFor:", "    publishChanges: true\n    keepFor:",
		"\nfacets:\n", fmt.Sprintf(moreConfig, secret, facet),
		`{mode: adaptive, notBefore: "02:00", timeZone: Asia/Seoul}`, "{triggers: {" + small + ": {backoff: 0s}}}",
	}
	if err := s.Prepare(ctx, map[string]string{facet: "basic", small: "basic"}, "--latency", "5ms-50ms"); err != nil {
		return err
	}
	if err := s.Store(ctx, append(failingSnapshots(), expiredSnapshots())...); err != nil {
		return fmt.Errorf("write the snapshots of failing entities and the expired snapshots: %w", err)
	}
	if err := s.Register(ctx, facet, dueKeys); err != nil {
		return fmt.Errorf("register entities for prefetch: %w", err)
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
	parts := []part{{"normal operation", func(ctx context.Context) error {
		return w.judgeNormal(ctx, c, len(targets), time.Duration(o.seconds)*time.Second)
	}}}
	outages := s.outages(targets[len(targets)-1])
	for i, out := range outages {
		wait := !o.brief || i+1 < len(outages)
		parts = append(parts, part{out.name, func(ctx context.Context) error { return w.judgeOutage(ctx, out, wait) }})
	}
	parts = append(
		parts,
		part{"prefetch", w.judgePrefetch}, part{"dashboards", w.judgePanels}, part{"rules", w.judgeRules}, part{"service levels", w.judgeServiceLevels},
		part{"docs/metrics.md", func(ctx context.Context) error { return w.judgeMetricsPage(ctx, documented) }},
		part{"native histograms", func(ctx context.Context) error { return w.judgeNativeHistograms(ctx, documented, targets) }},
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

// judgeNormal judges normal operation for a time: only few responses may fail, and no critical alert
// may be active.
func (w *observation) judgeNormal(ctx context.Context, c *clients, processes int, length time.Duration) error {
	if err := w.untilStarted(ctx, processes); err != nil {
		return err
	}
	// The faults begin only now, after many successful calls. At the start there are few calls,
	// so the failed calls would open the circuit breaker of the source.
	if err := w.s.Control(ctx, simulator.Control{Faults: clientFaults()}); err != nil {
		return err
	}
	began, answers, failed := time.Now(), c.answers.Load(), c.failed.Load()
	if err := harness.Pause(ctx, length); err != nil {
		return err
	}
	answers, failed = c.answers.Load()-answers, c.failed.Load()-failed
	w.table.judge("responses, failed (5xx or none)", fmt.Sprintf("%d, %d", answers, failed), "some, <=1 %", answers > 0 && failed*100 <= answers)
	if last := c.last.Load(); failed > 0 && last != nil {
		w.table.report("  last failure", "%s", *last)
	}
	found, err := w.alertsDuring(ctx, began, time.Now())
	w.judgeAlerts(found, nil)
	return err
}

// judgePrefetch judges that the counters of prefetch, changes, triggers, retention and recorded
// reads have risen. judgePanels cannot detect a counter that stays at 0, because it accepts any
// sample.
func (w *observation) judgePrefetch(ctx context.Context) error {
	for _, name := range []string{"prefetch_requested_total", "changes_published_total", "triggers_requested_total", "retention_deleted_total", "reads_recorded_total"} {
		// Take the maximum over the run, because the counters of a process disappear when it ends.
		all, err := w.queryRange(ctx, "sum("+namespace+name+")", w.began, time.Now())
		if err != nil {
			return err
		}
		highest := 0.0
		for _, s := range all {
			for _, v := range s.Values {
				highest = max(highest, v.value)
			}
		}
		w.table.judge(name, fmt.Sprintf("%.0f", highest), "some", highest > 0)
	}
	return nil
}

// untilStarted waits until Prometheus scrapes all processes, entities are stored, and the alerts
// that the start caused have resolved.
func (w *observation) untilStarted(ctx context.Context, processes int) error {
	began, started := time.Now(), false
	var active []string
	err := harness.Poll(ctx, 2*harness.Timeout, func() (bool, error) {
		all, err := w.query(ctx, fmt.Sprintf(`rate(freshet_settled_total{end="changed"}[10s]) > 0 and on () count(up == 1) == %d`, processes))
		started = started || len(all) > 0
		if err != nil || !started {
			return false, err
		}
		found, err := w.alerts(ctx)
		active = slices.DeleteFunc(slices.Sorted(maps.Keys(found)), func(name string) bool { return found[name].severity != critical })
		return len(active) == 0, err
	})
	w.table.judge("all processes scraped and working, no critical alert", fmt.Sprintf("after %v", time.Since(began).Round(time.Second)), "any time", started && len(active) == 0)
	for _, name := range active {
		w.table.report("  active alert", "%s", name)
	}
	return err
}

// judgeAlerts judges that no critical alert was active except the expected ones. It lists active
// alerts of other severities without judging them.
func (w *observation) judgeAlerts(found map[string]alert, expected []string) {
	var wrong, others []string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		switch {
		case slices.Contains(expected, name):
		case found[name].severity == critical:
			wrong = append(wrong, name)
		default:
			others = append(others, name)
		}
	}
	w.table.judge("unexpected critical alerts", joinOrNone(wrong), "none", len(wrong) == 0)
	w.table.report("other alerts", "%s", joinOrNone(others))
}

// joinOrNone returns the names separated by commas, or "none".
func joinOrNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
