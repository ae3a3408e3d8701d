package status

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
)

const (
	// maxCalls is the maximum number of calls that are kept for a source. The oldest calls are removed.
	maxCalls = 500
	// maxFailedCalls is the maximum number of failed calls that are kept for a source. The oldest calls
	// are removed.
	maxFailedCalls = 100
	// maxCallsPerSecond is the maximum number of calls that one process keeps in each second. After
	// that, it keeps only failed calls, up to maxFailedPerSecond. It counts the calls that it does
	// not keep.
	maxCallsPerSecond, maxFailedPerSecond = 50, 20
	// callsTTL is how long the list of a source's calls is kept after its newest call.
	callsTTL = time.Hour
	// callsInterval is the time between two writes of the calls of a process.
	callsInterval = time.Second
)

// Call is one finished upstream call.
type Call struct {
	At       time.Time    `json:"at"` // end of the call
	Facet    string       `json:"facet"`
	Key      string       `json:"key"`
	Lane     schemas.Lane `json:"lane"`
	Status   int          `json:"status"`          // 0: no response arrived
	Outcome  string       `json:"outcome"`         // one of source.CallOutcomes
	Class    string       `json:"class,omitempty"` // empty: the attempt ended before its responses were read
	MS       float64      `json:"ms"`
	WaitedMS float64      `json:"waitedMs"` // time until the permit was granted
	Bytes    int          `json:"bytes"`
	Changed  bool         `json:"changed,omitempty"`
	// Attempt is the position of the call among all calls for its record; the first is 1.
	Attempt       int    `json:"attempt"`
	CorrelationID string `json:"correlationId,omitempty"`
}

// Failed reports whether the call had another outcome than 2xx, 304 and 404.
func (c Call) Failed() bool { return c.Outcome != "2xx" && c.Outcome != "304" && c.Outcome != "404" }

// SharedCall is a call with its source and the process that made it. Skipped is the number of calls
// that the process made shortly before and did not keep.
type SharedCall struct {
	Source  string `json:"source"`
	Process string `json:"process"`
	Skipped int    `json:"skipped,omitempty"`
	Call
}

// CallWriter shares the newest calls of this process with the query services:
//
//	worker ──RecordCall──▶ memory ──once a second──▶ Redis lists calls:{source}, calls-failed:{source}
//
// While no call is made, nothing is written. In each second a process keeps at most 50 calls of a
// source, and 20 more that failed; the call after the skipped ones has their number.
type CallWriter struct {
	Redis   redis.UniversalClient
	Source  string
	Process string
	Log     *slog.Logger

	mu      sync.Mutex
	kept    []SharedCall
	failed  int // failed calls beyond maxCallsPerSecond in this interval
	skipped int
}

// RecordCall keeps a call until the next write. It returns at once and may be called concurrently.
func (w *CallWriter) RecordCall(c Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.kept)-w.failed >= maxCallsPerSecond {
		if !c.Failed() || w.failed >= maxFailedPerSecond {
			w.skipped++
			return
		}
		w.failed++
	}
	w.kept = append(w.kept, SharedCall{w.Source, w.Process, w.skipped, c})
	w.skipped = 0
}

// Run writes the calls once a second until ctx ends, and then once more.
func (w *CallWriter) Run(ctx context.Context) error {
	poll.Every(ctx, callsInterval, w.write)
	w.write(context.WithoutCancel(ctx))
	return nil
}

// write writes the kept calls. If Redis does not answer, they are lost: they are only shown.
func (w *CallWriter) write(ctx context.Context) {
	w.mu.Lock()
	kept := w.kept
	w.kept, w.failed = nil, 0
	w.mu.Unlock()
	if len(kept) == 0 {
		return
	}
	var all, failed []any
	for _, c := range kept {
		text, err := json.Marshal(c)
		if err != nil {
			panic(err) // our own type can always be encoded as JSON
		}
		all = append(all, text)
		if c.Failed() {
			failed = append(failed, text)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, writeCountsTimeout)
	defer cancel()
	pipe := w.Redis.Pipeline()
	push := func(key string, values []any, limit int64) {
		if len(values) > 0 {
			pipe.LPush(ctx, key, values...)
			pipe.LTrim(ctx, key, 0, limit-1)
			pipe.Expire(ctx, key, callsTTL)
		}
	}
	push(callsKey(w.Source), all, maxCalls)
	push(failedCallsKey(w.Source), failed, maxFailedCalls)
	if _, err := pipe.Exec(ctx); err != nil {
		w.Log.Debug("newest upstream calls not written to redis; the console does not show them", "err", err) // an outage of Redis is logged elsewhere
	}
}

func callsKey(source string) string       { return "calls:{" + source + "}" }
func failedCallsKey(source string) string { return "calls-failed:{" + source + "}" }

// Calls are the newest calls of all processes. The newest call is first.
type Calls struct {
	Last   []SharedCall `json:"last"`
	Failed []SharedCall `json:"failed"`
}

// ReadCalls returns the newest calls of the sources: at most maxCalls in total, and at most
// maxFailedCalls failed ones.
func ReadCalls(ctx context.Context, rdb redis.UniversalClient, sources []string) (Calls, error) {
	all := Calls{Last: []SharedCall{}, Failed: []SharedCall{}}
	pipe := rdb.Pipeline()
	type lists struct{ last, failed *redis.StringSliceCmd }
	var reads []lists
	for _, name := range sources {
		reads = append(reads, lists{pipe.LRange(ctx, callsKey(name), 0, maxCalls-1), pipe.LRange(ctx, failedCallsKey(name), 0, maxFailedCalls-1)})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return all, fmt.Errorf("read the newest calls: %w", err)
	}
	for _, r := range reads {
		all.Last, all.Failed = appendCalls(all.Last, r.last.Val()), appendCalls(all.Failed, r.failed.Val())
	}
	newest := func(a, b SharedCall) int { return cmp.Compare(b.At.UnixMicro(), a.At.UnixMicro()) }
	slices.SortStableFunc(all.Last, newest)
	slices.SortStableFunc(all.Failed, newest)
	all.Last, all.Failed = all.Last[:min(maxCalls, len(all.Last))], all.Failed[:min(maxFailedCalls, len(all.Failed))]
	return all, nil
}

func appendCalls(all []SharedCall, texts []string) []SharedCall {
	for _, text := range texts {
		var c SharedCall
		if json.Unmarshal([]byte(text), &c) == nil { // another release may write other values
			all = append(all, c)
		}
	}
	return all
}
