package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/freshet/freshet/observe"
)

// TracingConfig configures the export of traces. Headers and certificates for the collector come from
// the standard variables OTEL_EXPORTER_OTLP_….
type TracingConfig struct {
	// Endpoint is the base URL of an OpenTelemetry collector (OTLP over HTTP), such as
	// http://localhost:4318; empty: no tracing.
	Endpoint string `yaml:"endpoint"`
	// SampleRatio is the fraction of the traces begun by freshet that is exported, above 0 and at most
	// 1. A trace that an authorized client began keeps the client's sampling decision.
	SampleRatio float64 `yaml:"sampleRatio"`
}

func (c TracingConfig) check() error {
	var errs []error
	u, err := url.Parse(c.Endpoint)
	switch {
	case c.Endpoint == "":
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		errs = append(errs, errors.New("endpoint: must be the URL of a collector, as in http://localhost:4318, or empty")) // the error does not show the value, which may hold a password
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		errs = append(errs, errors.New("endpoint: must not have a user, query or fragment; set OTEL_EXPORTER_OTLP_HEADERS for the collector's credentials"))
	}
	if !(c.SampleRatio > 0 && c.SampleRatio <= 1) { // the negated condition also rejects NaN
		errs = append(errs, fmt.Errorf("sampleRatio: %v must be above 0 and at most 1; it is the ratio of sampled traces", c.SampleRatio))
	}
	return errors.Join(errs...)
}

// maxAttributeBytes bounds each attribute of a span. A collector rejects an oversized export with
// all its spans.
const maxAttributeBytes = 1 << 10

// flushTimeout bounds the export of the last spans at shutdown.
const flushTimeout = 5 * time.Second

// newTracer returns a tracer and a function that exports the remaining spans at shutdown.
func (c TracingConfig) newTracer(ctx context.Context, log *slog.Logger) (observe.Tracer, func(), error) {
	if c.Endpoint == "" {
		return observe.Tracer{}, func() {}, nil
	}
	to, err := url.JoinPath(c.Endpoint, "v1/traces")
	if err != nil {
		return observe.Tracer{}, nil, fmt.Errorf("tracing.endpoint: %w", err)
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(to))
	if err != nil {
		return observe.Tracer{}, nil, fmt.Errorf("tracing.endpoint: %w", err)
	}
	otel.SetErrorHandler(&tracingErrorHandler{log: log})
	provider := c.newProvider(sdk.WithBatcher(exporter))
	return observe.NewTracer(provider), func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := provider.Shutdown(limit); err != nil {
			log.Warn("export of the last spans failed", "err", err)
		}
	}, nil
}

// newProvider returns a tracer provider that samples the fraction SampleRatio of the new traces.
func (c TracingConfig) newProvider(options ...sdk.TracerProviderOption) *sdk.TracerProvider {
	limits := sdk.NewSpanLimits()
	limits.AttributeValueLengthLimit = maxAttributeBytes
	return sdk.NewTracerProvider(append(options, sdk.WithRawSpanLimits(limits),
		sdk.WithSampler(sdk.ParentBased(linkSampler{sdk.TraceIDRatioBased(c.SampleRatio)})),
		sdk.WithResource(resource.NewSchemaless(
			semconv.ServiceName("freshet"), semconv.ServiceVersion(Version()), semconv.ServiceInstanceID(workerName()),
		)))...)
}

// linkSampler samples a new trace if it links to a sampled trace. For example, a retry begins a new
// trace that links to the trace of the failed request. If the first trace of a request is sampled,
// the traces of all its retries are sampled too.
type linkSampler struct{ sdk.Sampler }

// ShouldSample implements trace.Sampler.
func (l linkSampler) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	for _, link := range p.Links {
		if link.SpanContext.IsSampled() {
			return sdk.SamplingResult{Decision: sdk.RecordAndSample, Tracestate: trace.SpanContextFromContext(p.ParentContext).TraceState()}
		}
	}
	return l.Sampler.ShouldSample(p)
}

// tracingErrorInterval is the minimum interval between two log lines about lost spans.
const tracingErrorInterval = time.Minute

// tracingErrorHandler logs export errors at most once per tracingErrorInterval.
type tracingErrorHandler struct {
	log  *slog.Logger
	mu   sync.Mutex
	last time.Time
}

// Handle implements otel.ErrorHandler.
func (t *tracingErrorHandler) Handle(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.last) >= tracingErrorInterval {
		t.last = now
		t.log.Warn("spans lost; check the collector and tracing.endpoint", "err", err)
	}
}
