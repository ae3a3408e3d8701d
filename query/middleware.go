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

// authorized lets a client in that may do this, and counts its requests.
func (s *Server) authorized(scope access.Scope, handle func(echo.Context, access.Client) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		who, err := s.authenticator.Authenticate(c.Request(), c.RealIP())
		if err != nil {
			return err
		}
		if !who.May(scope) {
			return access.Forbid(scope)
		}
		if scope != access.Admin { // whoever stops a source in need is not told to wait
			if err := s.limiter.AllowRequests(who.Name, 1); err != nil {
				return err
			}
		}
		s.limitTrace(c.Request(), who)
		if s.tracer.Enabled() {
			s.startSpan(c)
		}
		return handle(c, who)
	}
}

// ipExtractor returns how a client's address is found: no header is believed but
// from a proxy that is known.
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

// corsConfig lets pages of these origins, and of none that only looks like one of
// them, read snapshots. Tokens travel in a header that a page must set itself; no
// cookie is ever asked for.
func corsConfig(origins []string) middleware.CORSConfig {
	return middleware.CORSConfig{
		Skipper:         func(c echo.Context) bool { return !strings.HasPrefix(c.Request().URL.Path, "/v1/") },
		AllowOriginFunc: func(origin string) (bool, error) { return slices.Contains(origins, origin), nil },
		AllowMethods:    []string{http.MethodGet, http.MethodHead, http.MethodPost},
		AllowHeaders:    []string{"Authorization", "Content-Type", "If-None-Match", "Prefer", "Last-Event-ID", correlationHeader, "traceparent"},
		ExposeHeaders: []string{
			"ETag", "Age", "Cache-Status", "Retry-After", "RateLimit", "RateLimit-Policy", "Preference-Applied", "WWW-Authenticate", correlationHeader,
		},
		MaxAge: int((10 * time.Minute).Seconds()),
	}
}

// keepEscapedPath has the router work on the path as it was sent: what is encoded in a key
// must not become a separator before it is matched. The parts are unescaped once,
// by whoever reads them.
func keepEscapedPath(r *http.Request) {
	if r.URL.RawPath == "" {
		r.URL.RawPath = r.URL.EscapedPath()
	}
}

// instrument stands around every handler; one function, since each costs an allocation
// a request. It bounds the path, keeps the caller's id, turns an error or a panic
// into an answer, and counts by route and status, never by key.
func (s *Server) instrument(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		started := time.Now()
		r := c.Request()
		if id := r.Header.Get(correlationHeader); printable(id) {
			setCorrelation(c, id)
		}
		var err error
		if n := len(r.RequestURI); n > maxPathBytes {
			err = problem.New(http.StatusRequestURITooLong, "path-too-long", fmt.Sprintf("The path and query have %d bytes; they may have %d.", n, maxPathBytes))
		} else {
			err = recoverPanic(next, c)
		}
		_, panicked := errors.AsType[*panicError](err)
		begun := panicked && c.Response().Committed
		if err != nil {
			c.Error(err) // writes the answer, so that its status is known
		}
		path := c.Path()
		if c.Get(waitsKey) != nil { // as long as it wanted to
			path += "?wait"
		}
		s.metrics.observeResponse(path, r.Method, c.Response().Status, time.Since(started))
		if s.tracer.Enabled() {
			s.endSpan(c)
		}
		if begun {
			panic(http.ErrAbortHandler) // the client must not take what it has for the whole
		}
		return nil
	}
}

// recoverPanic turns a panic into an error: one bad request must not take others along.
func recoverPanic(next echo.HandlerFunc, c echo.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = newPanic(p)
		}
	}()
	return next(c)
}

// panicError is a bug that was met on the way to an answer.
type panicError struct {
	what  any
	stack []byte
}

func newPanic(what any) error { return &panicError{what, debug.Stack()} }

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v\n%s", p.what, p.stack) }

// withRecover does the same for what several requests wait for: a panic in a goroutine
// of its own would end the process.
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

// correlationOf returns the id that follows a request to the dead letter it may
// cause. One is made where it is needed first: a read that asks for nothing has
// none.
func correlationOf(c echo.Context) string {
	if id, ok := c.Get(correlationKey).(string); ok {
		return id
	}
	id := uuid.Must(uuid.NewV7()).String() // fails without the system's randomness only
	setCorrelation(c, id)
	return id
}

func setCorrelation(c echo.Context, id string) {
	c.Set(correlationKey, id)
	c.Response().Header().Set(correlationHeader, id)
}

func printable(s string) bool {
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
