package main

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

// outage is an outage that the scenario causes, and the alerts that must fire because of it.
type outage struct {
	name       string
	begin, end func(ctx context.Context) error
	visible    string   // PromQL query that returns a series during the outage; empty if an alert fires instead
	alerts     []string // alerts that must become active and resolve after the outage
	lasting    []string // alerts that must become active and stay active after the outage, because they look back over a long range
	possible   []string // critical alerts that may become active, depending on the load before the outage
}

// outages returns all outages in the order in which they are caused. The outage of Redis is the
// last, because no entity is refreshed for half a minute after it.
func (s *site) outages(stopped target) []outage {
	faulty := func(first ...simulator.Fault) func(context.Context) error {
		return func(ctx context.Context) error {
			return s.Control(ctx, simulator.Control{Faults: append(first, clientFaults()...)})
		}
	}
	credential := func(key string) func(context.Context) error {
		return func(ctx context.Context) error { return s.Control(ctx, simulator.Control{APIKey: &key}) }
	}
	return []outage{
		{
			name:  "the upstream refuses all calls with 429",
			begin: faulty(simulator.Fault{Kind: simulator.TooManyRequests, RetryAfter: "1"}), end: faulty(),
			visible:  "sum(increase(freshet_rate_limiter_backoffs_total[1m])) > 0",
			possible: []string{"FreshetErrorBudgetBurnsFast"},
		},
		{
			name:  "the upstream refuses the credential",
			begin: credential("another-key"), end: credential(""),
			alerts: []string{"FreshetCredentialRefused", "FreshetUpstreamOutage"},
		},
		{
			name:  "the upstream is closed for maintenance", // must come after the outage of the credential: that outage must fire FreshetUpstreamOutage, which can't fire during maintenance or for some minutes afterwards
			begin: faulty(simulator.Fault{Kind: simulator.Maintenance}), end: faulty(),
			alerts:   []string{"FreshetUpstreamMaintenance"},
			possible: []string{"FreshetUpstreamOutage", "FreshetCredentialRefused"}, // these alerts of the previous outage may still be active
		},
		{
			name:  "a worker is stopped",
			begin: func(context.Context) error { s.Latest(stopped.name).Stop(); return nil },
			end: func(ctx context.Context) error {
				_, err := s.startTarget(ctx, stopped)
				return err
			},
			alerts: []string{"FreshetTargetDown"},
		},
		{
			name:     "the database rejects connections",
			begin:    func(ctx context.Context) error { return s.AllowConnections(ctx, false) },
			end:      func(ctx context.Context) error { return s.AllowConnections(ctx, true) },
			alerts:   []string{"FreshetDatabaseBreakerOpen", "FreshetReadsBreakerOpen"},
			lasting:  []string{"FreshetDependencyFailures", "FreshetReadsFromFallback"},
			possible: []string{"FreshetErrorBudgetBurnsFast"},
		},
		{
			name:  "Redis is killed",
			begin: func(context.Context) error { s.Redis.Kill(); return nil },
			end: func(ctx context.Context) (err error) {
				s.Redis, err = s.StartRedis(ctx, s.Redis.Address)
				return err
			},
			alerts:   []string{"FreshetRedisBreakerOpen", "FreshetSettleSubscriptionLost"},
			possible: []string{"FreshetNoPermits", "FreshetErrorBudgetBurnsFast"},
		},
	}
}

// judgeOutage begins an outage, waits until all of its alerts are active, and ends it. If `wait` is
// true, it also waits until the alerts have resolved.
func (w *observation) judgeOutage(ctx context.Context, o outage, wait bool) error {
	began, active, visible := time.Now(), map[string]alert{}, o.visible == ""
	if err := o.begin(ctx); err != nil {
		return err
	}
	must := slices.Concat(o.alerts, o.lasting)
	err := harness.Poll(ctx, 2*harness.Timeout, func() (bool, error) {
		found, err := w.alerts(ctx)
		maps.Copy(active, found)
		if !visible && err == nil {
			var all []series
			all, err = w.query(ctx, o.visible)
			visible = len(all) > 0
		}
		return visible && len(foundNames(active, must)) == len(must), err
	})
	if err != nil {
		return err
	}
	if o.visible != "" {
		w.table.judge("visible in a metric", strconv.FormatBool(visible), "true", visible)
	}
	for _, name := range must {
		w.table.judge(name, active[name].state, "pending or firing", active[name] != alert{})
	}
	w.table.report("  active after", "%v", time.Since(began).Round(time.Second))
	if err := o.end(ctx); err != nil {
		return err
	}
	if wait && len(o.alerts) > 0 {
		if err := w.untilResolved(ctx, o); err != nil {
			return err
		}
	}
	found, err := w.alertsDuring(ctx, began, time.Now())
	w.known = append(w.known, slices.Concat(o.lasting, o.possible)...)
	w.judgeAlerts(found, slices.Concat(o.alerts, w.known))
	return err
}

// untilResolved waits until the alerts of an outage have resolved.
func (w *observation) untilResolved(ctx context.Context, o outage) error {
	began := time.Now()
	var active []string
	err := harness.Poll(ctx, 4*harness.Timeout, func() (bool, error) {
		found, err := w.alerts(ctx)
		active = foundNames(found, o.alerts)
		return len(active) == 0, err
	})
	w.table.judge("alerts active after its end", joinOrNone(active), "none", len(active) == 0)
	w.table.report("  resolved after", "%v", time.Since(began).Round(time.Second))
	return err
}

// foundNames returns the elements of `names` that are keys of the map `found`.
func foundNames(found map[string]alert, names []string) (all []string) {
	for _, name := range names {
		if _, ok := found[name]; ok {
			all = append(all, name)
		}
	}
	return all
}

// target is a process that Prometheus scrapes.
type target struct{ name, role, address string }

// startObserved starts a query service, a scheduler and two workers. It returns them as targets for
// Prometheus, and the URL of the query service's API.
func (s *site) startObserved(ctx context.Context) (all []target, api string, err error) {
	all = []target{
		{name: "query", role: "query"},
		{name: "scheduler", role: "scheduler"},
		{name: "worker-1", role: "worker"},
		{name: "worker-2", role: "worker"},
	}
	for i, t := range all {
		port, err := s.FreePort(ctx)
		if err != nil {
			return nil, "", err
		}
		all[i].address = net.JoinHostPort("127.0.0.1", port)
		found, err := s.startTarget(ctx, all[i])
		if err != nil {
			return nil, "", err
		}
		if t.role == "query" {
			api = "http://" + found
		}
	}
	return all, api, nil
}

// startTarget starts the process of a target. For a query service it returns the address of the
// API.
func (s *site) startTarget(ctx context.Context, t target) (found string, err error) {
	p, err := s.StartTarget(ctx, t.name, t.role, t.address)
	if err != nil {
		return "", err
	}
	return p.Match, nil
}
