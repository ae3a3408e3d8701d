package main

import (
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
	characters       = 20_000 // that are stored; some of them stale
	floodRate        = 450    // refreshes asked for in a second: all that the upstream may be asked
	minFloodRate     = 400    // calls in a second, or there was no flood
	floodKeys        = 9_000  // visited in 20 s
	floodConcurrency = 32
	coldKeys         = 2_000                  // that nobody reads before Redis is dead
	kafkaDelay       = 500 * time.Millisecond // each way: a produce takes a second
)

// phase is something that happens to the site while it is read.
type phase struct {
	scenario string // its name where it is played alone
	name     string
	without  string                    // what the script is told is not there
	begin    func(ctx context.Context) // when all users are there
	end      func()
	after    func(ctx context.Context, t *table) error // judges more
	flooded  bool                                      // the upstream's budget is to be used up
}

// The phases of reads by their names as scenarios.
const (
	phaseFlood = "flood"
	phaseKafka = "slow-kafka"
	phaseRedis = "dead-redis"
)

// reads judges whether what is stored is served at once whatever else happens: while
// all of the upstream's budget goes into refreshes, while Kafka takes a second for a
// record, and while there is no Redis.
func reads(only ...string) func(context.Context, *site, options) error {
	return func(ctx context.Context, s *site, o options) error { return runReads(ctx, s, o, only) }
}

func runReads(ctx context.Context, s *site, o options, only []string) error {
	k6, err := findK6(ctx, s.Root, o.k6)
	if err != nil {
		return err
	}
	if err := s.Prepare(ctx, map[string]string{"character": o.document, "flooded": o.flood}, "--latency", "30ms-1.7s"); err != nil {
		return err
	}
	// Each is visited about once: those that were are fresh.
	stale := min(characters/2, max(500, o.users*o.seconds*3/4*4/100))
	now := time.Now()
	err = s.Store(ctx,
		harness.Stored{Facet: "character", Prefix: "stored-", Count: characters - stale, Checked: now},
		harness.Stored{Facet: "character", Prefix: "stale-", Count: stale, Checked: now.Add(-2 * time.Hour)},
		harness.Stored{Facet: "character", Prefix: "cold-", Count: coldKeys, Checked: now},
		harness.Stored{Facet: "flooded", Prefix: "flood-", Count: floodKeys, Checked: now.Add(-2 * time.Hour)})
	if err != nil {
		return fmt.Errorf("store the characters: %w", err)
	}
	if _, err := s.Worker(ctx, "worker"); err != nil {
		return err
	}
	api, err := s.Query(ctx, "query", "")
	if err != nil {
		return err
	}
	// The flood comes in at a door of its own, to which everything is stale.
	door, err := s.Query(ctx, "query-of-the-flood", "1ms")
	if err != nil {
		return err
	}
	f := s.flood(ctx, door)
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
			begin: func(context.Context) { slow = s.measureSlowKafka(ctx, r) }, // to its end, also if that is after the users'
			end:   func() { s.Kafka.SetDelay(0) },
			after: func(_ context.Context, t *table) error { return slow.judge(t) },
		},
		{
			scenario: phaseRedis, name: "and Redis is killed", without: "redis",
			begin: func(ctx context.Context) {
				select {
				case <-time.After(kill):
					s.Redis.Kill()
					fmt.Fprintf(s.Out, "  Redis is dead\n")
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

// runPhase has the users come, and judges what they and the upstream saw.
func (s *site) runPhase(ctx context.Context, k6 string, p phase, f *flood, o options, variables map[string]string) (*table, error) {
	var before simulator.Stats
	var statsErr error
	use, asked := s.cores(), f.asked.Load()
	var broken sync.WaitGroup
	breaking, stop := context.WithCancel(ctx)
	defer stop()
	sum, err := s.users(ctx, k6, filepath.Join(s.Root, "e2e", "scenarios", "reads.js"), variables, func() {
		before, statsErr = s.Stats(ctx)
		use, asked = s.cores(), f.asked.Load()
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
	length := time.Since(use.began) // with the last users, who think to the end
	cores := use.used(s, fmt.Sprintf("k6 %.2f", sum.cpu.Seconds()/length.Seconds()))
	asked = f.asked.Load() - asked
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
	t.judgeThresholds(sum, "checks", "answered as they should be", percent(value("checks", "rate")))
	kinds := []string{"stored", "stale", "new", "refresh", "unknown"}
	if p.without != "" {
		kinds = append(kinds, "cold")
		refused := value("refused", "count")
		t.judge("what is to be queued without Redis is refused (503)", fmt.Sprintf("%.0f", refused), "some", refused > 0)
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
	t.judgeThresholds(sum, stored, "p95 of reads of stored keys that bring a body", fmt.Sprintf("%.1f ms", value(stored, "p(95)")))
	t.markTarget(readP95)
	t.report("  median, p99, longest", "%.1f, %.1f, %.1f ms", value(stored, "med"), value(stored, "p(99)"), value(stored, "max"))
	for _, kind := range []string{"new", "refresh", "unknown"} {
		t.report("  p95 of "+kind, "%.1f ms", value("took_"+kind, "p(95)"))
	}
	rate := perSecond(after.Arrivals-before.Arrivals, length)
	calls := fmt.Sprintf("%.0f/s, of %.0f/s asked for by the flood", rate, perSecond(int(asked), length))
	if p.flooded {
		t.judge("calls to the upstream", calls, fmt.Sprintf(">=%d/s", minFloodRate), rate >= minFloodRate)
	} else {
		t.report("calls to the upstream", "%s", calls)
	}
	t.judge("most calls in a sliding second, refused", fmt.Sprintf("%d, %d", after.MaxInSlidingSecond, after.Refused), "<=500, 0",
		after.MaxInSlidingSecond <= 500 && after.Refused == 0)
	t.note = "cores: " + cores + "; PostgreSQL and Kafka beside them"
	return t, nil
}
