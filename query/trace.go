package query

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
)

// follow begins a request's span, in the trace of its client if it has one, and
// returns what ends it.
func (s *Server) follow(c echo.Context) (end func()) {
	r := c.Request()
	method, route := r.Method, c.Path()
	if route == "" { // what a client makes up must not become a name
		method, route = "none", "none"
	}
	ctx, span := s.tracer.Start(observe.WithParent(r.Context(), r.Header.Get(schemas.TraceParent)), method+" "+route,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(route)))
	c.SetRequest(r.WithContext(ctx))
	return func() {
		defer span.End()
		if !span.IsRecording() {
			return
		}
		status := c.Response().Status
		span.SetAttributes(semconv.HTTPResponseStatusCode(status))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(status))
		}
		if key := c.Param("key"); key != "" {
			span.SetAttributes(attribute.String("freshet.entity", c.Param("source")+"/"+c.Param("facet")+"/"+key))
		}
		if id, ok := c.Get(correlationKey).(string); ok {
			span.SetAttributes(attribute.String("freshet.correlation_id", id))
		}
	}
}

// traced writes into a wish what follows it to the dead letter it may become. Where
// nothing is traced here the client's own trace parent is passed on.
func (s *Server) traced(c echo.Context, w Wish) Wish {
	w.CorrelationID = correlationOf(c)
	if s.tracer.On() {
		w.TraceParent = observe.Parent(c.Request().Context())
	} else if parent := c.Request().Header.Get(schemas.TraceParent); len(parent) == observe.ParentSize && printable(parent) {
		w.TraceParent = parent
	}
	return w
}
