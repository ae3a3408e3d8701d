// Package query is the HTTP service: it answers reads from what is stored,
// within milliseconds whatever the upstream is doing, and asks for a refresh
// where one is due. It waits for nobody else, unless a client wants to wait. It
// tells who is read, so that what is read can be prefetched.
package query

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
)

const (
	// storeTimeout bounds a look into the store.
	storeTimeout = 2 * time.Second
	// maxAckWaits is how many refreshes of a process may wait for Kafka.
	maxAckWaits = 1000
	// shutdownTimeout is how long a stop waits for answers under way.
	shutdownTimeout = 10 * time.Second
	// maxHeaderBytes and pathMost bound a request's head, and its path and query;
	// bodyMost a body that nobody asked for.
	maxHeaderBytes = 64 << 10
	maxPathBytes   = 32 << 10
	maxBodyBytes   = 64 << 10
)

// Server is the query service.
type Server struct {
	cache            *snapshotCache
	responses        *responseBudget
	readCounter      *readCounter
	waiterSet        *waiterSet
	sources          map[string]Source
	enqueuer         Enqueuer
	subscriber       SettleSubscriber
	estimator        WaitEstimator
	authenticator    Authenticator
	limiter          ClientLimiter
	log              *slog.Logger
	metrics          *metrics
	tracer           observe.Tracer
	traces           *traceBudget
	echo             *echo.Echo
	enqueues         singleflight.Group
	batcher          *batcher
	enqueueSlots     chan struct{} // a place for each refresh that waits for Kafka
	waiterCount      atomic.Int64
	lastStoreWarning atomic.Int64  // when it was last logged that the store can't be read
	stopping         chan struct{} // closed when waiters are to be answered
}

// New returns the service.
func New(config Config, deps Deps) (*Server, error) {
	m := newMetrics(deps.Metrics)
	t := newReadCounter(deps.ReadRecorder, m, deps.Log)
	for name := range deps.Sources {
		m.recorded.WithLabelValues(name)
	}
	s := &Server{
		responses: newResponseBudget(config.ResponseMemory, deps.Metrics), readCounter: t, waiterSet: newWaiterSet(),
		sources: deps.Sources, enqueuer: deps.Enqueuer, subscriber: deps.SettleSubscriber, estimator: deps.WaitEstimator,
		authenticator: deps.Authenticator, limiter: deps.ClientLimiter, log: deps.Log, metrics: m, tracer: deps.Trace, traces: newTraceBudget(),
		echo: echo.New(), enqueueSlots: make(chan struct{}, maxAckWaits), stopping: make(chan struct{}),
	}
	s.batcher = &batcher{enqueuer: deps.Enqueuer, log: deps.Log}
	s.cache = newSnapshotCache(deps.Store, func(e schemas.Entity) bool { return s.sources[e.Source].Visibility(e.Key) != "" }, config.Memory, m, deps.ClientLimiter, t, deps.Log)
	deps.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "waiting_clients", Help: "Clients that wait for a refresh or follow an entity.",
	}, func() float64 { return float64(s.waiterCount.Load()) }))
	address, err := ipExtractor(config.Proxies)
	if err != nil {
		return nil, err
	}
	e := s.echo
	e.HideBanner, e.HidePort = true, true
	e.IPExtractor = address
	e.HTTPErrorHandler = s.handleError
	e.Use(s.instrument)
	if len(config.Origins) > 0 {
		e.Use(middleware.CORSWithConfig(corsConfig(config.Origins)))
	}
	read := []string{http.MethodGet, http.MethodHead}
	const entity = "/v1/:source/:facet/:key"
	e.Match(read, "/v1/:source/:facet", s.authorized(access.Read, s.readMany))
	e.Match(read, entity, s.authorized(access.Read, s.read))
	e.Match(read, entity+"/events", s.authorized(access.Read, s.events))
	e.POST("/v1/:source/:facet/refresh", s.authorized(access.Refresh, s.refreshMany))
	e.POST(entity+"/refresh", s.authorized(access.Refresh, s.refresh))
	s.serveDocs(read)
	ops := echo.WrapHandler(deps.Ops)
	e.Match(read, "/livez", ops)
	e.Match(read, "/readyz", ops)
	// Which dependency fails for which reason, and how much is read, is not for everybody.
	inside := s.authorized(access.Admin, func(c echo.Context, _ access.Client) error { return ops(c) })
	e.Match(read, "/healthz", func(c echo.Context) error {
		if c.Request().URL.RawQuery == "" {
			return ops(c)
		}
		return inside(c)
	})
	e.Match(read, "/metrics", inside)
	e.Any("/admin/v1/*", s.authorized(access.Admin, func(c echo.Context, who access.Client) error {
		correlationOf(c)
		r := c.Request()
		deps.Admin.ServeHTTP(c.Response(), r.WithContext(access.WithClient(r.Context(), who)))
		return nil
	}))
	if deps.Console != nil {
		e.Any("/console", s.console(deps.Console))
		e.Any("/console/*", s.console(deps.Console))
	}
	return s, nil
}

// serveDocs serves the contract, for programs and for people.
func (s *Server) serveDocs(methods []string) {
	s.echo.Match(methods, "/openapi.yaml", func(c echo.Context) error {
		return c.Blob(http.StatusOK, "application/yaml", schemas.OpenAPI)
	})
	s.echo.Match(methods, "/docs", func(c echo.Context) error {
		c.Response().Header().Set("Content-Security-Policy", schemas.OpenAPIPageCSP)
		return c.HTMLBlob(http.StatusOK, schemas.OpenAPIPage)
	})
}

// Ready returns nil while reads can be answered: from what is remembered, or else
// from the database, if it answers the ping.
func (s *Server) Ready(ctx context.Context, ping func(context.Context) error) error {
	if !s.cache.isEmpty() {
		return nil
	}
	return ping(ctx)
}

// strictTransport has browsers call the service by https alone, for a year (RFC 6797).
const strictTransport = "max-age=31536000"

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.TLS != nil {
		w.Header().Set("Strict-Transport-Security", strictTransport)
	}
	keepEscapedPath(r)
	s.echo.ServeHTTP(w, r)
}

// Run hears of settles, and tells who is read, until ctx ends; then it tells of what was
// read last, for which it may take some seconds.
func (s *Server) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() { s.readCounter.run(ctx) })
	defer telling.Wait()
	defer stop() // before that: a line that fails ends the telling too
	return s.subscriber.Subscribe(ctx, s.onSettled, func(up bool) {
		if ctx.Err() == nil { // a line that ends with the process is no news
			s.onConnection(up)
		}
	})
}

// onSettled notes a settle: first what is remembered, then who waits looks again.
func (s *Server) onSettled(settled schemas.Settled) {
	s.cache.invalidate(settled.Entity)
	if settled.Number == 0 { // it was deleted
		s.readCounter.forget(settled.Entity)
	}
	s.waiterSet.notify(settled)
}

func (s *Server) onConnection(up bool) {
	s.cache.setConnected(up)
	if !up {
		s.metrics.connected.Set(0)
		s.log.Warn("Redis is not heard: what is remembered is believed for a second only, and who waits may wait in vain")
		return
	}
	s.metrics.connected.Set(1)
	s.log.Info("Redis is heard: what is remembered is believed until it is settled")
	s.waiterSet.notifyAll() // what was missed meanwhile is seen by looking
}

// Serve answers requests on the listener until ctx ends, and then finishes those
// under way; who waits is answered with what there is.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return s.serveUntil(ctx, l, shutdownTimeout)
}

func (s *Server) serveUntil(ctx context.Context, l net.Listener, patience time.Duration) error {
	server := &http.Server{
		Handler: s,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			limitSendBuffer(conn)
			return ctx
		},
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      responseTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		close(s.stopping)
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		stopped <- server.Shutdown(limit)
	})
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	if err := <-stopped; err != nil {
		s.log.Warn("clients that did not read their answers in time were cut off", "within", patience)
		return server.Close()
	}
	return nil
}
