package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/simulator"
)

const (
	characters = 20_000 // that are stored; some of them stale
	floodRate  = 450    // refreshes asked for in a second: all that the upstream may be asked
	floodLeast = 400    // calls in a second, or there was no flood
	floodKeys  = 9_000  // visited in 20 s
	floodHands = 32
	kafkaDelay = 500 * time.Millisecond // each way: a produce takes a second
)

// phase is something that happens to the site while it is read.
type phase struct {
	scenario string // its name where it is played alone
	name     string
	without  string                    // what the script is told is not there
	begin    func(ctx context.Context) // when all users are there
	end      func()
	flooded  bool // the upstream's budget is to be used up
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
	return func(ctx context.Context, s *site, o options) error { return playReads(ctx, s, o, only) }
}

func playReads(ctx context.Context, s *site, o options, only []string) error {
	k6, err := findK6(ctx, o.k6)
	if err != nil {
		return err
	}
	if err := s.prepare(ctx, map[string]string{"character": o.document, "flooded": o.flood}, "--latency", "30ms-1.7s"); err != nil {
		return err
	}
	// Each is visited about once: those that were are fresh.
	stale := min(characters/2, max(500, o.users*o.seconds*3/4*4/100))
	now := time.Now()
	err = s.seed(ctx,
		stored{"character", "stored-", characters - stale, now},
		stored{"character", "stale-", stale, now.Add(-2 * time.Hour)},
		stored{"flooded", "flood-", floodKeys, now.Add(-2 * time.Hour)})
	if err != nil {
		return fmt.Errorf("store the characters: %w", err)
	}
	if _, err := s.worker(ctx, "worker"); err != nil {
		return err
	}
	api, err := s.query(ctx, "query", "")
	if err != nil {
		return err
	}
	// The flood comes in at a door of its own, to which everything is stale.
	door, err := s.query(ctx, "query-of-the-flood", "1ms")
	if err != nil {
		return err
	}
	f := s.flood(ctx, door)
	defer f.stop()
	if err := s.untilFlooded(ctx); err != nil {
		return err
	}

	phases := []phase{
		{scenario: phaseFlood, name: "a refresh flood", flooded: true},
		{
			scenario: phaseKafka, name: "and a produce to Kafka takes 1 s",
			begin: func(ctx context.Context) { s.slowDown(ctx) },
			end:   func() { s.kafka.slow(0) },
		},
		{
			scenario: phaseRedis, name: "and Redis is killed", without: "redis",
			begin: func(ctx context.Context) {
				select {
				case <-time.After(time.Duration(o.seconds) * time.Second / 6):
					s.redis.kill()
					fmt.Fprintf(s.out, "  Redis is dead\n")
				case <-ctx.Done():
				}
			},
		},
	}
	phases = slices.DeleteFunc(phases, func(p phase) bool { return !slices.Contains(only, p.scenario) })
	for i, p := range phases {
		fmt.Fprintf(s.out, "phase %d of %d: %s (%d users for %d s read %s, the flood %s; %d cores)\n",
			i+1, len(phases), p.name, o.users, o.seconds, o.document, o.flood, runtime.NumCPU())
		t, err := s.play(ctx, k6, p, f, o, map[string]string{
			"API": api, "SOURCE": s.source, "PHASE": strconv.Itoa(i + 1), "WITHOUT": p.without,
			"USERS": strconv.Itoa(o.users), "SECONDS": strconv.Itoa(o.seconds),
			"STORED": strconv.Itoa(characters - stale), "STALE": strconv.Itoa(stale),
		})
		if err != nil {
			return err
		}
		s.judged(p.scenario, t)
	}
	return nil
}

// slowDown slows the way to Kafka and says how slow it is.
func (s *site) slowDown(ctx context.Context) {
	s.kafka.slow(kafkaDelay)
	took, err := s.kafka.roundTrip(ctx)
	if err != nil {
		fmt.Fprintf(s.out, "  Kafka does not answer: %v\n", err)
		return
	}
	fmt.Fprintf(s.out, "  a question to Kafka takes %v\n", took.Round(time.Millisecond))
}

// play has the users come, and judges what they and the upstream saw.
func (s *site) play(ctx context.Context, k6 string, p phase, f *flood, o options, variables map[string]string) (*table, error) {
	var before simulator.Stats
	var statsErr error
	use, asked := s.cores(), f.asked.Load()
	var broken sync.WaitGroup
	breaking, stop := context.WithCancel(ctx)
	defer stop()
	sum, err := s.users(ctx, k6, "scenarios/reads.js", variables, func() {
		before, statsErr = s.stats(ctx)
		use, asked = s.cores(), f.asked.Load()
		if p.begin != nil {
			broken.Go(func() { p.begin(breaking) })
		}
	})
	if err != nil {
		return nil, err
	}
	after, err := s.stats(ctx)
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
	t.figure("requests", "%.0f, %.0f/s", value("http_reqs", "count"), value("http_reqs", "count")/float64(o.seconds))
	t.limits(sum, "checks", "answered as they should be", percent(value("checks", "rate")))
	for _, kind := range []string{"stored", "stale", "new", "refresh", "unknown"} {
		n := value("success_"+kind, "passes") + value("success_"+kind, "fails")
		t.limits(sum, "success_"+kind, "  "+kind+" keys", fmt.Sprintf("%s of %.0f", percent(value("success_"+kind, "rate")), n))
	}
	const stored = "http_req_duration{stored:yes}"
	t.limits(sum, stored, "p95 of reads of stored keys", fmt.Sprintf("%.1f ms", value(stored, "p(95)")))
	if p.flooded {
		t.target(readP95)
	}
	t.figure("  median, p99, longest", "%.1f, %.1f, %.1f ms", value(stored, "med"), value(stored, "p(99)"), value(stored, "max"))
	for _, kind := range []string{"new", "refresh", "unknown"} {
		t.figure("  p95 of "+kind, "%.1f ms", value("took_"+kind, "p(95)"))
	}
	rate := perSecond(after.Arrivals-before.Arrivals, length)
	calls := fmt.Sprintf("%.0f/s, of %.0f/s asked for by the flood", rate, perSecond(int(asked), length))
	if p.flooded {
		t.judge("calls to the upstream", calls, fmt.Sprintf(">=%d/s", floodLeast), rate >= floodLeast)
	} else {
		t.figure("calls to the upstream", "%s", calls)
	}
	t.judge("most calls in a sliding second, refused", fmt.Sprintf("%d, %d", after.MaxInSlidingSecond, after.Refused), "<=500, 0",
		after.MaxInSlidingSecond <= 500 && after.Refused == 0)
	t.note = "cores: " + cores + "; PostgreSQL and Kafka beside them"
	return t, nil
}

func (s *site) stats(ctx context.Context) (st simulator.Stats, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.upstream+"/_stats", http.NoBody)
	if err != nil {
		return st, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return st, err
	}
	defer func() { _ = resp.Body.Close() }()
	return st, json.NewDecoder(resp.Body).Decode(&st)
}

// untilFlooded waits until the upstream is called as often as it may be; on a machine
// that is too busy for that it goes on, and the phases judge what was reached.
func (s *site) untilFlooded(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, most, began := 0, 0, time.Now()
	for most < floodLeast && time.Since(began) < patience {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		st, err := s.stats(ctx)
		if err != nil {
			return err
		}
		most = max(most, st.Arrivals-last)
		last = st.Arrivals
	}
	fmt.Fprintf(s.out, "the flood is there, after %v: %d calls a second\n\n", time.Since(began).Round(time.Second), most)
	return nil
}

// flood reads stale keys at a rate, by readers that have them already: each read asks
// for a refresh, and costs no body.
type flood struct {
	asked  atomic.Int64
	cancel context.CancelFunc
	hands  sync.WaitGroup
}

func (s *site) flood(ctx context.Context, door string) *flood {
	f := &flood{}
	ctx, f.cancel = context.WithCancel(ctx)
	next := make(chan int, floodHands)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: floodHands}, Timeout: patience}
	f.hands.Go(func() {
		defer close(next)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		began := time.Now()
		for n := 0; ; {
			for ; n < int(time.Since(began).Seconds()*floodRate); n++ {
				select {
				case next <- n % floodKeys:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	for range floodHands {
		f.hands.Go(func() {
			for i := range next {
				if err := ask(ctx, client, fmt.Sprintf("%s/v1/%s/flooded/flood-%d", door, s.source, i)); err == nil {
					f.asked.Add(1)
				}
			}
		})
	}
	return f
}

func ask(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("If-None-Match", "*")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func (f *flood) stop() {
	f.cancel()
	f.hands.Wait()
}
