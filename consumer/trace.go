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

// A record's span is a child of the span in which the Kafka client received the record. So the
// record's span belongs to the trace of the HTTP request that caused the refresh. A batch write has
// a trace of its own. Span links connect the span of the batch with the spans of its results, in
// both directions.

// startSpan starts the span of a record's processing. It returns ctx and `hard`, both with that span,
// and the span.
func (b *base) startSpan(ctx, hard context.Context, t *task) (context.Context, context.Context, trace.Span) {
	if !b.tracer.Enabled() {
		t.span = observe.NoSpan
		return ctx, hard, t.span
	}
	under := ctx
	if t.record.Context != nil {
		under = trace.ContextWithSpan(ctx, trace.SpanFromContext(t.record.Context))
	}
	ctx, t.span = b.tracer.Start(under, "refresh", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		attribute.String("freshet.entity", t.request.Entity.String()), attribute.String("freshet.lane", string(b.lane)),
		attribute.String("freshet.reason", string(t.request.Reason)), attribute.String("freshet.correlation_id", t.request.CorrelationID),
		attribute.Int64("freshet.version", t.request.Version),
	))
	return ctx, trace.ContextWithSpan(hard, t.span), t.span
}

// traceParent returns the trace parent that is stored with the record's retry or failure status:
// the record's span, or, without a span, the trace parent in the record's headers.
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

// headers returns the record's headers.
func (t *task) headers() []schemas.Header {
	headers := make([]schemas.Header, 0, len(t.record.Headers))
	for _, h := range t.record.Headers {
		headers = append(headers, schemas.Header(h))
	}
	return headers
}

// replay returns the ReplayMark of the record, which identifies the replay that published the
// record. Retries of the record belong to the same replay.
func (t *task) replay() schemas.ReplayMark { return schemas.ReplayOf(t.headers()) }

// traced returns ctx with the record's trace, even if this process records no spans, so that log
// lines carry the requester's trace id.
func (t *task) traced(ctx context.Context) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return observe.WithTraceParent(ctx, t.traceParent())
}

// traceEnd records in the record's span how the record has ended, for example "retrying".
func (t *task) traceEnd(end string) {
	if t.span != nil && t.span.IsRecording() {
		t.span.SetAttributes(attribute.String("freshet.end", end))
	}
}

// startCallSpan starts the span of one upstream call. It omits the URL, which may contain secrets,
// and the upstream receives no trace parent.
func (b *base) startCallSpan(t *task) trace.Span {
	if !b.tracer.Enabled() {
		return observe.NoSpan
	}
	_, span := b.tracer.Start(trace.ContextWithSpan(context.Background(), t.span), "call the upstream",
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("freshet.source", t.request.Source)))
	return span
}

// endCallSpan ends the span of a call with its status and its error.
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

// startBatchSpan starts the span of a batch write, linked with the span of each result.
func (b *base) startBatchSpan(ctx context.Context, batch []*item) (context.Context, trace.Span) {
	if !b.tracer.Enabled() {
		return ctx, observe.NoSpan
	}
	var links []trace.Link
	for _, i := range batch {
		if i.span.SpanContext().IsSampled() {
			links = append(links, trace.Link{SpanContext: i.span.SpanContext()})
		}
	}
	if len(links) == 0 { // no span for the batch, because no result has a sampled span to link
		return ctx, observe.NoSpan
	}
	ctx, span := b.tracer.Start(ctx, opWrite, trace.WithNewRoot(), trace.WithLinks(links...),
		trace.WithAttributes(attribute.Int("freshet.results", len(batch))))
	for _, i := range batch {
		i.span.AddLink(trace.Link{SpanContext: span.SpanContext()})
	}
	return ctx, span
}

// endStoreSpan ends the span of one result, from its submission to the writer until it is written.
func endStoreSpan(span trace.Span, r store.Result) {
	if span.IsRecording() {
		span.SetAttributes(attribute.String("freshet.result", r.String()))
	}
	span.End()
}
