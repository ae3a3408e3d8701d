package app

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
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

// preset returns an unchanged preset.
func preset(t *testing.T, name string) SourceConfig {
	t.Helper()
	var c SourceConfig
	if err := yaml.UnmarshalWithOptions(presets.All()[name], &c, yaml.Strict()); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return c
}

// baseOf returns the preset that a preset changes, or the preset itself. Both have the same upstream.
func baseOf(name string) string {
	if _, base, changes := strings.Cut(string(presets.All()[name]), "\npreset: "); changes {
		base, _, _ = strings.Cut(base, "\n")
		return base
	}
	return name
}

// accelerated returns a source for an upstream whose time runs faster by the factor speed. Windows
// of ten seconds or longer become shorter by that factor. Token buckets that need ten seconds or
// longer to refill are refilled faster by that factor.
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
	// The lease of a slot in flight is derived from the call timeout. A short timeout keeps the
	// tests fast.
	c.Timeout = 3 * time.Second
	for i := range policies {
		policies[i].Lease = 0
	}
	return c
}

// presetRun runs a preset against a simulated upstream that enforces the contract.
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
	stood    atomic.Int64 // number of pauses of this process that were longer than 5 ms; see watch
	good     atomic.Int64
	mu       sync.Mutex
	bad      map[string]int
}

// startPresetRun starts a limiter and a source for each of several simulated processes. The callers
// are started later, by the method presetRun.call.
func startPresetRun(t *testing.T, name string, c SourceConfig, o contract.Options, secrets map[string]string, processes int) *presetRun {
	t.Helper()
	id, address := servicetest.Name(name), servicetest.RedisAddress(t) // this call comes first, because it skips the test if there is no Redis
	upstream, err := contract.New(baseOf(name), o)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(upstream)
	host := hostOf(c.BaseURL)
	if err := replaceBaseURLs(&c.Config, func(base *url.URL) {
		if base.Scheme = "http"; base.Host == host {
			base.Host = server.Listener.Addr().String()
		} else { // this host has limits of its own, so the source for it needs another name
			base.Host = strings.Replace(server.Listener.Addr().String(), "127.0.0.1", "localhost", 1)
		}
	}); err != nil {
		t.Fatal(err)
	}
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
		fixed := secrets
		if len(renewing(c)) > 0 {
			fixed = nil
		}
		s, err := source.New(id, c.Config, fixed, 256)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range renewing(c) {
			if err := s.SetToken(one.Name, secrets[""], 1, time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		a.closing = append(a.closing, s.Close)
		a.limiters, a.sources = append(a.limiters, l), append(a.sources, s)
		a.wg.Go(func() { _ = l.Run(ctx) })
	}
	return a
}

// end stops all callers.
func (a *presetRun) end() {
	a.stop()
	a.wg.Wait()
	for _, f := range slices.Backward(a.closing) {
		f()
	}
}

// watch counts pauses of this process: timer ticks that are more than 5 ms late. 5 ms is half of the
// jitter (10 ms) that quotas allow for.
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

// call starts a number of callers in each simulated process. Each caller sends one call after
// another without a pause.
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

// presetPermits adapts a limiter to source.Permits, for one lane.
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

// keys returns a function that returns one of n random numeric keys of the facet.
func keys(facet string, n int) func() string {
	suffix := ""
	if facet == "account" {
		suffix = "#KR1" // a Riot ID has a name and a suffix
	}
	return func() string { return fmt.Sprint(100+rand.IntN(n), suffix) }
}

var (
	saturate = flag.Duration("saturate", 0, "saturate each preset for this long; 0 skips these tests")
	usedPart = flag.Float64("used", 1, "part of the wanted use of a budget that this machine must reach, above 0 and at most 1")
)

// fullSaturation is the shortest duration of the flag -saturate with which the tests skip no preset.
const fullSaturation = time.Minute

// saturated returns how long to saturate a preset: the flag -saturate or, if it is longer, the time
// `warm` until the calls fill the policy's window. It skips the test if the flag is not set: the test
// takes minutes, and other load on the machine falsifies the result. It also skips the test if the
// flag is shorter than fullSaturation and shorter than `warm`.
func saturated(t *testing.T, warm time.Duration) time.Duration {
	t.Helper()
	if *saturate <= 0 {
		t.Skipf("%s takes minutes and needs a Redis: make presets, or go test -run '^%s$' -parallel 20 ./app -saturate=60s -used=0.95", t.Name(), t.Name())
	}
	if *saturate < fullSaturation && warm > *saturate {
		t.Skipf("%s needs %v to fill the window of its policy, and -saturate=%v is shorter: run it with -saturate=%v", t.Name(), warm, *saturate, fullSaturation)
	}
	return max(*saturate, warm)
}

// partOfUse returns the fraction of the expected quota usage that this machine must reach. Slow
// machines can set a low fraction; the upstream must refuse no call on any machine.
func partOfUse(t *testing.T) float64 {
	t.Helper()
	if *usedPart <= 0 || *usedPart > 1 {
		t.Fatalf("-used: got %v, want a part above 0 and at most 1, such as 0.9", *usedPart)
	}
	return *usedPart
}
