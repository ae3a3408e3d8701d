// Package query is the HTTP service: it answers reads from what is stored,
// within milliseconds whatever the upstream is doing, and asks for a refresh
// where one is due. It waits for nobody else.
package query

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
)

const (
	// storeTimeout bounds a look into the store, and readPatience what a wish may
	// cost a read: after that the answer goes out without it.
	storeTimeout = 2 * time.Second
	readPatience = 50 * time.Millisecond
	// wishesMost bounds the wishes under way whose readers have been answered.
	wishesMost = 1000
	// shutdownPatience is how long a stop waits for answers under way.
	shutdownPatience = 10 * time.Second
)

// Server is the query service.
type Server struct {
	store   Store
	sources map[string]Source
	wishes  Requester
	waits   Waits
	log     *slog.Logger
	metrics *metrics
	echo    *echo.Echo
	room    chan struct{} // a place for each wish under way
}

// New returns the service for the sources by name. ops answers for health and
// metrics, admin whatever lies below /admin/v1.
func New(st Store, sources map[string]Source, wishes Requester, waits Waits, ops, admin http.Handler, log *slog.Logger, reg prometheus.Registerer) *Server {
	s := &Server{
		store: st, sources: sources, wishes: wishes, waits: waits, log: log, metrics: newMetrics(reg),
		echo: echo.New(), room: make(chan struct{}, wishesMost),
	}
	e := s.echo
	e.HideBanner, e.HidePort = true, true
	e.IPExtractor = echo.ExtractIPDirect() // no header is believed until a proxy is configured
	e.HTTPErrorHandler = s.handleError
	e.Pre(escapedPath)
	e.Use(s.observe, correlate, s.survive)
	e.Match([]string{http.MethodGet, http.MethodHead}, "/v1/:source/:facet/:key", s.read)
	e.POST("/v1/:source/:facet/:key/refresh", s.refresh)
	e.GET("/openapi.yaml", func(c echo.Context) error { return c.Blob(http.StatusOK, "application/yaml", schemas.OpenAPI) })
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/metrics"} {
		e.GET(path, echo.WrapHandler(ops))
	}
	e.Any("/admin/v1/*", echo.WrapHandler(admin))
	return s
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// Serve answers requests on the listener until ctx ends, and then finishes those
// under way.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownPatience)
		defer cancel()
		stopped <- server.Shutdown(limit)
	})
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	if err := <-stopped; err != nil {
		return fmt.Errorf("stop serving HTTP: %w", err)
	}
	return nil
}

// escapedPath has the router work on the path as it was sent: what is encoded
// in a key must not become a separator before it is matched. The parts are
// unescaped once, by whoever reads them.
func escapedPath(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		u := c.Request().URL
		u.RawPath = u.EscapedPath()
		return next(c)
	}
}

// survive turns a panic into a 500: one bad request must not take others along.
func (s *Server) survive(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		return next(c)
	}
}

const (
	correlationHeader  = "X-Correlation-Id"
	correlationMaxSize = 128
	correlationKey     = "correlation_id"
)

// correlate gives each request an id that follows it to the dead letter it may
// cause: the caller's, if it sent one that can be written down.
func correlate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get(correlationHeader)
		if !printable(id) {
			made, err := uuid.NewV7()
			if err != nil {
				return fmt.Errorf("make a correlation id: %w", err)
			}
			id = made.String()
		}
		c.Set(correlationKey, id)
		c.Response().Header().Set(correlationHeader, id)
		return next(c)
	}
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

// observe counts requests by route and status, never by key.
func (s *Server) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		started := time.Now()
		err := next(c)
		if err != nil {
			c.Error(err) // writes the answer, so that its status is known
		}
		s.metrics.answered(c.Path(), c.Request().Method, c.Response().Status, time.Since(started))
		return nil
	}
}
