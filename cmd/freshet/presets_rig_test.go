package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/presets"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator/contract"
	"github.com/freshet/freshet/source"
)

// preset returns a preset as it is shipped.
func preset(t *testing.T, name string) SourceConfig {
	t.Helper()
	var c SourceConfig
	if err := yaml.UnmarshalWithOptions(presets.All()[name], &c, yaml.Strict()); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return c
}

// accelerated is a source whose upstream's time runs so much faster: windows of ten seconds
// and more are shorter, and what takes as long to fill is filled faster.
func accelerated(c SourceConfig, speed float64) SourceConfig {
	const short = 10 * time.Second
	policies := append([]limiter.Policy{}, c.Quota.Policies...)
	for i, p := range policies {
		if window := time.Duration(p.Window); window >= short {
			policies[i].Window = limiter.Window(float64(window) / speed)
		}
		if p.Restore > 0 && float64(p.Limit)/float64(p.Restore) >= short.Seconds() {
			policies[i].Restore *= limiter.Rate(speed)
		}
	}
	c.Quota.Policies = policies
	c.Quota.Backoff = time.Duration(float64(c.Quota.Backoff) / speed)
	rules := append([]source.Rule{}, c.Rules...)
	for i := range rules {
		rules[i].Wait = time.Duration(float64(rules[i].Wait) / speed)
	}
	c.Rules = rules
	// A place is kept for as long as a call may take: nobody waits long for one here.
	c.Timeout = 3 * time.Second
	for i := range policies {
		policies[i].Lease = 0
	}
	return c
}

// presetRun is a preset that calls an upstream which enforces its contract.
type presetRun struct {
	*testing.T
	config   SourceConfig
	upstream *contract.Upstream
	limiters []*limiter.Limiter
	sources  []*source.Source
	ctx      context.Context
	stop     context.CancelFunc
	closing  []func()
	wg       sync.WaitGroup
	stood    atomic.Int64 // how often this process stood still for longer than is allowed for
	good     atomic.Int64
	mu       sync.Mutex
	bad      map[string]int
}

// startPresetRun has so many processes of their own limiters and connections call on and on, with
// so many callers a lane, for keys of that form.
func startPresetRun(t *testing.T, name string, c SourceConfig, o contract.Options, secrets map[string]string, processes int) *presetRun {
	t.Helper()
	id, address := servicetest.Name(name), servicetest.RedisAddress(t) // first: without one the test ends here
	upstream, err := contract.New(name, o)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(upstream)
	base, err := url.Parse(c.BaseURL)
	if err != nil {
		t.Fatal(err)
	}
	c.BaseURL = server.URL + base.Path
	ctx, stop := context.WithCancel(t.Context())
	a := &presetRun{T: t, config: c, upstream: upstream, ctx: ctx, stop: stop, closing: []func(){server.Close}, bad: map[string]int{}}
	a.wg.Go(a.watch)
	for n := range processes {
		rdb := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, ContextTimeoutEnabled: true})
		a.closing = append(a.closing, func() { _ = rdb.Close() })
		l, err := limiter.New(id, c.quota(), limiter.Deps{
			Redis: rdb, Process: fmt.Sprint(n), Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		})
		if err != nil {
			t.Fatal(err)
		}
		s, err := source.New(id, c.Config, secrets, 256)
		if err != nil {
			t.Fatal(err)
		}
		a.closing = append(a.closing, s.Close)
		a.limiters, a.sources = append(a.limiters, l), append(a.sources, s)
		a.wg.Go(func() { _ = l.Run(ctx) })
	}
	return a
}

// end ends all calls.
func (a *presetRun) end() {
	a.stop()
	a.wg.Wait()
	for _, f := range slices.Backward(a.closing) {
		f()
	}
}

// watch counts how often a timer is late by more than half of what quotas allow for.
func (a *presetRun) watch() {
	const every, allowed = 2 * time.Millisecond, 5 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-a.ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(last) > every+allowed {
			a.stood.Add(1)
		}
		last = now
	}
}

// call has so many callers of each process call on and on.
func (a *presetRun) call(callers int, lane schemas.Lane, facet string, key func() string, params map[string]string) {
	for i, l := range a.limiters {
		for range callers {
			a.wg.Go(func() {
				for a.ctx.Err() == nil {
					a.one(a.sources[i], l, lane, source.Request{Facet: facet, Key: key(), Params: params})
				}
			})
		}
	}
}

func (a *presetRun) one(s *source.Source, l *limiter.Limiter, lane schemas.Lane, r source.Request) {
	plan, err := s.Plan(r)
	if err != nil {
		a.Error(err)
		return
	}
	answers, err := s.Fetch(a.ctx, plan, presetPermits{permits{l}, lane})
	if err != nil {
		return
	}
	o := s.Read(answers, time.Now())
	if o.Class == source.OK || o.Class == source.NotModified {
		a.good.Add(1)
		if o.Content != nil {
			o.Content.Release()
		}
		return
	}
	a.mu.Lock()
	a.bad[fmt.Sprintf("%s: %v %.80s", o.Class, o.Err, o.Sample)]++
	a.mu.Unlock()
}

// presetPermits are those of one lane, without records to be numbered.
type presetPermits struct {
	permits
	lane schemas.Lane
}

func (p presetPermits) Acquire(ctx context.Context, c source.Call) (source.Permit, error) {
	permit, err := p.permits.Acquire(ctx, p.lane, c)
	if err != nil {
		return nil, err
	}
	return &presetPermit{of: p, call: c, limiterPermit: permit.(limiterPermit)}, nil
}

type presetPermit struct {
	limiterPermit
	of   presetPermits
	call source.Call
}

func (p *presetPermit) Spend(ctx context.Context) error {
	for !p.limiterPermit.Spend() {
		again, err := p.of.Reacquire(ctx, p.of.lane, p.call)
		if err != nil {
			return err
		}
		p.limiterPermit = again.(limiterPermit)
	}
	return nil
}

func (p *presetPermit) Finished(e source.CallResult) { p.ReportEnd(e) }

// keys returns one of n keys at a time, numbers all.
func keys(n int) func() string {
	return func() string { return fmt.Sprint(100 + rand.IntN(n)) }
}

var (
	saturate = flag.Duration("saturate", 0, "saturate each preset for this long; 0 skips these tests")
	usedPart = flag.Float64("used", 1, "part of the wanted use of a budget that this machine must reach, above 0 and at most 1")
)

// fullSaturation is how long a run of presets takes that leaves none of them out.
const fullSaturation = time.Minute

// saturated returns how long a preset is saturated. The test is skipped without -saturate,
// because a busy machine proves nothing, and in a short run also if its window takes longer
// to be warm than the run does.
func saturated(t *testing.T, warm time.Duration) time.Duration {
	t.Helper()
	if *saturate <= 0 {
		t.Skipf("%s takes minutes and needs a Redis: make presets, or go test -run '^%s$' -parallel 20 ./cmd/freshet -saturate=60s -used=0.95", t.Name(), t.Name())
	}
	if *saturate < fullSaturation && warm > *saturate {
		t.Skipf("%s takes %v to be warm, and -saturate=%v is shorter: run it with -saturate=%v", t.Name(), warm, *saturate, fullSaturation)
	}
	return max(*saturate, warm)
}

// partOfUse returns the part of the wanted use of a budget that this machine must reach.
// That no call is refused holds on any machine.
func partOfUse(t *testing.T) float64 {
	t.Helper()
	if *usedPart <= 0 || *usedPart > 1 {
		t.Fatalf("-used=%v: want a part above 0 and at most 1, such as 0.9", *usedPart)
	}
	return *usedPart
}
