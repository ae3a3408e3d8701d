package consumer

import (
	"context"
	"log/slog"
	"time"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// CallRecord describes one finished upstream call.
type CallRecord struct {
	At      time.Time // end of the call
	Facet   string
	Key     string
	Lane    schemas.Lane
	Status  int    // HTTP status; 0 if no response arrived
	Outcome string // one of source.CallOutcomes
	Class   string // class of the whole attempt; empty if the attempt ended before its responses were read
	MS      float64
	// WaitedMS is the time until the permit was granted, in milliseconds.
	WaitedMS float64
	Bytes    int
	Changed  bool // true if the attempt has returned changed content
	// Attempt is the position of the call among all calls for the record; the first is 1.
	Attempt       int
	CorrelationID string
}

// callLog receives the finished calls of a worker. The function record gets every call; nil means no
// function. The sampler chooses the calls that are logged.
type callLog struct {
	record  func(CallRecord)
	sampler observe.LogSampler
}

// reportCalls gives each call of an attempt to callLog.record, and logs it at level DEBUG if the
// sampler passes it. `class` is the class of the attempt, or "" if the attempt ended before its
// responses were read. `before` is the number of calls that earlier attempts of the record made.
func reportCalls(ctx context.Context, w *Worker, a *attempt, class source.Class, changed bool, before int) {
	debug := w.log.Enabled(ctx, slog.LevelDebug)
	if !debug && w.calls.record == nil {
		return
	}
	t := a.t
	ctx = t.traced(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, c := range a.calls {
		r := CallRecord{
			At: time.Now(), Facet: c.target.Facet, Key: c.target.Key, Lane: w.lane, Status: c.result.Status, Outcome: c.result.Outcome(), Class: string(class),
			MS: observe.Milliseconds(c.took), WaitedMS: observe.Milliseconds(c.waited), Bytes: c.result.Bytes, Changed: changed,
			Attempt: before + i + 1, CorrelationID: t.request.CorrelationID,
		}
		if w.calls.record != nil {
			w.calls.record(r)
		}
		if debug {
			logCall(ctx, w, r, c)
		}
	}
}

func logCall(ctx context.Context, w *Worker, r CallRecord, c *call) {
	skipped, pass := w.calls.sampler.Pass(r.At)
	if !pass {
		return
	}
	attrs := []slog.Attr{
		slog.String("facet", r.Facet), slog.String("key", r.Key), slog.String("url", w.source.RedactURL(c.result.URL)),
		slog.Int("status", r.Status), slog.String("class", r.Class), slog.Float64("ms", r.MS),
		slog.Int("bytes", r.Bytes), slog.Bool("changed", r.Changed), slog.Float64("waited_ms", r.WaitedMS),
		slog.Int("attempt", r.Attempt), slog.String("correlation_id", r.CorrelationID),
	}
	if c.result.Err != nil {
		attrs = append(attrs, slog.Any("err", c.result.Err))
	}
	if skipped > 0 {
		attrs = append(attrs, slog.Int("skipped", skipped))
	}
	w.log.LogAttrs(ctx, slog.LevelDebug, "upstream called", attrs...)
}
