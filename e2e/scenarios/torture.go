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

// drainTimeout is how long it may take until everything has ended after the last
// fault: breakers rest for half a minute, stops are probed after pauses that double,
// and what had piled up goes out at the rate that the upstream allows.
const drainTimeout = 4 * time.Minute

// tortureResult is what became of a run.
type tortureResult struct {
	seed       uint64
	faults     int
	kinds      map[string]int
	duplicates int
	took       time.Duration
	table      table
}

// rows is the run in a few lines: what it was, and how it is judged.
func (r *tortureResult) rows() []line {
	// With a limit, for what has none is not kept.
	rows := []line{{
		what: "seed, faults, length", figure: fmt.Sprintf("%d, %d, %v", r.seed, r.faults, r.took.Round(time.Second)),
		limit: "as asked for", verdict: isHeld,
	}}
	for _, name := range slices.Sorted(maps.Keys(r.kinds)) {
		rows = append(rows, line{what: "  " + name, figure: strconv.Itoa(r.kinds[name])})
	}
	return append(rows, r.table.lines...)
}

// torture hurts an installation in all ways at random, under load, and judges it by
// Kafka, the database and the upstream's own log: never by what its processes say.
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

func (s *site) runTorture(ctx context.Context, seed uint64, strikes []step) (*tortureResult, error) {
	began := time.Now()
	// So that everything happens within seconds, and what piles up meets the limit.
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
	w, err := s.watchState(ctx)
	if err != nil {
		return nil, err
	}
	l, err := s.startLoad(ctx, seed, t.instances)
	if err != nil {
		return nil, err
	}
	stop := sync.OnceFunc(l.stop)
	defer stop()
	tending, leave := context.WithCancel(ctx)
	defer leave()
	tended := make(chan error, 1)
	go func() { tended <- t.supervise(tending) }()
	if err := s.runPlan(ctx, t, seed, strikes); err != nil {
		return nil, err
	}
	stop()
	r := &tortureResult{seed: seed, faults: len(t.injected), kinds: countByKind(t.injected)}
	r.table.judge("processes that did not end when they were told", joinOrNone(t.slowStops), "none", len(t.slowStops) == 0)
	if err := r.judgeDrained(ctx, s); err != nil {
		return nil, err
	}
	leave()
	if err := <-tended; err != nil {
		return nil, err
	}
	if err := t.judgeExits(&r.table); err != nil {
		return nil, err
	}
	if err := errors.Join(w.stop(ctx), l.err); err != nil {
		return nil, err
	}
	if err := r.judge(ctx, s, t, w, l); err != nil {
		return nil, err
	}
	if err := r.judgeAfterwards(ctx, s, w, l); err != nil {
		return nil, err
	}
	r.took = time.Since(began)
	return r, nil
}

// start starts all that is needed, healthy.
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
	if err := t.injectUpstreamFault(ctx, fault{}); err != nil { // and well again: with what lasts
		return err
	}
	t.instances, err = t.s.startInstances(ctx)
	return err
}

// runPlan does the whole plan. It tells each fault before it does it.
func (s *site) runPlan(ctx context.Context, t *injector, seed uint64, strikes []step) error {
	err := harness.Poll(ctx, 2*harness.Timeout, func() (bool, error) {
		st, err := s.Stats(ctx)
		return st.Arrivals > tortureLimit, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "torture of seed %d: %d strikes\n", seed, len(strikes))
	began := time.Now()
	for i, strike := range strikes {
		if err := harness.Pause(ctx, strike.pause); err != nil {
			return err
		}
		var all []string
		for _, h := range strike.faults {
			all = append(all, h.String())
		}
		fmt.Fprintf(s.Out, "  %d after %v, at %v  %s\n", i+1, strike.pause, time.Since(began).Round(time.Second), strings.Join(all, "  +  "))
		if err := t.runStep(ctx, strike); err != nil {
			return err
		}
	}
	return harness.Pause(ctx, time.Second)
}

// judgeDrained waits until all is committed and no retry is to come. A retry that was claimed
// by a process that was killed before it had asked comes round when its claim ends: that
// is made to be now, for it is minutes later than any other end.
func (r *tortureResult) judgeDrained(ctx context.Context, s *site) error {
	began := time.Now()
	behind, retrying, claimed := int64(-1), -1, 0
	err := harness.Poll(ctx, drainTimeout, func() (bool, error) {
		var err error
		if behind, err = s.Lag(ctx, schemas.High, schemas.Low); err != nil || behind > 0 {
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
	r.table.judge("records not committed, entities to be retried", fmt.Sprintf("%d, %d after %v", behind, retrying, time.Since(began).Round(time.Second)),
		fmt.Sprintf("0, 0 within %v", drainTimeout), behind == 0 && retrying == 0)
	r.table.report("  retried when a claim ended, for its process was killed", "%d", claimed)
	return nil
}

func (r *tortureResult) judge(ctx context.Context, s *site, t *injector, w *stateWatcher, l *tortureLoad) error {
	requests, letters, err := s.readRecords(ctx)
	if err != nil {
		return err
	}
	all, err := s.Arrivals(ctx)
	if err != nil || len(all) == 0 {
		return errors.Join(err, errors.New("nothing has arrived"))
	}
	st, err := s.Stats(ctx)
	if err != nil {
		return err
	}
	e, err := s.readLedger(ctx, w, letters, all)
	if err != nil {
		return err
	}
	r.table.report("reads, of them without a good answer, not made; LOW records", "%d, %d, %d; %d", l.reads.Load(), len(l.failedReads), l.skipped.Load(), l.low.Load())
	t.judgeFailedReads(&r.table, l)
	if len(t.lostBytes) > 0 {
		r.table.judge("bytes of acknowledged writes to Redis that failovers forgot", fmt.Sprint(t.lostBytes), ">0 each", slices.Min(t.lostBytes) > 0)
	}
	r.table.judgeNothingLost(e, requests, l, t.mayBeLost)
	failures, unburied := e.missingDeadLetters(requests)
	r.table.judgeNone("failures without their letters", failures, unburied)
	r.table.report("  dead letters", "%d", len(letters))
	r.table.judgeTortureContract(st)
	r.table.judgeNone("entities that went back, in so many looks", w.checks, w.regressions)
	r.table.report("  only the time, within "+maxTimeRegression.String(), "%d", w.timeRegressions)
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
