package query

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
)

// authorized returns a handler that authenticates the client, checks its scope and its request
// limit, and then calls the function `handle`.
func (s *Server) authorized(scope access.Scope, handle func(echo.Context, access.Client) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		client, err := s.authenticator.Authenticate(c.Request(), c.RealIP())
		if err != nil {
			return err
		}
		if !client.May(scope) {
			return access.Forbid(scope)
		}
		if scope != access.Admin { // no rate limit for operators, so that an emergency stop always works
			if err := s.limiter.AllowRequests(client.Name, 1); err != nil {
				return err
			}
		}
		s.tracing.limitTrace(c.Request(), client)
		if s.tracing.tracer.Enabled() {
			s.tracing.startSpan(c)
		}
		return handle(c, client)
	}
}

// ipExtractor returns the function that determines a client's address. It uses X-Forwarded-For
// only if the request comes from a trusted proxy.
func ipExtractor(proxies []string) (echo.IPExtractor, error) {
	if len(proxies) == 0 {
		return echo.ExtractIPDirect(), nil
	}
	options := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for _, p := range proxies {
		_, network, err := net.ParseCIDR(p)
		if err != nil {
			return nil, fmt.Errorf("access.trustedProxies: %q must be a network, as in 10.0.0.0/8", p)
		}
		options = append(options, echo.TrustIPRange(network))
	}
	return echo.ExtractIPFromXFFHeader(options...), nil
}

// corsConfig allows pages of exactly these origins to call /v1 from a browser. Credentials are
// sent in a header that the page sets; cookies are never used.
func corsConfig(origins []string) middleware.CORSConfig {
	return middleware.CORSConfig{
		Skipper: func(c echo.Context) bool {
			path := c.Request().URL.Path
			return path != "/v1" && !strings.HasPrefix(path, "/v1/")
		},
		AllowOriginFunc: func(origin string) (bool, error) { return slices.Contains(origins, origin), nil },
		AllowMethods:    []string{http.MethodGet, http.MethodHead, http.MethodPost},
		AllowHeaders:    []string{"Authorization", "Content-Type", "If-None-Match", "Prefer", "Last-Event-ID", idempotencyHeader, correlationHeader, "traceparent"},
		ExposeHeaders: []string{
			"ETag", "Link", "Age", "Cache-Status", degradedHeader, "Retry-After", "RateLimit", "RateLimit-Policy", "Preference-Applied", "WWW-Authenticate", correlationHeader,
		},
		MaxAge: int((10 * time.Minute).Seconds()),
	}
}

// instrument is the middleware for all requests. It does several things, because each further
// middleware would cost an allocation per request. It limits the length of the path, keeps the
// client's correlation id, turns errors and panics into responses, records metrics by route and
// status, and logs reads.
func (s *Server) instrument(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		started := time.Now()
		r := c.Request()
		if ids := r.Header[correlationHeader]; len(ids) > 0 && isPrintable(ids[0]) {
			setCorrelation(c, ids[0])
		}
		var err error
		if n := len(r.RequestURI); n > maxPathBytes {
			err = problem.New(http.StatusRequestURITooLong, problem.PathTooLong, fmt.Sprintf("The path and query have %d bytes; they may have %d.", n, maxPathBytes))
		} else {
			err = recoverPanic(next, c)
		}
		_, panicked := errors.AsType[*panicError](err)
		begun := panicked && c.Response().Committed
		if err != nil {
			c.Error(err) // writes the response, so that its status can be recorded below
		}
		path := c.Path()
		if c.Get(waitsKey) != nil { // a read or refresh with a wait, or an event stream of the console: its duration is recorded under the path + "?wait"
			path += "?wait"
		}
		s.metrics.observeResponse(path, r.Method, c.Response().Status, time.Since(started))
		s.readLog.logReads(c, started)
		if s.tracing.tracer.Enabled() {
			s.tracing.endSpan(c)
		}
		if begun {
			panic(http.ErrAbortHandler) // close the connection, so that the client notices that the response is incomplete
		}
		return nil
	}
}

// recoverPanic calls `next` and returns a panic as an error, so that a bug in one request does not end
// the process.
func recoverPanic(next echo.HandlerFunc, c echo.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = newPanic(p)
		}
	}()
	return next(c)
}

// panicError is the error that replaces a panic of a handler.
type panicError struct {
	what  any
	stack []byte
}

func newPanic(what any) error { return &panicError{what, debug.Stack()} }

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v\n%s", p.what, p.stack) }

// withRecover wraps a function that runs in its own goroutine, where a panic would end the
// process. It returns a panic as an error.
func withRecover(do func() (any, error)) func() (any, error) {
	return func() (v any, err error) {
		defer func() {
			if p := recover(); p != nil {
				v, err = nil, newPanic(p)
			}
		}()
		return do()
	}
}

const (
	correlationHeader  = "X-Correlation-Id"
	correlationMaxSize = 128
	correlationKey     = "correlation_id"
	waitsKey           = "waited"
)

// correlationOf returns the correlation id of the request. If the client sent no id, the first call
// of correlationOf creates an id. So no id is created for a read that enqueues nothing.
func correlationOf(c echo.Context) string {
	if id, ok := c.Get(correlationKey).(string); ok {
		return id
	}
	id := uuid.Must(uuid.NewV7()).String() // NewV7 fails only if the system returns no random numbers
	setCorrelation(c, id)
	return id
}

func setCorrelation(c echo.Context, id string) {
	c.Set(correlationKey, id)
	c.Response().Header().Set(correlationHeader, id)
}

func isPrintable(s string) bool {
	if s == "" || len(s) > correlationMaxSize {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}
