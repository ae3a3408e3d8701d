package producer

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
)

// requestSpan is a wish's span and the context that its record is published in.
type requestSpan struct {
	ctx  context.Context //nolint:containedctx // it is the span's, of a batch of them
	span trace.Span
}

// batchSpans are those of a batch; none, if nothing is traced.
type batchSpans []requestSpan

// startSpans begins the wishes' spans, each in the trace that its own trace parent is of.
// What is asked again much later, a retry or a replay, begins a trace of its own that
// links back: a trace of days is none that anybody can look at.
func (p *Producer) startSpans(wishes []Request) batchSpans {
	if !p.tracer.Enabled() {
		return nil
	}
	spans := make(batchSpans, len(wishes))
	for i, w := range wishes {
		under := context.Background()
		options := []trace.SpanStartOption{trace.WithAttributes(
			attribute.String("freshet.entity", w.Entity.String()), attribute.String("freshet.lane", string(w.Lane)),
			attribute.String("freshet.reason", string(w.Reason)), attribute.String("freshet.correlation_id", w.CorrelationID),
		)}
		if w.Reason == schemas.Retry || w.Reason == schemas.Replay {
			options = append(options, observe.LinkTo(w.TraceParent)...)
		} else {
			under = observe.WithTraceParent(under, w.TraceParent)
		}
		own, span := p.tracer.Start(under, "ask for a refresh", options...)
		spans[i] = requestSpan{own, span}
	}
	return spans
}

// of returns the context of a wish's record.
func (f batchSpans) of(i int) context.Context {
	if f == nil {
		return context.Background()
	}
	return f[i].ctx
}

// end ends the spans with what became of their wishes.
func (f batchSpans) end(results []Result) {
	for i, a := range f {
		r := results[i]
		if r.Err != nil {
			a.span.SetStatus(codes.Error, r.Err.Error())
		} else {
			a.span.SetAttributes(attribute.String("freshet.outcome", string(r.Outcome)), attribute.Int64("freshet.version", r.Number))
		}
		a.span.End()
	}
}
