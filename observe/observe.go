// Package observe makes events visible in the same way for all packages: histograms, traces across
// processes, trace ids in log lines, and conditions that are logged when they begin and end. It
// makes no decisions and imports no other package of the module.
package observe

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kotel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Histogram returns the options of a histogram with classic and native buckets. `buckets` are the
// upper bounds of the classic buckets, in the unit at the end of the name. Each native bucket is 1.1
// times as wide as the previous one. A native histogram that exceeds 160 buckets is reset at most
// once an hour instead of growing.
func Histogram(name, help string, buckets ...float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}
}

// Tracer starts the spans of a process. The zero Tracer is disabled: a call costs one comparison
// and no allocation.
type Tracer struct {
	provider trace.TracerProvider
	tracer   trace.Tracer
}

// NewTracer returns a tracer that creates its spans with p.
func NewTracer(p trace.TracerProvider) Tracer {
	return Tracer{p, p.Tracer("github.com/freshet/freshet")}
}

// NoSpan is a span that records nothing.
var NoSpan trace.Span = noop.Span{}

// Enabled reports whether spans are recorded. Callers check it before they compute expensive
// options for Start.
func (t Tracer) Enabled() bool { return t.tracer != nil }

// Start starts a child span of the span in ctx. The caller ends the child span.
func (t Tracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	if t.tracer == nil {
		return ctx, NoSpan
	}
	return t.tracer.Start(ctx, name, options...) //nolint:spancheck // the caller ends the span
}

// Kafka returns the settings of a Kafka client that traces records. A produced record gets the
// trace of its context as a header. The context of a received record carries the trace that is in
// the record's headers.
func (t Tracer) Kafka() []kgo.Opt {
	if !t.Enabled() {
		return nil
	}
	return []kgo.Opt{kgo.WithHooks(kotel.NewTracer(kotel.TracerProvider(t.provider), kotel.TracerPropagator(propagator)))}
}

// TraceParentSize is the length of a W3C trace parent of version 00. Values of another length are
// rejected, because a long value would be stored in Kafka and in the database with each request of
// a batch.
const TraceParentSize = 55

// propagator reads and writes trace parents (W3C Trace Context).
var propagator propagation.TraceContext

// traceParentCarrier passes only the field `traceparent` to and from propagator. The field
// `tracestate` is dropped.
type traceParentCarrier struct{ parent string }

func (h *traceParentCarrier) Get(key string) string {
	if key == "traceparent" {
		return h.parent
	}
	return ""
}

func (h *traceParentCarrier) Set(key, value string) {
	if key == "traceparent" {
		h.parent = value
	}
}

func (h *traceParentCarrier) Keys() []string { return []string{"traceparent"} }

// WithTraceParent returns a context in which the span of the trace parent is the current remote
// span. It returns ctx unchanged if `parent` is empty or malformed.
func WithTraceParent(ctx context.Context, parent string) context.Context {
	if len(parent) != TraceParentSize {
		return ctx
	}
	return propagator.Extract(ctx, &traceParentCarrier{parent})
}

// TraceParent returns the trace parent of the span in ctx, or "" if there is none.
func TraceParent(ctx context.Context) string {
	var h traceParentCarrier
	propagator.Inject(ctx, &h)
	return h.parent
}

// LinkTo returns the options of a span that starts a new trace and has a link to the span of the
// trace parent `parent`. It is for work much later than that span, such as a retry.
func LinkTo(parent string) []trace.SpanStartOption {
	options := []trace.SpanStartOption{trace.WithNewRoot()}
	if s := trace.SpanContextFromContext(WithTraceParent(context.Background(), parent)); s.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: s}))
	}
	return options
}

// TraceHandler returns a handler that adds the trace id and the span id of the context to each log
// record.
func TraceHandler(h slog.Handler) slog.Handler { return traces{h} }

type traces struct{ slog.Handler }

// Handle implements slog.Handler.
func (t traces) Handle(ctx context.Context, r slog.Record) error {
	if s := trace.SpanContextFromContext(ctx); s.IsValid() {
		r.AddAttrs(slog.String("trace_id", s.TraceID().String()), slog.String("span_id", s.SpanID().String()))
	}
	return t.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (t traces) WithAttrs(attrs []slog.Attr) slog.Handler { return traces{t.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (t traces) WithGroup(name string) slog.Handler { return traces{t.Handler.WithGroup(name)} }
