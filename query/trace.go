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

// maxClientTraces is how many requests a second of one process are traced because
// their clients ask for it. A client without the scope inspect could have every request
// traced otherwise, at the cost of the collector.
const maxClientTraces = 10

// traceBudget counts the requests of a second that are traced for their clients. Its
// methods may be called concurrently.
type traceBudget struct {
	now    func() time.Time
	mu     sync.Mutex
	second int64
	used   int
}

func newTraceBudget() *traceBudget { return &traceBudget{now: time.Now} }

// take reports whether one more request may be traced in this second.
func (b *traceBudget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if second := b.now().Unix(); second != b.second {
		b.second, b.used = second, 0
	}
	b.used++
	return b.used <= maxClientTraces
}

// limitTrace clears the sampled flag of a request's trace parent beyond maxClientTraces.
// The trace is then recorded neither here nor by the workers.
func (s *Server) limitTrace(r *http.Request, who access.Client) {
	parent := r.Header.Get(schemas.TraceParent)
	if parent == "" || who.May(access.Inspect) {
		return
	}
	if !trace.SpanContextFromContext(observe.WithTraceParent(context.Background(), parent)).IsSampled() || s.traces.take() {
		return
	}
	r.Header.Set(schemas.TraceParent, parent[:observe.TraceParentSize-2]+"00")
}

// startSpan begins a request's span, in the trace of its client if it has one. It is
// begun when it is known that the client may ask: nobody else decides what is kept.
func (s *Server) startSpan(c echo.Context) {
	r := c.Request()
	method, route := knownMethod(r.Method), c.Path()
	ctx, span := s.tracer.Start(observe.WithTraceParent(r.Context(), r.Header.Get(schemas.TraceParent)), method+" "+route,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(route)))
	c.Set(spanKey, span)
	c.SetRequest(r.WithContext(ctx))
}

// spanKey is where a request's span is kept.
const spanKey = "span"

// endSpan ends a request's span, if it has one, with what was answered.
func (s *Server) endSpan(c echo.Context) {
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

// traceEntity writes into a request's span which entity it is about, once that is known to
// be one.
func (s *Server) traceEntity(c echo.Context, e schemas.Entity) {
	if s.tracer.Enabled() {
		trace.SpanFromContext(c.Request().Context()).SetAttributes(attribute.String("freshet.entity", e.String()))
	}
}

// withTrace writes into a wish what follows it to the dead letter it may become. Where
// nothing is traced here the client's own trace parent is passed on.
func (s *Server) withTrace(c echo.Context, w UpdateRequest) UpdateRequest {
	w.CorrelationID = correlationOf(c)
	if s.tracer.Enabled() {
		w.TraceParent = observe.TraceParent(c.Request().Context())
	} else if parent := c.Request().Header.Get(schemas.TraceParent); len(parent) == observe.TraceParentSize && printable(parent) {
		w.TraceParent = parent
	}
	return w
}
