// Package observe is how what happens is made visible, in one way for all packages:
// histograms, the trace that a request leaves over process borders, and the ids by
// which a log line is found from a trace. It decides nothing and knows no package.
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

// Histogram returns the options of a histogram with these classic buckets (upper
// bounds, in the base unit of its name) and native ones, that differ by a tenth. A
// histogram of values that spread over many orders of magnitude starts anew after an
// hour rather than grow.
func Histogram(name, help string, buckets ...float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}
}

// Tracer begins the spans of a process. The zero Tracer is off: it costs a
// comparison and no memory.
type Tracer struct {
	provider trace.TracerProvider
	tracer   trace.Tracer
}

// NewTracer returns a tracer that has its spans made by p.
func NewTracer(p trace.TracerProvider) Tracer {
	return Tracer{p, p.Tracer("github.com/freshet/freshet")}
}

// NoSpan is the span of what is not traced: it does nothing.
var NoSpan trace.Span = noop.Span{}

// Enabled reports whether spans are made at all. Where the options of Start cost
// something, it is asked first.
func (t Tracer) Enabled() bool { return t.tracer != nil }

// Start begins a span below that of ctx.
func (t Tracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	if t.tracer == nil {
		return ctx, NoSpan
	}
	return t.tracer.Start(ctx, name, options...) //nolint:spancheck // whoever asked for it ends it
}

// Kafka returns the settings of a client that traces each record: below the span in
// its context and on in its headers where it is produced; from there on, in its
// context, where it is received.
func (t Tracer) Kafka() []kgo.Opt {
	if !t.Enabled() {
		return nil
	}
	return []kgo.Opt{kgo.WithHooks(kotel.NewTracer(kotel.TracerProvider(t.provider), kotel.TracerPropagator(propagator)))}
}

// TraceParentSize is the length of a W3C trace parent of version 00. What is longer would
// be written to Kafka and the database with each request of a batch.
const TraceParentSize = 55

// propagator reads and writes trace parents (W3C trace context).
var propagator propagation.TraceContext

// traceParentCarrier is the only field that propagator is let read and write: the trace state
// that others put beside it is not carried along.
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

// WithTraceParent returns ctx in the trace of a trace parent; ctx itself, if that is
// empty or none.
func WithTraceParent(ctx context.Context, parent string) context.Context {
	if len(parent) != TraceParentSize {
		return ctx
	}
	return propagator.Extract(ctx, &traceParentCarrier{parent})
}

// TraceParent returns the trace parent for what follows from the span of ctx; empty if
// there is none.
func TraceParent(ctx context.Context) string {
	var h traceParentCarrier
	propagator.Inject(ctx, &h)
	return h.parent
}

// LinkTo returns the options of a span that begins a trace of its own, and leads back
// to the one of a trace parent: for what follows much later, as a retry does.
func LinkTo(parent string) []trace.SpanStartOption {
	options := []trace.SpanStartOption{trace.WithNewRoot()}
	if s := trace.SpanContextFromContext(WithTraceParent(context.Background(), parent)); s.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: s}))
	}
	return options
}

// TraceHandler returns a handler that adds to each record the ids of the trace and span
// in its context, if there is one.
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
