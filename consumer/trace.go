package consumer

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// A record's span begins below the one of its receipt, which the client made, and is
// of one trace with the read that asked for it. What is done for many records at
// once has a trace of its own, and links lead there and back.

// startSpan begins the span of what is done for a record, and returns both contexts in
// it.
func (w *Worker) startSpan(ctx, hard context.Context, t *task) (context.Context, context.Context, trace.Span) {
	if !w.tracer.Enabled() {
		t.span = observe.NoSpan
		return ctx, hard, t.span
	}
	under := ctx
	if t.record.Context != nil {
		under = trace.ContextWithSpan(ctx, trace.SpanFromContext(t.record.Context))
	}
	ctx, t.span = w.tracer.Start(under, "refresh", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		attribute.String("freshet.entity", t.request.Entity.String()), attribute.String("freshet.lane", string(w.lane)),
		attribute.String("freshet.reason", string(t.request.Reason)), attribute.String("freshet.correlation_id", t.request.CorrelationID),
		attribute.Int64("freshet.version", t.request.Version),
	))
	return ctx, trace.ContextWithSpan(hard, t.span), t.span
}

// traceParent is what the record's retry or its status leads back to.
func (t *task) traceParent() string {
	if t.span != nil && t.span.SpanContext().IsValid() {
		return observe.TraceParent(trace.ContextWithSpan(context.Background(), t.span))
	}
	for _, h := range t.record.Headers {
		if h.Key == schemas.TraceParent {
			return string(h.Value)
		}
	}
	return ""
}

// headers are the record's.
func (t *task) headers() []schemas.Header {
	headers := make([]schemas.Header, 0, len(t.record.Headers))
	for _, h := range t.record.Headers {
		headers = append(headers, schemas.Header(h))
	}
	return headers
}

// replay is the replay by which the record was asked for, which its retries go on with.
func (t *task) replay() schemas.ReplayMark { return schemas.ReplayOf(t.headers()) }

// traced returns ctx in the record's trace, also where this process traces nothing: a
// log line names the trace of whoever asked.
func (t *task) traced(ctx context.Context) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return observe.WithTraceParent(ctx, t.traceParent())
}

// traceEnd notes in the record's span how it ended.
func (t *task) traceEnd(end string) {
	if t.span != nil && t.span.IsRecording() {
		t.span.SetAttributes(attribute.String("freshet.end", end))
	}
}

// startCallSpan begins the span of one upstream call. It names no URL, in which there may
// be what is none of a collector's business; the upstream is sent no trace parent.
func (w *Worker) startCallSpan(t *task) trace.Span {
	if !w.tracer.Enabled() {
		return observe.NoSpan
	}
	_, span := w.tracer.Start(trace.ContextWithSpan(context.Background(), t.span), "call the upstream",
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("freshet.source", t.request.Source)))
	return span
}

// endCallSpan ends it with what was answered, or why nothing was.
func endCallSpan(span trace.Span, status int, err error) {
	if !span.IsRecording() {
		span.End()
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	if status != 0 {
		span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	}
	span.End()
}

// startBatchSpan begins the span of a write of many results, linked with each of theirs.
func (w *Worker) startBatchSpan(ctx context.Context, batch []*item) (context.Context, trace.Span) {
	if !w.tracer.Enabled() {
		return ctx, observe.NoSpan
	}
	var links []trace.Link
	for _, i := range batch {
		if i.span.SpanContext().IsSampled() {
			links = append(links, trace.Link{SpanContext: i.span.SpanContext()})
		}
	}
	if len(links) == 0 { // nobody would come from there
		return ctx, observe.NoSpan
	}
	ctx, span := w.tracer.Start(ctx, opWrite, trace.WithNewRoot(), trace.WithLinks(links...),
		trace.WithAttributes(attribute.Int("freshet.results", len(batch))))
	for _, i := range batch {
		i.span.AddLink(trace.Link{SpanContext: span.SpanContext()})
	}
	return ctx, span
}

// endStoreSpan ends the span of one result's write.
func endStoreSpan(span trace.Span, r store.Result) {
	if span.IsRecording() {
		span.SetAttributes(attribute.String("freshet.result", r.String()))
	}
	span.End()
}
