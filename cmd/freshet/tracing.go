package main

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

// TracingConfig says where spans are sent: to an OpenTelemetry collector that speaks
// OTLP over HTTP below this URL, as http://localhost:4318; empty: nothing is traced. Sample is the
// part of traces begun here that are kept; one that a client who may ask has begun is kept if
// the client keeps it. What the collector asks for (headers, certificates) is read from
// the standard variables, OTEL_EXPORTER_OTLP_….
type TracingConfig struct {
	Endpoint    string  `yaml:"endpoint"`
	SampleRatio float64 `yaml:"sampleRatio"`
}

func (c TracingConfig) check() error {
	var errs []error
	u, err := url.Parse(c.Endpoint)
	switch {
	case c.Endpoint == "":
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		errs = append(errs, errors.New("endpoint: it must be the URL of a collector, as in http://localhost:4318, or empty")) // not the value: it may hold a password
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		errs = append(errs, errors.New("endpoint: it must have no user, query or fragment; what the collector asks for goes into OTEL_EXPORTER_OTLP_HEADERS"))
	}
	if !(c.SampleRatio > 0 && c.SampleRatio <= 1) { // not a number is neither
		errs = append(errs, fmt.Errorf("sampleRatio: %v must be above 0 and at most 1: the part of traces that are kept", c.SampleRatio))
	}
	return errors.Join(errs...)
}

// maxAttributeBytes bounds a span's attributes; a collector refuses what is too large, with
// all that is sent beside it.
const maxAttributeBytes = 1 << 10

// flushTimeout is how long a stop waits for the last spans to be taken.
const flushTimeout = 5 * time.Second

// newTracer returns what makes spans, and what sends the last of them.
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
			log.Warn("the last spans were not taken", "err", err)
		}
	}, nil
}

// newProvider returns a provider that keeps what Sample says.
func (c TracingConfig) newProvider(options ...sdk.TracerProviderOption) *sdk.TracerProvider {
	limits := sdk.NewSpanLimits()
	limits.AttributeValueLengthLimit = maxAttributeBytes
	return sdk.NewTracerProvider(append(options, sdk.WithRawSpanLimits(limits),
		sdk.WithSampler(sdk.ParentBased(linkSampler{sdk.TraceIDRatioBased(c.SampleRatio)})),
		sdk.WithResource(resource.NewSchemaless(
			semconv.ServiceName("freshet"), semconv.ServiceVersion(version()), semconv.ServiceInstanceID(workerName()),
		)))...)
}

// linkSampler keeps a new trace that leads back to one which is kept, as a retry's does:
// half of a story is none.
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

// tracingErrorInterval is how often it is logged that spans are lost.
const tracingErrorInterval = time.Minute

// tracingErrorHandler logs what goes wrong with spans, now and then: they are lost, and
// nothing else is.
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
		t.log.Warn("spans are lost: look at the collector and at tracing.endpoint", "err", err)
	}
}
