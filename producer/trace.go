package producer

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
)

// requestSpan is the span of one request, with the context in which its record is published.
type requestSpan struct {
	ctx  context.Context //nolint:containedctx // carries the span of one request in a batch
	span trace.Span
}

// batchSpans are the spans of a batch; nil if tracing is off.
type batchSpans []requestSpan

// startSpans starts one span per request, as a child of the request's trace parent. Retries and
// replays, which may be days later, start a new trace that links to the original trace.
func (p *Producer) startSpans(requests []Request) batchSpans {
	if !p.tracer.Enabled() {
		return nil
	}
	spans := make(batchSpans, len(requests))
	for i, req := range requests {
		under := context.Background()
		options := []trace.SpanStartOption{trace.WithAttributes(
			attribute.String("freshet.entity", req.Entity.String()), attribute.String("freshet.lane", string(req.Lane)),
			attribute.String("freshet.reason", string(req.Reason)), attribute.String("freshet.correlation_id", req.CorrelationID),
		)}
		if req.Reason == schemas.Retry || req.Reason == schemas.Replay {
			options = append(options, observe.LinkTo(req.TraceParent)...)
		} else {
			under = observe.WithTraceParent(under, req.TraceParent)
		}
		own, span := p.tracer.Start(under, "enqueue update request", options...)
		spans[i] = requestSpan{own, span}
	}
	return spans
}

// of returns the context in which the record of the request with index i is published.
func (f batchSpans) of(i int) context.Context {
	if f == nil {
		return context.Background()
	}
	return f[i].ctx
}

// end sets the outcome of each request on its span and ends the spans.
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
