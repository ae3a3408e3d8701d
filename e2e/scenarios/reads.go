package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

const (
	readUsers        = 1_000  // number of users unless a flag names another; with 3,000, k6 needs a quarter of two cores
	characters       = 20_000 // number of stored snapshots; a part of them is stale
	floodRate        = 450    // reads of stale keys per second, as many as the upstream's quota allows
	minFloodRate     = 400    // minimum number of calls per second at which the load of refreshes (flood) counts as using the whole quota
	floodKeys        = 9_000  // number of stale keys of the load of refreshes (flood), which reads each of them once in 20 s
	floodConcurrency = 32
	coldKeys         = 2_000                  // number of keys that are read only after Redis is killed, so no cache has them
	kafkaDelay       = 500 * time.Millisecond // delay of the connection to Kafka in each direction; writing a record takes one second
)

// phase is one part of the scenario reads: users read snapshots while the installation has a fault.
type phase struct {
	scenario string // name of the scenario that runs only this phase
	name     string
	without  string                    // name of the service that the phase kills, for the k6 script; empty if it kills none
	begin    func(ctx context.Context) // function that begins the fault; it is called when all users are started
	end      func()
	after    func(ctx context.Context, t *table) error // function that adds further lines to the table; may be nil
	flooded  bool                                      // the phase must judge that the load of refreshes (flood) uses the upstream's whole quota
}

// The names of the phases of the scenario reads. Each phase can also be run as its own scenario.
const (
	phaseFlood = "flood"
	phaseKafka = "slow-kafka"
	phaseRedis = "dead-redis"
)

// reads returns the function of a scenario with the phases that the parameter "only" names. The
// scenario judges that stored snapshots are served at once in each phase: while refreshes use the
// upstream's whole quota, while Kafka takes a second for each record, and without Redis.
func reads(only ...string) func(context.Context, *site, options) error {
	return func(ctx context.Context, s *site, o options) error { return runReads(ctx, s, o, only) }
}

func runReads(ctx context.Context, s *site, o options, only []string) error {
	o.users = cmp.Or(o.users, readUsers)
	k6, err := findK6(ctx, s.Root, o.k6)
	if err != nil {
		return err
	}
	if err := s.Prepare(ctx, map[string]string{"character": o.document, "flooded": o.flood}, "--latency", "30ms-1.7s"); err != nil {
		return err
	}
	// The first read of a stale key makes the key fresh, so each read of a stale key needs another
	// key. The number of these reads is estimated: 4 % of the reads in three phases, in which each
	// user sends a read about every 4 s.
	stale := min(characters/2, max(500, o.users*o.seconds*3/4*4/100))
	now := time.Now()
	err = s.Store(ctx,
		harness.Stored{Facet: "character", Prefix: "stored-", Count: characters - stale, Checked: now},
		harness.Stored{Facet: "character", Prefix: "stale-", Count: stale, Checked: now.Add(-2 * time.Hour)},
		harness.Stored{Facet: "character", Prefix: "cold-", Count: coldKeys, Checked: now},
		harness.Stored{Facet: "flooded", Prefix: "flood-", Count: floodKeys, Checked: now.Add(-2 * time.Hour)})
	if err != nil {
		return fmt.Errorf("store snapshots of the facet \"character\": %w", err)
	}
	if _, err := s.Worker(ctx, "worker"); err != nil {
		return err
	}
	api, err := s.Query(ctx, "query", "")
	if err != nil {
		return err
	}
	// The load of refreshes (flood) uses its own query service with a freshFor of 1 ms, so that
	// every snapshot is stale.
	floodAPI, err := s.Query(ctx, "query-of-the-flood", "1ms")
	if err != nil {
		return err
	}
	f := s.flood(ctx, floodAPI)
	defer f.stop()
	if err := s.untilFlooded(ctx); err != nil {
		return err
	}

	x, err := s.expect()
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: harness.Timeout}
	r := harness.Reader{API: api + "/v1/" + s.Source, Facet: small, Client: client}
	var slow slowKafka
	kill := time.Duration(o.seconds) * time.Second / 6
	phases := []phase{
		{scenario: phaseFlood, name: "a refresh flood", flooded: true},
		{
			scenario: phaseKafka, name: "and a produce to Kafka takes 1 s",
			begin: func(context.Context) { slow = s.measureSlowKafka(ctx, r) }, // use the context of the scenario: the context of the phase ends when the last k6 user has ended, and this measurement may take longer
			end:   func() { s.Kafka.SetDelay(0) },
			after: func(_ context.Context, t *table) error { return slow.judge(t) },
		},
		{
			scenario: phaseRedis, name: "and Redis is killed", without: "redis",
			begin: func(ctx context.Context) {
				select {
				case <-time.After(kill):
					s.Redis.Kill()
					fmt.Fprintf(s.Out, "  Redis is killed\n")
				case <-ctx.Done():
				}
			},
			after: func(ctx context.Context, t *table) error { return s.judgeRedisReturn(ctx, r, t) },
		},
	}
	phases = slices.DeleteFunc(phases, func(p phase) bool { return !slices.Contains(only, p.scenario) })
	for i, p := range phases {
		fmt.Fprintf(s.Out, "phase %d of %d: %s (%d users for %d s read %s, the flood %s; %d cores)\n",
			i+1, len(phases), p.name, o.users, o.seconds, o.document, o.flood, runtime.NumCPU())
		t, err := s.runPhase(ctx, k6, p, f, o, map[string]string{
			"API": api, "SOURCE": s.Source, "PHASE": strconv.Itoa(i + 1), "WITHOUT": p.without,
			"USERS": strconv.Itoa(o.users), "SECONDS": strconv.Itoa(o.seconds),
			"STORED": strconv.Itoa(characters - stale), "STALE": strconv.Itoa(stale), "COLD": strconv.Itoa(coldKeys),
			"KILLED": strconv.FormatFloat(kill.Seconds(), 'f', 3, 64),
		})
		if err != nil {
			return err
		}
		if err := s.judgeDocuments(ctx, x, strconv.Itoa(i+1), t); err != nil {
			return err
		}
		if p.after != nil {
			if err := p.after(ctx, t); err != nil {
				return err
			}
		}
		s.addResult(p.scenario, t)
	}
	return nil
}

// runPhase runs the users during a phase and judges their responses and the upstream's log.
func (s *site) runPhase(ctx context.Context, k6 string, p phase, f *flood, o options, variables map[string]string) (*table, error) {
	var before simulator.Stats
	var statsErr error
	use, sent := s.cores(), f.sent.Load()
	var broken sync.WaitGroup
	breaking, stop := context.WithCancel(ctx)
	defer stop()
	sum, err := s.users(ctx, k6, filepath.Join(s.Root, "e2e", "scenarios", "reads.js"), variables, func() {
		before, statsErr = s.Stats(ctx)
		use, sent = s.cores(), f.sent.Load()
		if p.begin != nil {
			broken.Go(func() { p.begin(breaking) })
		}
	})
	if err != nil {
		return nil, err
	}
	after, err := s.Stats(ctx)
	if err == nil {
		err = statsErr
	}
	length := time.Since(use.began) // the time from the start until the last user has ended
	cores := use.used(s, fmt.Sprintf("k6 %.2f", sum.cpu.Seconds()/length.Seconds()))
	sent = f.sent.Load() - sent
	stop()
	broken.Wait()
	if p.end != nil {
		p.end()
	}
	if err != nil {
		return nil, err
	}
	value := func(metric, name string) float64 { return sum.Metrics[metric].Values[name] }
	t := &table{}
	t.report("requests", "%.0f, %.0f/s", value("http_reqs", "count"), value("http_reqs", "count")/float64(o.seconds))
	t.judgeThresholds(sum, "checks", "responses as expected", percent(value("checks", "rate")))
	kinds := []string{"stored", "stale", "new", "refresh", "unknown"}
	if p.without != "" {
		kinds = append(kinds, "cold")
		rejected := value("rejected", "count")
		t.judge("requests for an update rejected without Redis (503)", fmt.Sprintf("%.0f", rejected), "some", rejected > 0)
	}
	for _, kind := range kinds {
		n := value("success_"+kind, "passes") + value("success_"+kind, "fails")
		if n == 0 {
			t.judge("  "+kind+" keys", "none", "some", false)
			continue
		}
		t.judgeThresholds(sum, "success_"+kind, "  "+kind+" keys", fmt.Sprintf("%s of %.0f", percent(value("success_"+kind, "rate")), n))
	}
	const stored = "took_whole"
	t.judgeThresholds(sum, stored, "latency of stored reads with a body, p95", fmt.Sprintf("%.1f ms", value(stored, "p(95)")))
	t.markTarget(readP95)
	t.report("  p50, p99, max", "%.1f, %.1f, %.1f ms", value(stored, "med"), value(stored, "p(99)"), value(stored, "max"))
	for _, kind := range []string{"new", "refresh", "unknown"} {
		t.report("  latency of "+kind+", p95", "%.1f ms", value("took_"+kind, "p(95)"))
	}
	rate := perSecond(after.Arrivals-before.Arrivals, length)
	calls := fmt.Sprintf("%.0f/s, of %.0f/s requested by the flood", rate, perSecond(int(sent), length))
	if p.flooded {
		t.judge("calls to the upstream", calls, fmt.Sprintf(">=%d/s", minFloodRate), rate >= minFloodRate)
	} else {
		t.report("calls to the upstream", "%s", calls)
	}
	t.judge("max calls in a sliding second, rejected calls", fmt.Sprintf("%d, %d", after.MaxInSlidingSecond, after.Refused), "<=500, 0",
		after.MaxInSlidingSecond <= 500 && after.Refused == 0)
	t.note = "cores: " + cores + "; without PostgreSQL and Kafka"
	return t, nil
}
