package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

// saturatedQuota is the quota of the reference source (preset nexon).
const saturatedQuota = `{policies: [{name: second, limit: 500, window: 1s, target: 450, highReserve: 100}]}`

// The calls a second that saturatedQuota has for LOW while HIGH makes none, and the calls of HIGH in BenchmarkRuns.
const lowPerSecond, highPerSecond = 350, 60

// BenchmarkRuns saturates LOW with the requests of runs. First it measures which part of LOW's budget the runs use.
// Then calls of HIGH arrive at random times, for the source of the runs and at the same times for a source with the
// same quota and no run. It reports the p99 of the waits for permits of both, and their ratio.
func BenchmarkRuns(b *testing.B) {
	const alone, beside = 15 * time.Second, 40 * time.Second
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"path":%q}`, r.URL.Path)
	}))
	b.Cleanup(server.Close)
	f := newSite(b)
	f.prepareSource(fmt.Sprintf(`baseURL: %s
quota: %s
facets:
  detail:
    documents: {detail: {path: "/details/{key}"}}
runs:
  details: {steps: {detail: {}}, parallel: 128}
`, server.URL, saturatedQuota))
	c, err := client.New(f.query(), client.Options{})
	f.check(err)
	f.worker()
	saturated, idle := f.caller(f.Source), f.caller(f.Source+"-idle")
	next := 0
	for b.Loop() {
		first, steps := calls.Load(), 0
		var all []string
		for steps < int((alone+beside).Seconds()+5)*lowPerSecond {
			keys := make([]string, 10_000)
			for i := range keys {
				next++
				keys[i] = strconv.Itoa(next)
			}
			run, _, err := c.StartRun(b.Context(), f.Source, "details", client.RunKeys{Keys: keys}, "")
			f.check(err)
			all, steps = append(all, run.ID), steps+len(keys)
		}
		f.until(timeout, "a steady rate", func() bool { return calls.Load() > first+2*lowPerSecond })
		before, began := calls.Load(), time.Now()
		passUntil(b.Context(), began.Add(alone))
		used := float64(calls.Load()-before) / time.Since(began).Seconds() / lowPerSecond
		waits := highWaits(b, beside, saturated, idle)
		if n := int(calls.Load() - first); n >= steps {
			b.Fatalf("calls of the runs: got all %d before the end of the measurement, want some after it", n)
		}
		for _, id := range all {
			ended, err := c.WaitRun(b.Context(), id, nil)
			f.check(err)
			equal(b, "state", ended.State, client.RunCompleted)
		}
		b.ReportMetric(100*used, "%-used")
		b.ReportMetric(p99(waits[0]), "ms-p99-beside-runs")
		b.ReportMetric(p99(waits[1]), "ms-p99-without")
		b.ReportMetric(p99(waits[0])/p99(waits[1]), "p99-ratio")
	}
}

// caller returns a limiter of a source, as another process of the source has it.
func (f *fleet) caller(source string) *limiter.Limiter {
	f.Helper()
	var quota limiter.Config
	f.check(yaml.Unmarshal([]byte(saturatedQuota), &quota))
	quota.Lease = time.Minute
	rdb := redis.NewClient(&redis.Options{Addr: f.Redis.Address, ContextTimeoutEnabled: true})
	l, err := limiter.New(source, quota, limiter.Deps{Redis: rdb, Process: "high", Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	f.check(err)
	ctx, stop := context.WithCancel(context.WithoutCancel(f.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = l.Run(ctx) })
	f.OnClose(func() {
		stop()
		running.Wait()
		_ = rdb.Close()
	})
	return l
}

// highWaits acquires permits of HIGH at random times, from all limiters at the same times. It returns the waits by limiter.
func highWaits(b *testing.B, length time.Duration, limiters ...*limiter.Limiter) [][]time.Duration {
	waits := make([][]time.Duration, len(limiters))
	var mu sync.Mutex
	var wg sync.WaitGroup
	call := func(i int) {
		began := time.Now()
		p, err := limiters[i].Acquire(b.Context(), schemas.High, limiter.Call{Endpoint: "detail/detail", Method: http.MethodGet})
		for err == nil && !p.Spend() {
			p, err = limiters[i].Reacquire(b.Context(), schemas.High, limiter.Call{Endpoint: "detail/detail", Method: http.MethodGet})
		}
		took := time.Since(began)
		if err != nil {
			b.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		waits[i] = append(waits[i], took)
	}
	for i := range limiters { // a limiter without state waits once before its first permit
		call(i)
	}
	clear(waits)
	began, at := time.Now(), time.Duration(0)
	for at < length {
		at += time.Duration(rand.ExpFloat64() / highPerSecond * float64(time.Second))
		passUntil(b.Context(), began.Add(at))
		for i := range limiters {
			wg.Go(func() { call(i) })
		}
	}
	wg.Wait()
	return waits
}

// passUntil waits in real time.
func passUntil(ctx context.Context, until time.Time) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	<-ctx.Done()
}

func p99(waits []time.Duration) float64 {
	slices.Sort(waits)
	return waits[(len(waits)*99+99)/100-1].Seconds() * 1000
}
