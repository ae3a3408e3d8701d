package status

import (
	"context"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/source"
)

// historySpan is the length of the history, and maxHistorySamples the number of its samples.
const historySpan, maxHistorySamples = time.Hour, int(time.Hour / historyInterval)

// sampleReadTimeout is the maximum duration of the reads of one sample. It is shorter than
// historyInterval, so that a slow read never delays the next sample.
const sampleReadTimeout = 2 * time.Second

// HistoryRecorder records the history of all sources in the memory of this process:
//
//	each process ──counts, every 5 s──▶ Redis ──▶ HistoryRecorder ──▶ History
//	                                              (each query service, 2.5 s later)
//
// Invariants:
//
//	counted once  A call or read is counted in one sample at most: the first sample after its process
//	              has written it. Only the last seconds of a process that crashed are not counted.
//	never below 0 A process that restarts has a new name. A count that falls changes nothing.
//	gaps          If the counts can't be read, the values of the sample are unknown, not 0. The
//	              next sample covers the time since the last successful read.
//
// Example: a worker has written 100 calls at 12:00:00 and 160 at 12:00:05. The sample of 12:00:05
// has (160 - 100) / 5 s = 12 calls a second.
type HistoryRecorder struct {
	HistoryDeps
	mu       sync.Mutex
	bySource map[string]*sourceHistory
}

// HistoryDeps are the reads that a HistoryRecorder makes for each sample.
type HistoryDeps struct {
	Sources []string
	// Counts returns the counts of a source by process (ReadCounts).
	Counts func(ctx context.Context, source string) (map[string]ProcessCounts, error)
	// Limiter returns the state of a source's limiter.
	Limiter func(ctx context.Context, source string) (limiter.View, error)
	// Lanes returns the backlogs of the lanes HIGH and LOW of a source. It returns at once.
	Lanes func(source string) (high, low LaneBacklog)
	Log   *slog.Logger
}

// LaneBacklog is the backlog of a lane: the number of waiting records, and the time until a new
// record would be processed. Known is false if the records could not be counted recently.
type LaneBacklog struct {
	Records int64
	Delay   time.Duration
	Known   bool
}

// sourceHistory is the history of one source, the oldest sample first. The fields `processes` and
// `countedAt` belong to the goroutine that takes the samples.
type sourceHistory struct {
	samples   []historySample
	processes map[string]seenProcess
	countedAt time.Time // time of the last successful read of the counts; zero: none
}

// seenProcess holds the counts of one process, and the time `at` at which they were last read.
type seenProcess struct {
	counts ProcessCounts
	at     time.Time
}

// historySample is one sample. Unknown values are NaN, which takes less memory than pointers.
type historySample struct {
	at      int64   // time of the sample, in Unix seconds
	seconds float32 // length of the period in which the calls and reads were counted
	calls   [len(source.CallOutcomes)]float32
	reads   [len(ReadKinds)]float32
	allowed float32
	records [2]float32 // number of waiting records by lane, HIGH first
	delays  [2]float32
	state   limiter.State // state of the limiter; empty: unknown
}

// unknownSample returns a sample without known values.
func unknownSample(at int64) historySample {
	n := historySample{at: at}
	unknown := float32(math.NaN())
	for _, values := range [][]float32{n.calls[:], n.reads[:], n.records[:], n.delays[:]} {
		for i := range values {
			values[i] = unknown
		}
	}
	n.seconds, n.allowed = unknown, unknown
	return n
}

// NewHistoryRecorder returns a recorder with an empty history. Run fills it.
func NewHistoryRecorder(deps HistoryDeps) *HistoryRecorder {
	h := &HistoryRecorder{HistoryDeps: deps, bySource: map[string]*sourceHistory{}}
	for _, name := range deps.Sources {
		h.bySource[name] = &sourceHistory{processes: map[string]seenProcess{}}
	}
	return h
}

// Run takes a sample of each source every 5 s until ctx ends.
func (h *HistoryRecorder) Run(ctx context.Context) error {
	for poll.Pause(ctx, untilNext(time.Now(), historyDelay)) {
		at := time.Now().Add(-historyDelay).Truncate(historyInterval).Unix()
		var reads sync.WaitGroup
		for name, of := range h.bySource {
			reads.Go(func() { CatchPanic(h.Log, func() { h.takeSample(ctx, name, of, at) }) })
		}
		reads.Wait()
	}
	return nil
}

func (h *HistoryRecorder) takeSample(ctx context.Context, name string, of *sourceHistory, at int64) {
	ctx, cancel := context.WithTimeout(ctx, sampleReadTimeout)
	defer cancel()
	n := unknownSample(at)
	if counts, err := h.Counts(ctx, name); err == nil {
		of.count(&n, counts, time.Now())
	}
	if v, err := h.Limiter(ctx, name); err == nil {
		n.state, n.allowed = v.State, float32(allowedRate(v))
	}
	high, low := h.Lanes(name)
	for i, lane := range []LaneBacklog{high, low} {
		if lane.Known {
			n.records[i], n.delays[i] = float32(lane.Records), float32(lane.Delay.Seconds())
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	of.add(n)
}

// count sets the calls and reads of a sample: the increase of all counts since the last read. They
// stay unknown in the first sample.
//
// A process that was not seen before is new if its uptime is not much longer than the time since
// the last read. Then all its calls belong to the sample. A process with a longer uptime could not
// write its counts until now, and only its later calls are counted.
func (h *sourceHistory) count(n *historySample, all map[string]ProcessCounts, now time.Time) {
	since := now.Sub(h.countedAt)
	known := !h.countedAt.IsZero()
	if known {
		n.seconds, n.calls, n.reads = float32(since.Seconds()), [len(n.calls)]float32{}, [len(n.reads)]float32{}
	}
	for name, c := range all {
		before, seen := h.processes[name]
		counted := known && (seen || time.Duration(c.UptimeMS)*time.Millisecond <= since+2*historyInterval)
		c.Calls = addSince(n.calls[:], source.CallOutcomes[:], c.Calls, before.counts.Calls, counted)
		c.Reads = addSince(n.reads[:], ReadKinds[:], c.Reads, before.counts.Reads, counted)
		h.processes[name] = seenProcess{c, now}
	}
	for name, p := range h.processes {
		if now.Sub(p.at) > historySpan {
			delete(h.processes, name)
		}
	}
	h.countedAt = now
}

// addSince adds the increase of each count to the values, if `counted` is true. It returns the
// higher of the earlier and the present count for each kind, because a Redis replica can return
// older counts than the read before.
func addSince(values []float32, kinds []string, counts, before map[string]int64, counted bool) map[string]int64 {
	highest := map[string]int64{}
	for i, kind := range kinds {
		highest[kind] = max(counts[kind], before[kind])
		if counted {
			values[i] += float32(highest[kind] - before[kind])
		}
	}
	return highest
}

// add adds a sample. Samples that were not taken, for example while the machine was suspended, are
// added as unknown. If the clock was set back, the samples after its new time are removed.
func (h *sourceHistory) add(n historySample) {
	const step = int64(historyInterval / time.Second)
	for len(h.samples) > 0 && h.samples[len(h.samples)-1].at >= n.at {
		h.samples = h.samples[:len(h.samples)-1]
	}
	if count := len(h.samples); count > 0 {
		for at := max(h.samples[count-1].at+step, n.at-int64(maxHistorySamples)*step); at < n.at; at += step {
			h.samples = append(h.samples, unknownSample(at))
		}
	}
	h.samples = append(h.samples, n)
	h.samples = h.samples[max(0, len(h.samples)-maxHistorySamples):]
	for h.samples[0].at <= n.at-int64(historySpan/time.Second) {
		h.samples = h.samples[1:]
	}
}

// History is the history of a source. Each list has one value for each sample, the oldest first.
type History struct {
	Times []int64 `json:"times"` // times of the samples in Unix seconds, 5 s apart
	// Seconds are the lengths of the periods that the rates cover.
	Seconds     Values            `json:"seconds"`
	Calls       map[string]Values `json:"calls"`       // calls a second by outcome
	AllowedRate Values            `json:"allowedRate"` // rate that the limiter allowed, in calls a second
	States      []limiter.State   `json:"states"`      // states of the limiter; empty: unknown
	Reads       map[string]Values `json:"reads"`       // reads a second by kind
	High        laneHistory       `json:"high"`
	Low         laneHistory       `json:"low"`
}

// laneHistory is the history of a lane.
type laneHistory struct {
	Records      Values `json:"records"`
	DelaySeconds Values `json:"delaySeconds"`
}

// Values are the values of a list of a History. NaN means unknown, in JSON null.
type Values []float32

// MarshalJSON encodes the values with at most three decimals.
func (v Values) MarshalJSON() ([]byte, error) {
	text := append(make([]byte, 0, 6*len(v)+2), '[')
	for i, x := range v {
		if i > 0 {
			text = append(text, ',')
		}
		if math.IsNaN(float64(x)) {
			text = append(text, "null"...)
			continue
		}
		text = strconv.AppendFloat(text, math.Round(float64(x)*1000)/1000, 'f', -1, 64)
	}
	return append(text, ']'), nil
}

// Since returns the samples of a source after a time in Unix seconds. A source that does not exist
// has an empty history.
func (h *HistoryRecorder) Since(name string, after int64) History {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := History{Times: []int64{}, States: []limiter.State{}, Calls: map[string]Values{}, Reads: map[string]Values{}}
	var samples []historySample
	if of := h.bySource[name]; of != nil {
		samples = of.samples
	}
	for len(samples) > 0 && samples[0].at <= after {
		samples = samples[1:]
	}
	for _, n := range samples {
		f.Times, f.States, f.Seconds = append(f.Times, n.at), append(f.States, n.state), append(f.Seconds, n.seconds)
		f.AllowedRate = append(f.AllowedRate, n.allowed)
		for i, outcome := range source.CallOutcomes {
			f.Calls[outcome] = append(f.Calls[outcome], n.calls[i]/n.seconds)
		}
		for i, kind := range ReadKinds {
			f.Reads[kind] = append(f.Reads[kind], n.reads[i]/n.seconds)
		}
		for i, lane := range []*laneHistory{&f.High, &f.Low} {
			lane.Records, lane.DelaySeconds = append(lane.Records, n.records[i]), append(lane.DelaySeconds, n.delays[i])
		}
	}
	return f
}
