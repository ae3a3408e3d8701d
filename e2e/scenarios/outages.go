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

// outage is something that goes wrong.
type outage struct {
	name       string
	begin, end func(ctx context.Context) error
	seen       string   // a query that is answered when it has come about, if no alert tells of it
	tell       []string // alerts that must tell of it, and end soon after it
	stay       []string // alerts that must tell of it, and stay: they look back
	may        []string // critical alerts that may tell of it, by how much else there was; they look back
}

// outages are all of them, in their order: after the last one nothing is refreshed for
// half a minute.
func (s *site) outages(stopped target) []outage {
	faulty := func(first ...simulator.Fault) func(context.Context) error {
		return func(ctx context.Context) error {
			return s.Control(ctx, simulator.Control{Faults: append(first, clientFaults()...)})
		}
	}
	credential := func(key string) func(context.Context) error {
		return func(ctx context.Context) error { return s.Control(ctx, simulator.Control{APIKey: &key}) }
	}
	two := 2
	return []outage{
		{
			name:  "the upstream refuses calls for a moment",
			begin: faulty(simulator.Fault{Kind: simulator.TooManyRequests, Count: &two, RetryAfter: "1"}), end: faulty(),
			seen: "sum(increase(freshet_rate_limiter_backoffs_total[1m])) > 0",
			may:  []string{"FreshetErrorBudgetBurnsFast"},
		},
		{
			name:  "the upstream refuses the credential",
			begin: credential("another-key"), end: credential(""),
			tell: []string{"FreshetCredentialRefused", "FreshetUpstreamOutage"},
		},
		{
			name:  "the upstream is closed for maintenance", // after the one that is no maintenance, which it would explain
			begin: faulty(simulator.Fault{Kind: simulator.Maintenance}), end: faulty(),
			tell: []string{"FreshetUpstreamMaintenance"},
			may:  []string{"FreshetUpstreamOutage", "FreshetCredentialRefused"}, // of which the last one was, a moment ago
		},
		{
			name:  "a worker is stopped",
			begin: func(context.Context) error { s.Latest(stopped.name).Stop(); return nil },
			end: func(ctx context.Context) error {
				_, err := s.startTarget(ctx, stopped)
				return err
			},
			tell: []string{"FreshetTargetDown"},
		},
		{
			name:  "the database lets nobody in",
			begin: func(ctx context.Context) error { return s.AllowConnections(ctx, false) },
			end:   func(ctx context.Context) error { return s.AllowConnections(ctx, true) },
			tell:  []string{"FreshetDatabaseBreakerOpen", "FreshetReadsBreakerOpen"},
			stay:  []string{"FreshetRecordsHeld", "FreshetReadsFromStaleCache"},
			may:   []string{"FreshetErrorBudgetBurnsFast"},
		},
		{
			name:  "Redis is killed",
			begin: func(context.Context) error { s.Redis.Kill(); return nil },
			end: func(ctx context.Context) (err error) {
				s.Redis, err = s.StartRedis(ctx, s.Redis.Address)
				return err
			},
			tell: []string{"FreshetRedisBreakerOpen", "FreshetSettleSubscriptionLost"},
			may:  []string{"FreshetNoPermits", "FreshetErrorBudgetBurnsFast"},
		},
	}
}

// judgeOutage has something go wrong until it is told of, and may then wait for the end of that.
func (w *observation) judgeOutage(ctx context.Context, o outage, wait bool) error {
	began, told, seen := time.Now(), map[string]alert{}, o.seen == ""
	if err := o.begin(ctx); err != nil {
		return err
	}
	must := slices.Concat(o.tell, o.stay)
	err := harness.Poll(ctx, 2*harness.Timeout, func() (bool, error) {
		found, err := w.alerts(ctx)
		maps.Copy(told, found)
		if !seen && err == nil {
			var all []series
			all, err = w.query(ctx, o.seen)
			seen = len(all) > 0
		}
		return seen && len(foundNames(told, must)) == len(must), err
	})
	if err != nil {
		return err
	}
	if o.seen != "" {
		w.table.judge("it is seen", strconv.FormatBool(seen), "true", seen)
	}
	for _, name := range must {
		w.table.judge(name, told[name].state, "pending or firing", told[name] != alert{})
	}
	w.table.report("  told after", "%v", time.Since(began).Round(time.Second))
	if err := o.end(ctx); err != nil {
		return err
	}
	if wait && len(o.tell) > 0 {
		if err := w.untilResolved(ctx, o); err != nil {
			return err
		}
	}
	found, err := w.alertsDuring(ctx, began, time.Now())
	w.known = append(w.known, slices.Concat(o.stay, o.may)...)
	w.judgeAlerts(found, slices.Concat(o.tell, w.known))
	return err
}

// untilResolved waits until nothing tells of an outage any more that is over.
func (w *observation) untilResolved(ctx context.Context, o outage) error {
	began := time.Now()
	var left []string
	err := harness.Poll(ctx, 4*harness.Timeout, func() (bool, error) {
		found, err := w.alerts(ctx)
		left = foundNames(found, o.tell)
		return len(left) == 0, err
	})
	w.table.judge("alerts that stay after its end", joinOrNone(left), "none", len(left) == 0)
	w.table.report("  gone after", "%v", time.Since(began).Round(time.Second))
	return err
}

// foundNames returns which of these alerts were found.
func foundNames(found map[string]alert, names []string) (all []string) {
	for _, name := range names {
		if _, ok := found[name]; ok {
			all = append(all, name)
		}
	}
	return all
}

// target is a process that is scraped.
type target struct{ name, role, address string }

// startObserved starts a query process, a scheduler and two workers, and returns where they
// tell of themselves, and where the query process answers.
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

// startTarget starts a process that tells of itself.
func (s *site) startTarget(ctx context.Context, t target) (found string, err error) {
	p, err := s.StartTarget(ctx, t.name, t.role, t.address)
	if err != nil {
		return "", err
	}
	return p.Match, nil
}
