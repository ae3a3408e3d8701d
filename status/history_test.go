package status

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/servicetest"
)

// historyRig is a fake Redis with the counts of the source "nexon". Tests run in a synctest bubble, in
// which time starts at a multiple of historyInterval.
type historyRig struct {
	*HistoryRecorder
	mu      sync.Mutex
	counts  map[string]ProcessCounts
	err     error
	backlog LaneBacklog
	panics  bool // true: reads of the lanes panic
	view    limiter.View
}

var errRedis = errors.New("connection refused")

// newHistoryRig starts a recorder, which runs until the test ends.
func newHistoryRig(t *testing.T) *historyRig {
	r := &historyRig{counts: map[string]ProcessCounts{}, view: limiter.View{State: limiter.StateFlowing, RampRatio: 1}}
	r.HistoryRecorder = NewHistoryRecorder(HistoryDeps{
		Sources: []string{"nexon"}, Log: slog.New(slog.DiscardHandler),
		Counts: func(context.Context, string) (map[string]ProcessCounts, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return maps.Clone(r.counts), r.err
		},
		Limiter: func(context.Context, string) (limiter.View, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.view, r.err
		},
		Lanes: func(string) (high, low LaneBacklog) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.panics {
				panic("a bug")
			}
			return LaneBacklog{}, r.backlog
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	return r
}

// write sets the counts of a process: its uptime and its number of calls with status 2xx.
func (r *historyRig) write(process string, uptime time.Duration, calls int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[process] = ProcessCounts{UptimeMS: uptime.Milliseconds(), Calls: map[string]int64{"2xx": calls}}
}

// set changes the fields of the rig.
func (r *historyRig) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// pass lets n samples be taken.
func pass(n int) {
	time.Sleep(time.Duration(n) * historyInterval)
	synctest.Wait()
}

// calls returns the calls with status 2xx that each sample has counted; -1: unknown.
func (r *historyRig) calls() []int64 {
	f, counted := r.Since("nexon", 0), []int64{}
	for i, rate := range f.Calls["2xx"] {
		if math.IsNaN(float64(rate)) {
			counted = append(counted, -1)
			continue
		}
		counted = append(counted, int64(math.Round(float64(rate*f.Seconds[i]))))
	}
	return counted
}

func (r *historyRig) wantCalls(t *testing.T, want ...int64) {
	t.Helper()
	if got := r.calls(); !reflect.DeepEqual(got, want) {
		t.Errorf("calls of each sample: got %v, want %v", got, want)
	}
}

func TestHistory_CountsEachCallOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHistoryRig(t)
		r.write("a", time.Hour, 1_000) // calls from before the first sample are not counted
		pass(1)
		r.write("a", time.Hour, 1_020)
		pass(1)
		pass(1) // the process has written nothing new
		r.write("a", time.Hour, 1_050)
		pass(1)
		r.wantCalls(t, -1, 20, 0, 30)
	})
}

func TestHistory_SumsProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHistoryRig(t)
		r.write("a", time.Hour, 5)
		r.write("b", time.Hour, 7)
		pass(1)
		r.write("a", time.Hour, 6)
		r.write("b", time.Hour, 9)
		pass(1)
		r.wantCalls(t, -1, 3)
	})
}

func TestHistory_RestartIsNeverNegative(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHistoryRig(t)
		r.write("a/first", time.Hour, 1_000)
		pass(1)
		r.set(func() { delete(r.counts, "a/first") })
		r.write("a/second", 4*time.Second, 8) // the process has restarted under a new name, so all 8 calls were made since the last read
		pass(1)
		r.write("a/second", 9*time.Second, 10)
		pass(1)
		r.wantCalls(t, -1, 8, 2)
	})
}

func TestHistory_OlderCountsChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHistoryRig(t)
		r.write("a", time.Hour, 100)
		pass(1)
		r.write("a", time.Hour, 90) // a lower count than before, as a replica can return after a failover
		pass(1)
		r.write("a", time.Hour, 105)
		pass(1)
		r.wantCalls(t, -1, 0, 5)
	})
}

func TestHistory_ReturningProcessIsNotCountedAgain(t *testing.T) {
	for name, away := range map[string]int{"for a minute": 12, "for longer than the history": 2 * maxHistorySamples} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newHistoryRig(t)
				r.write("a", time.Hour, 100)
				pass(1)
				r.set(func() { delete(r.counts, "a") })
				pass(away)
				r.write("a", 4*time.Hour, 103)
				pass(1)
				r.write("a", 4*time.Hour, 110)
				pass(1)
				got := r.calls()
				if last := got[len(got)-1]; last != 7 {
					t.Errorf("calls of the last sample: got %d, want 7", last)
				}
				if before := got[len(got)-2]; before > 3 {
					t.Errorf("calls of the sample of the return: got %d, want at most 3", before)
				}
			})
		})
	}
}

func TestHistory_FailedReadIsAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHistoryRig(t)
		r.write("a", time.Hour, 0)
		pass(1)
		r.set(func() { r.err = errRedis })
		pass(2)
		r.set(func() { r.err = nil })
		r.write("a", time.Hour, 30)
		r.write("b", 12*time.Second, 6) // process b has started during the outage
		pass(1)
		r.wantCalls(t, -1, -1, -1, 36)
		f := r.Since("nexon", 0)
		if got := f.Seconds[3]; got != 15 {
			t.Errorf("period of the sample after the outage: got %v s, want 15 s", got)
		}
		if got := f.States[1]; got != "" {
			t.Errorf("state during the outage: got %q, want none", got)
		}
	})
}

func TestHistory_SkippedSamplesAreGaps(t *testing.T) {
	of := &sourceHistory{}
	of.add(historySample{at: 100, seconds: 5})
	of.add(historySample{at: 115, seconds: 15})
	r := &historyRig{HistoryRecorder: &HistoryRecorder{bySource: map[string]*sourceHistory{"nexon": of}}}
	f := r.Since("nexon", 0)
	if want := []int64{100, 105, 110, 115}; !reflect.DeepEqual(f.Times, want) {
		t.Errorf("times: got %v, want %v", f.Times, want)
	}
	r.wantCalls(t, 0, -1, -1, 0)
}

func TestHistory_IsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		steps []int64
		want  int
	}{
		"an hour and more": {[]int64{0, 5_000, 5_005}, maxHistorySamples},
		"after a year":     {[]int64{0, 5, 365 * 86_400}, maxHistorySamples},
		"clock set back":   {[]int64{0, 5, 10, 5}, 2},
		"same time":        {[]int64{0, 0}, 1},
	} {
		of := &sourceHistory{}
		for _, at := range c.steps {
			of.add(historySample{at: at})
		}
		if got := len(of.samples); got != c.want {
			t.Errorf("%s: got %d samples, want %d", name, got, c.want)
		}
		if got, want := of.samples[len(of.samples)-1].at, c.steps[len(c.steps)-1]; got != want {
			t.Errorf("%s: last sample: got the time %d, want %d", name, got, want)
		}
	}
}

func TestHistory_SinceReturnsNewSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHistoryRig(t)
		pass(3)
		times := r.Since("nexon", 0).Times
		if got := r.Since("nexon", times[1]).Times; len(got) != 1 || got[0] != times[2] {
			t.Errorf("samples after the second: got %v, want %v", got, times[2:])
		}
		if got := r.Since("other", 0).Times; len(got) != 0 {
			t.Errorf("samples of an unknown source: got %v, want none", got)
		}
	})
}

func TestHistory_RecordsLimiterAndLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHistoryRig(t)
		r.set(func() {
			r.view = limiter.View{State: limiter.StateRamping, RampRatio: 0.5, Policies: []limiter.PolicyView{{Window: "1s", Limit: 500, Target: 450}}}
			r.backlog = LaneBacklog{Records: 12_480, Delay: 35 * time.Second, Known: true}
		})
		pass(1)
		f := r.Since("nexon", 0)
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			`"states":["ramping"]`, `"allowedRate":[225]`, `"high":{"records":[null],"delaySeconds":[null]}`,
			`"low":{"records":[12480],"delaySeconds":[35]}`, `"429":[null]`, `"notFound":[null]`,
		} {
			if !strings.Contains(string(text), want) {
				t.Errorf("history: got %s, want %s in it", text, want)
			}
		}
	})
}

func TestHistory_EmptyIsValidJSON(t *testing.T) {
	text, err := json.Marshal((&HistoryRecorder{}).Since("nexon", 0))
	if want := `{"times":[],"seconds":[],"calls":{},"allowedRate":[],"states":[],"reads":{},"high":{"records":[],"delaySeconds":[]},"low":{"records":[],"delaySeconds":[]}}`; err != nil || string(text) != want {
		t.Errorf("empty history: got %s, %v, want %s", text, err, want)
	}
}

func TestHistory_SurvivesPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHistoryRig(t)
		r.set(func() { r.panics = true })
		pass(1)
		r.set(func() { r.panics = false })
		pass(1)
		if got := len(r.Since("nexon", 0).Times); got != 1 {
			t.Errorf("samples after a panic: got %d, want 1", got)
		}
	})
}

// TestHistory_WriterAndRecorder runs a process that makes 7 calls a second. The writer of the
// counts and the recorder of the history use the same clock, but start at different times.
func TestHistory_WriterAndRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(1300 * time.Millisecond)
		reg := NewMetrics(prometheus.NewRegistry())
		calls := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "upstream_calls_total"}, []string{"source", "priority", "outcome"})
		reg.MustRegister(calls)
		r := newHistoryRig(t)
		w := CountsWriter{Sources: []string{"nexon"}, Metrics: reg, Log: slog.New(slog.DiscardHandler), Write: func(_ context.Context, all map[string]ProcessCounts) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.counts["worker"] = all["nexon"]
			return nil
		}}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = w.Run(ctx) }()
		for range 60 {
			calls.WithLabelValues("nexon", "LOW", "2xx").Add(3)
			calls.WithLabelValues("nexon", "HIGH", "2xx").Add(4)
			time.Sleep(time.Second)
		}
		stop()
		<-ended // the last calls are written at the end
		pass(2)
		total := int64(0)
		for i, n := range r.calls() {
			if total += max(0, n); n > 35 && i < 12 { // sample 12 also has the calls of the last write
				t.Errorf("sample %d: got %d calls, want at most 35 in 5 s", i, n)
			}
		}
		if want := int64(60 * 7); total != want {
			t.Errorf("calls of all samples: got %d, want %d", total, want)
		}
	})
}

func TestCountsWriter_CountsCallsAndReads(t *testing.T) {
	all := prometheus.NewRegistry()
	reg := NewMetrics(prometheus.WrapRegistererWithPrefix("freshet_", all))
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "upstream_calls_total"}, []string{"source", "priority", "outcome"})
	reads := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "reads_total"}, []string{"facet", "freshness"})
	reg.MustRegister(calls)
	prometheus.WrapRegistererWith(prometheus.Labels{"source": "nexon"}, reg).MustRegister(reads)
	calls.WithLabelValues("nexon", "HIGH", "429").Add(2)
	calls.WithLabelValues("nexon", "LOW", "429").Add(3)
	calls.WithLabelValues("nexon", "LOW", "2xx").Add(0)
	calls.WithLabelValues("gone", "LOW", "2xx").Inc()
	reads.WithLabelValues("a", "UPDATING").Inc()
	reads.WithLabelValues("b", "NOT_FOUND").Add(4)
	got := CountsWriter{Sources: []string{"idle", "nexon"}, Metrics: reg, Log: slog.New(slog.DiscardHandler)}.counts()
	want := map[string]ProcessCounts{
		"idle":  {Calls: map[string]int64{}, Reads: map[string]int64{}},
		"nexon": {Calls: map[string]int64{"429": 5}, Reads: map[string]int64{"none": 1, "notFound": 4}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("counts: got %v, want %v", got, want)
	}
}

func TestCounts_AreSharedThroughRedis(t *testing.T) {
	rdb, server := servicetest.MiniRedis(t)
	now := time.Now().Truncate(time.Millisecond)
	server.SetTime(now)
	c := ProcessCounts{Calls: map[string]int64{"2xx": 123_456_789}, Reads: map[string]int64{"fresh": 987_654_321}, UptimeMS: 5}
	if err := WriteReport(t.Context(), rdb, "a", Process{}, map[string]ProcessCounts{"nexon": c, "github": {}}); err != nil {
		t.Fatal(err)
	}
	c.AtMS = now.UnixMilli()
	got, err := ReadCounts(t.Context(), rdb, "nexon")
	if want := map[string]ProcessCounts{"a": c}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("counts: got %v, %v, want %v", got, err, want)
	}
}

func TestCounts_OfAStoppedProcessAreDeleted(t *testing.T) {
	rdb, server := servicetest.MiniRedis(t)
	now := time.Now()
	server.SetTime(now)
	if err := WriteReport(t.Context(), rdb, "old", Process{}, map[string]ProcessCounts{"nexon": {}}); err != nil {
		t.Fatal(err)
	}
	server.SetTime(now.Add(processCountsTTL + time.Second))
	if err := WriteReport(t.Context(), rdb, "new", Process{}, map[string]ProcessCounts{"nexon": {}}); err != nil {
		t.Fatal(err)
	}
	server.HSet(countsKey("nexon"), "unreadable", "{")
	if _, err := ReadCounts(t.Context(), rdb, "nexon"); err != nil {
		t.Fatal(err)
	}
	got, err := server.HKeys(countsKey("nexon"))
	if want := []string{"new"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("processes in Redis: got %v, %v, want %v", got, err, want)
	}
	if ttl := server.TTL(countsKey("nexon")); ttl <= 0 {
		t.Errorf("expiry of the counts: got %v, want more than 0", ttl)
	}
}

func TestAllowedRate_FollowsTheLimiter(t *testing.T) {
	second := limiter.PolicyView{Name: "second", Window: "1s", Limit: 500, Target: 450}
	for name, c := range map[string]struct {
		view limiter.View
		want float64
	}{
		"flowing":              {limiter.View{State: limiter.StateFlowing, RampRatio: 1, Policies: []limiter.PolicyView{second}}, 450},
		"ramping":              {limiter.View{State: limiter.StateRamping, RampRatio: 0.5, Policies: []limiter.PolicyView{second}}, 225},
		"stopped":              {limiter.View{State: limiter.StateStopped, RampRatio: 1, Policies: []limiter.PolicyView{second}}, 0},
		"backing off":          {limiter.View{State: limiter.StateBackingOff, RampRatio: 1, Policies: []limiter.PolicyView{second}}, 0},
		"a limit, no target":   {limiter.View{State: limiter.StateFlowing, RampRatio: 1, Policies: []limiter.PolicyView{{Window: "1m0s", Limit: 90}}}, 1.5},
		"the day is used up":   {limiter.View{State: limiter.StateFlowing, RampRatio: 1, Policies: []limiter.PolicyView{second, {Window: "day", Used: new(int64(9))}}}, 0},
		"a minute is used up":  {limiter.View{State: limiter.StateFlowing, RampRatio: 1, Policies: []limiter.PolicyView{second, {Window: "1m0s", Used: new(int64(9))}}}, 450},
		"no policy has window": {limiter.View{State: limiter.StateFlowing, RampRatio: 1}, math.NaN()},
	} {
		if got := allowedRate(c.view); got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s: got %v calls a second, want %v", name, got, c.want)
		}
	}
}

func BenchmarkHistory_Since(b *testing.B) {
	of := &sourceHistory{}
	for i := range maxHistorySamples {
		of.add(historySample{at: int64(i) * 5, seconds: 5, state: limiter.StateFlowing})
	}
	r := &HistoryRecorder{bySource: map[string]*sourceHistory{"nexon": of}}
	for b.Loop() {
		if _, err := json.Marshal(r.Since("nexon", 0)); err != nil {
			b.Fatal(err)
		}
	}
}
