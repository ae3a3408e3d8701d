package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
)

// drainTimeout is the maximum time from the last fault until every request has ended. Circuit
// breakers stay open for up to half a minute. Probes of the upstream are sent after growing
// pauses. The backlog is processed at the rate of the upstream's quota.
const drainTimeout = 4 * time.Minute

// tortureResult contains the judged figures of a torture run.
type tortureResult struct {
	seed       uint64
	faults     int
	kinds      map[string]int
	duplicates int
	took       time.Duration
	table      table
}

// rows returns the lines of the result: the run's parameters, the number of faults by kind, and
// the judged figures.
func (r *tortureResult) rows() []line {
	// This line has a limit only so that it is written to the results file, which omits lines
	// without a limit.
	rows := []line{{
		what: "seed, faults, length", figure: fmt.Sprintf("%d, %d, %v", r.seed, r.faults, r.took.Round(time.Second)),
		limit: "as requested", verdict: isHeld,
	}}
	for _, name := range slices.Sorted(maps.Keys(r.kinds)) {
		rows = append(rows, line{what: "  " + name, figure: strconv.Itoa(r.kinds[name])})
	}
	return append(rows, r.table.lines...)
}

// torture injects random faults into all components of an installation under load. It judges the
// result from Kafka, the database and the upstream's log, and not from freshet's own output.
func torture(ctx context.Context, s *site, o options) error {
	for o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000)
	}
	r, err := s.runTorture(ctx, o.seed, plan(o.seed, o.faults))
	if err != nil {
		return err
	}
	s.addResult("torture", &table{lines: r.rows(), note: r.table.note, missed: r.table.missed})
	return nil
}

func (s *site) runTorture(ctx context.Context, seed uint64, steps []step) (*tortureResult, error) {
	began := time.Now()
	// The lifetimes and delays in the configuration are shortened, so that all changes of state
	// happen within seconds. The quota is small, so that a backlog after a fault uses it fully.
	s.Edits = []string{
		"freshFor: 1h", "freshFor: 10s", "notFoundFor: 1h", "notFoundFor: 5s", "failedFor: 6h", "failedFor: 10m",
		"cooldown: 1m", "cooldown: 1s", "retry: [1m, 2m, 4m]", "retry: [1s, 2s]", "timeout: 10s", "timeout: 3s",
		"limit: 500, window: 1s, target: 450, highReserve: 100", fmt.Sprintf("limit: %d, window: 1s, target: %d, highReserve: %d",
			tortureLimit, tortureLimit*9/10, tortureLimit/4),
	}
	if err := s.StartKafka(ctx); err != nil {
		return nil, err
	}
	if err := s.Prepare(ctx, map[string]string{facet: "basic"}, "--limit", fmt.Sprint(tortureLimit, "/1s")); err != nil {
		return nil, err
	}
	t := &injector{s: s}
	if err := t.start(ctx); err != nil {
		return nil, err
	}
	watcher, err := s.watchState(ctx)
	if err != nil {
		return nil, err
	}
	load, err := s.startLoad(ctx, seed, t.instances)
	if err != nil {
		return nil, err
	}
	stopLoad := sync.OnceFunc(load.stop)
	defer stopLoad()
	supervising, stopSupervising := context.WithCancel(ctx)
	defer stopSupervising()
	supervised := make(chan error, 1)
	go func() { supervised <- t.supervise(supervising) }()
	if err := s.runPlan(ctx, t, seed, steps); err != nil {
		return nil, err
	}
	stopLoad()
	r := &tortureResult{seed: seed, faults: len(t.injected), kinds: countByKind(t.injected)}
	r.table.judge("processes that did not end on SIGTERM", joinOrNone(t.slowStops), "none", len(t.slowStops) == 0)
	if err := r.judgeDrained(ctx, s); err != nil {
		return nil, err
	}
	stopSupervising()
	if err := <-supervised; err != nil {
		return nil, err
	}
	if err := t.judgeExits(&r.table); err != nil {
		return nil, err
	}
	if err := errors.Join(watcher.stop(ctx), load.err); err != nil {
		return nil, err
	}
	if err := r.judge(ctx, s, t, watcher, load); err != nil {
		return nil, err
	}
	if err := r.judgeAfterwards(ctx, s, watcher, load); err != nil {
		return nil, err
	}
	r.took = time.Since(began)
	return r, nil
}

// start starts the Redis servers and all processes. It sets the upstream to its normal latency
// and its permanent faults before the processes start.
func (t *injector) start(ctx context.Context) (err error) {
	t.s.Redis.Kill()
	if t.s.Redis, err = t.s.startPersistentRedis(ctx, t.s.Redis.Address); err != nil {
		return err
	}
	port, err := t.s.FreePort(ctx)
	if err != nil {
		return err
	}
	if err := t.startReplica(ctx, net.JoinHostPort("127.0.0.1", port)); err != nil {
		return err
	}
	if err := t.injectUpstreamFault(ctx, fault{}); err != nil { // the empty fault sets only the normal latency and the permanent faults
		return err
	}
	t.instances, err = t.s.startInstances(ctx)
	return err
}

// runPlan injects all faults of the plan. It waits first until calls of the load arrive at the
// upstream. It prints each step before it injects the step.
func (s *site) runPlan(ctx context.Context, t *injector, seed uint64, steps []step) error {
	err := harness.Poll(ctx, 2*harness.Timeout, func() (bool, error) {
		st, err := s.Stats(ctx)
		return st.Arrivals > tortureLimit, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "torture with seed %d: %d steps\n", seed, len(steps))
	began := time.Now()
	for i, step := range steps {
		if err := harness.Pause(ctx, step.pause); err != nil {
			return err
		}
		var all []string
		for _, f := range step.faults {
			all = append(all, f.String())
		}
		fmt.Fprintf(s.Out, "  %d after %v, at %v  %s\n", i+1, step.pause, time.Since(began).Round(time.Second), strings.Join(all, "  +  "))
		if err := t.runStep(ctx, step); err != nil {
			return err
		}
	}
	return harness.Pause(ctx, time.Second)
}

// judgeDrained waits until every record is committed and no entity has a scheduled retry.
// A process that is killed after it has claimed a retry leaves the claim behind, which expires
// only minutes later. judgeDrained therefore expires such claims at once.
func (r *tortureResult) judgeDrained(ctx context.Context, s *site) error {
	began := time.Now()
	lag, retrying, claimed := int64(-1), -1, 0
	err := harness.Poll(ctx, drainTimeout, func() (bool, error) {
		var err error
		if lag, err = s.Lag(ctx, schemas.High, schemas.Low); err != nil || lag > 0 {
			return false, err
		}
		retrying, err = s.Number(ctx, "SELECT count(*) FROM update_status WHERE source = $1 AND state = 'RETRYING'", s.Source)
		if err == nil && retrying > 0 && claimed == 0 && time.Since(began) > lockTTL+5*time.Second {
			claimed, err = s.expireClaims(ctx)
		}
		return retrying == 0, err
	})
	if err != nil {
		return err
	}
	r.table.judge("records not committed, entities with a scheduled retry", fmt.Sprintf("%d, %d after %v", lag, retrying, time.Since(began).Round(time.Second)),
		fmt.Sprintf("0, 0 within %v", drainTimeout), lag == 0 && retrying == 0)
	r.table.report("  retries whose claim was left by a killed process", "%d", claimed)
	return nil
}

func (r *tortureResult) judge(ctx context.Context, s *site, t *injector, w *stateWatcher, l *tortureLoad) error {
	requests, deadLetters, err := s.readRecords(ctx)
	if err != nil {
		return err
	}
	all, err := s.Arrivals(ctx)
	if err != nil || len(all) == 0 {
		return errors.Join(err, errors.New("the upstream received no call"))
	}
	st, err := s.Stats(ctx)
	if err != nil {
		return err
	}
	e, err := s.readFinalState(ctx, w, deadLetters, all)
	if err != nil {
		return err
	}
	r.table.report("reads, failed, skipped; LOW records", "%d, %d, %d; %d", l.reads.Load(), len(l.failedReads), l.skipped.Load(), l.low.Load())
	t.judgeFailedReads(&r.table, l)
	if len(t.lostBytes) > 0 {
		r.table.judge("bytes of acknowledged Redis writes lost in failovers", fmt.Sprint(t.lostBytes), ">0 each", slices.Min(t.lostBytes) > 0)
	}
	r.table.judgeNothingLost(e, requests, l, t.mayBeLost)
	failures, missing := e.missingDeadLetters(requests)
	r.table.judgeNone("final failures without a dead letter", failures, missing)
	r.table.report("  dead letters", "%d", len(deadLetters))
	r.table.judgeTortureContract(st)
	r.table.judgeNone("snapshots that became older, of all checks", w.checks, w.regressions)
	r.table.report("  only a time became older, by at most "+maxTimeRegression.String(), "%d", w.timeRegressions)
	payloads, err := s.payloads(ctx, e.stored)
	if err != nil {
		return err
	}
	if err := r.table.judgeContents(ctx, s, e.stored, payloads, l.changes); err != nil {
		return err
	}
	if err := r.table.judgeAnswers(ctx, s, l); err != nil {
		return err
	}
	r.duplicates = r.table.judgeDuplicates(all, requests, t.injected)
	return nil
}
