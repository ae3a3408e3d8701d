package consumer

import (
	"context"
	"log/slog"
	"time"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/source"
)

// logCalls logs each call of an attempt at level DEBUG, if the sampler passes it. class is the
// class of the attempt, or "" if the attempt ended before its responses were read. before is the
// number of calls that earlier attempts of the record made.
func (w *Worker) logCalls(ctx context.Context, a *attempt, class source.Class, changed bool, before int) {
	if !w.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	t := a.t
	ctx = t.traced(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, c := range a.calls {
		skipped, pass := w.callSampler.Pass(time.Now())
		if !pass {
			continue
		}
		attrs := []slog.Attr{
			slog.String("facet", c.target.Facet), slog.String("key", c.target.Key), slog.String("url", w.source.RedactURL(c.result.URL)),
			slog.Int("status", c.result.Status), slog.String("class", string(class)), slog.Float64("ms", observe.Milliseconds(c.took)),
			slog.Int("bytes", c.result.Bytes), slog.Bool("changed", changed), slog.Float64("waited_ms", observe.Milliseconds(c.waited)),
			slog.Int("attempt", before+i+1), slog.String("correlation_id", t.request.CorrelationID),
		}
		if c.result.Err != nil {
			attrs = append(attrs, slog.Any("err", c.result.Err))
		}
		if skipped > 0 {
			attrs = append(attrs, slog.Int("skipped", skipped))
		}
		w.log.LogAttrs(ctx, slog.LevelDebug, "upstream called", attrs...)
	}
}
