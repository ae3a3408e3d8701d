package query

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
)

// maxClientTraces is the maximum number of requests per second that a process traces because the
// client has set the sampled flag. Without this limit any client could have all its requests
// traced, and overload the trace collector.
const maxClientTraces = 10

// traceBudget counts the traced requests of the current second. Its methods may be called
// concurrently.
type traceBudget struct {
	now    func() time.Time
	mu     sync.Mutex
	second int64
	used   int
}

func newTraceBudget() *traceBudget { return &traceBudget{now: time.Now} }

// allow reports whether one more request may be traced in this second.
func (b *traceBudget) allow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if second := b.now().Unix(); second != b.second {
		b.second, b.used = second, 0
	}
	b.used++
	return b.used <= maxClientTraces
}

// tracing starts and ends the spans of requests.
type tracing struct {
	tracer observe.Tracer
	budget *traceBudget
}

// limitTrace clears the sampled flag of the request's trace parent if more than maxClientTraces
// requests had the flag in this second. Then neither this service nor the workers record the
// trace. Clients with the scope inspect are not limited.
func (tr *tracing) limitTrace(r *http.Request, client access.Client) {
	parents := r.Header[traceHeader] // Header.Get would allocate the canonical name for each request
	if len(parents) == 0 || client.May(access.Inspect) {
		return
	}
	parent := parents[0]
	if !trace.SpanContextFromContext(observe.WithTraceParent(context.Background(), parent)).IsSampled() || tr.budget.allow() {
		return
	}
	r.Header.Set(schemas.TraceParent, parent[:observe.TraceParentSize-2]+"00")
}

// traceHeader is schemas.TraceParent in the form that net/http uses for header names.
const traceHeader = "Traceparent"

// startSpan starts the span of a request, in the trace of the client if it sent one. It is
// called only after the client is authorized, so that unauthorised clients can't cause traces.
func (tr *tracing) startSpan(c echo.Context) {
	r := c.Request()
	method, route := knownMethod(r.Method), c.Path()
	ctx, span := tr.tracer.Start(observe.WithTraceParent(r.Context(), r.Header.Get(schemas.TraceParent)), method+" "+route,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(route)))
	c.Set(spanKey, span)
	c.SetRequest(r.WithContext(ctx))
}

// spanKey is the key of the span in the echo context.
const spanKey = "span"

// endSpan sets the status of a request's span and ends it.
func (tr *tracing) endSpan(c echo.Context) {
	span, begun := c.Get(spanKey).(trace.Span)
	if !begun {
		return
	}
	defer span.End()
	if !span.IsRecording() {
		return
	}
	status := c.Response().Status
	span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, http.StatusText(status))
	}
	if id, ok := c.Get(correlationKey).(string); ok {
		span.SetAttributes(attribute.String("freshet.correlation_id", id))
	}
}

// traceEntity sets the entity on the request's span. The entity must be valid.
func (tr *tracing) traceEntity(c echo.Context, e schemas.Entity) {
	if tr.tracer.Enabled() {
		trace.SpanFromContext(c.Request().Context()).SetAttributes(attribute.String("freshet.entity", e.String()))
	}
}

// withTrace sets the correlation id and the trace parent of an update request. If tracing is
// off, it passes the client's own trace parent on.
func (tr *tracing) withTrace(c echo.Context, req UpdateRequest) UpdateRequest {
	req.CorrelationID = correlationOf(c)
	if tr.tracer.Enabled() {
		req.TraceParent = observe.TraceParent(c.Request().Context())
	} else if parent := c.Request().Header.Get(schemas.TraceParent); len(parent) == observe.TraceParentSize && isPrintable(parent) {
		req.TraceParent = parent
	}
	return req
}
