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

// drainPatience is how long it may take until everything has ended after the last
// fault: breakers rest for half a minute, stops are probed after pauses that double,
// and what had piled up goes out at the rate that the upstream allows.
const drainPatience = 4 * time.Minute

// tortured is what became of a run.
type tortured struct {
	seed       uint64
	faults     int
	kinds      map[string]int
	duplicates int
	took       time.Duration
	table      table
}

// rows is the run in a few lines: what it was, and how it is judged.
func (r *tortured) rows() []line {
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
	r, err := s.torture(ctx, o.seed, plan(o.seed, o.faults))
	if err != nil {
		return err
	}
	s.judged("torture", &table{lines: r.rows(), note: r.table.note, missed: r.table.missed})
	return nil
}

func (s *site) torture(ctx context.Context, seed uint64, strikes []strike) (*tortured, error) {
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
	t := &torturer{s: s}
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	w, err := s.witness(ctx)
	if err != nil {
		return nil, err
	}
	l, err := s.load(ctx, seed, t.cast)
	if err != nil {
		return nil, err
	}
	stop := sync.OnceFunc(l.stop)
	defer stop()
	tending, leave := context.WithCancel(ctx)
	defer leave()
	tended := make(chan error, 1)
	go func() { tended <- t.tend(tending) }()
	if err := s.inflict(ctx, t, seed, strikes); err != nil {
		return nil, err
	}
	stop()
	r := &tortured{seed: seed, faults: len(t.done), kinds: tally(t.done)}
	r.table.judge("processes that did not end when they were told", listed(t.slow), "none", len(t.slow) == 0)
	if err := r.drained(ctx, s); err != nil {
		return nil, err
	}
	leave()
	if err := <-tended; err != nil {
		return nil, err
	}
	if err := t.unasked(&r.table); err != nil {
		return nil, err
	}
	if err := errors.Join(w.stop(ctx), l.err); err != nil {
		return nil, err
	}
	if err := r.judge(ctx, s, t, w, l); err != nil {
		return nil, err
	}
	if err := r.afterwards(ctx, s, w, l); err != nil {
		return nil, err
	}
	r.took = time.Since(began)
	return r, nil
}

// begin starts all that is needed, healthy.
func (t *torturer) begin(ctx context.Context) (err error) {
	t.s.Redis.Kill()
	if t.s.Redis, err = t.s.keeper(ctx, t.s.Redis.Address); err != nil {
		return err
	}
	port, err := t.s.FreePort(ctx)
	if err != nil {
		return err
	}
	if err := t.replicate(ctx, net.JoinHostPort("127.0.0.1", port)); err != nil {
		return err
	}
	if err := t.hurtUpstream(ctx, hurt{}); err != nil { // and well again: with what lasts
		return err
	}
	t.cast, err = t.s.cast(ctx)
	return err
}

// inflict does the whole plan. It tells each fault before it does it.
func (s *site) inflict(ctx context.Context, t *torturer, seed uint64, strikes []strike) error {
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
		for _, h := range strike.hurts {
			all = append(all, h.String())
		}
		fmt.Fprintf(s.Out, "  %d after %v, at %v  %s\n", i+1, strike.pause, time.Since(began).Round(time.Second), strings.Join(all, "  +  "))
		if err := t.strike(ctx, strike); err != nil {
			return err
		}
	}
	return harness.Pause(ctx, time.Second)
}

// drained waits until all is committed and no retry is to come. A retry that was claimed
// by a process that was killed before it had asked comes round when its claim ends: that
// is made to be now, for it is minutes later than any other end.
func (r *tortured) drained(ctx context.Context, s *site) error {
	began := time.Now()
	behind, retrying, claimed := int64(-1), -1, 0
	err := harness.Poll(ctx, drainPatience, func() (bool, error) {
		var err error
		if behind, err = s.Lag(ctx, schemas.High, schemas.Low); err != nil || behind > 0 {
			return false, err
		}
		retrying, err = s.Number(ctx, "SELECT count(*) FROM update_status WHERE source = $1 AND state = 'RETRYING'", s.Source)
		if err == nil && retrying > 0 && claimed == 0 && time.Since(began) > lockLife+5*time.Second {
			claimed, err = s.endClaims(ctx)
		}
		return retrying == 0, err
	})
	if err != nil {
		return err
	}
	r.table.judge("records not committed, entities to be retried", fmt.Sprintf("%d, %d after %v", behind, retrying, time.Since(began).Round(time.Second)),
		fmt.Sprintf("0, 0 within %v", drainPatience), behind == 0 && retrying == 0)
	r.table.figure("  retried when a claim ended, for its process was killed", "%d", claimed)
	return nil
}

func (r *tortured) judge(ctx context.Context, s *site, t *torturer, w *witness, l *load) error {
	requests, letters, err := s.requestsAndLetters(ctx)
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
	e, err := s.ends(ctx, w, letters, all)
	if err != nil {
		return err
	}
	r.table.figure("reads, of them without a good answer, not made; LOW records", "%d, %d, %d; %d", l.reads.Load(), len(l.refused), l.left.Load(), l.low.Load())
	t.refusals(&r.table, l)
	if len(t.forgot) > 0 {
		r.table.judge("bytes of acknowledged writes to Redis that failovers forgot", fmt.Sprint(t.forgot), ">0 each", slices.Min(t.forgot) > 0)
	}
	r.table.nothingLost(e, requests, l, t.doubtful)
	failures, unburied := e.unburied(requests)
	r.table.none("failures without their letters", failures, unburied)
	r.table.figure("  dead letters", "%d", len(letters))
	r.table.contract(st)
	r.table.none("entities that went back, in so many looks", w.looks, w.wrong)
	r.table.figure("  only the time, within "+crossing.String(), "%d", w.passed)
	payloads, err := s.payloads(ctx, e.stored)
	if err != nil {
		return err
	}
	if err := r.table.contents(ctx, s, e.stored, payloads, l.changes); err != nil {
		return err
	}
	if err := r.table.answers(ctx, s, l); err != nil {
		return err
	}
	r.duplicates = r.table.duplicates(all, requests, t.done)
	return nil
}
