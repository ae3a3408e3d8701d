package query

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
)

const (
	// storeTimeout is the timeout of one read of the store.
	storeTimeout = 2 * time.Second
	// maxAckWaits is the maximum number of refresh calls per process that wait for Kafka.
	maxAckWaits = 1000
	// shutdownTimeout is how long a shutdown waits for requests in flight.
	shutdownTimeout = 10 * time.Second
	// maxHeaderBytes limits the request headers, maxPathBytes the path with its query, and
	// maxBodyBytes a body that is read and discarded.
	maxHeaderBytes = 64 << 10
	maxPathBytes   = 32 << 10
	maxBodyBytes   = 64 << 10
)

// Server is the query service. Its methods may be called concurrently.
type Server struct {
	cache         *snapshotCache
	catalog       *catalog
	requester     *requester
	reader        *reader
	responder     *responder
	waits         *waits
	tracing       *tracing
	readCounter   *readCounter
	readLog       *readLog
	subscriber    SettleSubscriber
	authenticator Authenticator
	limiter       ClientLimiter
	metrics       *metrics
	log           *slog.Logger
	echo          *echo.Echo
}

// New returns the service. It fails if an element of Config.Proxies is not a network (CIDR).
func New(config Config, deps Deps) (*Server, error) {
	m := newMetrics(deps.Metrics)
	counter := newReadCounter(deps.ReadRecorder, m, deps.Log)
	for name := range deps.Sources {
		m.recorded.WithLabelValues(name)
	}
	tracing := &tracing{deps.Trace, newTraceBudget()}
	cat := &catalog{deps.Sources, tracing}
	cache := newSnapshotCache(deps.Store, cat.isRestricted, config.Memory, m, deps.ClientLimiter, counter, deps.Log)
	var err error
	if cache.static, err = newStaticFiles(deps.Sources, deps.Log, deps.Metrics); err != nil {
		return nil, err
	}
	waits := &waits{newWaiterSet(), cache, deps.ClientLimiter}
	q := &requester{
		catalog: cat, cache: cache, enqueuer: deps.Enqueuer, batcher: &batcher{enqueuer: deps.Enqueuer, log: deps.Log},
		refreshes: refreshes{slots: make(chan struct{}, maxAckWaits), keys: deps.IdempotencyKeys, credits: deps.Credits, log: deps.Log},
		estimator: deps.WaitEstimator, limiter: deps.ClientLimiter, tracing: tracing, stopping: waits.set.stopping, log: deps.Log,
	}
	readLog := newReadLog(cache, deps.Sources, deps.Log)
	s := &Server{
		cache: cache, catalog: cat, requester: q, waits: waits, tracing: tracing, readCounter: counter, readLog: readLog,
		reader:     &reader{cache: cache, requester: q, fromStatic: m.fromStatic, log: deps.Log},
		responder:  &responder{newResponseBudget(config.ResponseMemory, deps.Metrics), q, counter, readLog, deps.ClientLimiter, m, deps.Log},
		subscriber: deps.SettleSubscriber, authenticator: deps.Authenticator, limiter: deps.ClientLimiter, metrics: m, log: deps.Log, echo: echo.New(),
	}
	deps.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "waiting_clients", Help: "Clients that wait for a refresh or stream an entity.",
	}, func() float64 { return float64(waits.set.count.Load()) }))
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
	s.route(deps)
	return s, nil
}

// route registers the paths of the service.
func (s *Server) route(deps Deps) {
	e := s.echo
	read := []string{http.MethodGet, http.MethodHead}
	const entity = "/v1/:source/:facet/:key"
	e.Match(read, "/v1", s.authorized(access.Read, s.catalog.listSources))
	if deps.Credits != nil {
		e.Match(read, "/v1/credits", s.authorized(access.Refresh, s.requester.refreshes.balance))
	}
	if deps.Runs != nil {
		runReader{s, deps.Runs}.route(read)
	}
	e.Match(read, "/v1/:source", s.authorized(access.Read, s.catalog.listFacets))
	e.Match(read, "/v1/:source/:facet", s.authorized(access.Read, s.readMany))
	e.Match(read, entity, s.authorized(access.Read, s.read))
	e.Match(read, entity+"/events", s.authorized(access.Read, s.events))
	items := itemReader{s}
	e.Match(read, entity+"/items", s.authorized(access.Read, items.list))
	e.Match(read, entity+"/items/:item", s.authorized(access.Read, items.one))
	e.POST("/v1/:source/:facet/refresh", s.authorized(access.Refresh, s.refreshMany))
	e.POST(entity+"/refresh", s.authorized(access.Refresh, s.refresh))
	if deps.Hooks != nil {
		e.POST("/hooks/:source/:name", receiveHook(deps.Hooks, deps.ClientLimiter))
	}
	(&contract{s.catalog, s.authenticator, s.limiter}).route(e, read)
	ops := echo.WrapHandler(deps.Ops)
	e.Match(read, "/livez", ops)
	e.Match(read, "/readyz", ops)
	// /metrics and a /healthz with a query show details of dependencies and traffic, so only clients
	// with the scope admin can read them.
	adminOnly := s.authorized(access.Admin, func(c echo.Context, _ access.Client) error { return ops(c) })
	e.Match(read, "/healthz", func(c echo.Context) error {
		if c.Request().URL.RawQuery == "" {
			return ops(c)
		}
		return adminOnly(c)
	})
	e.Match(read, "/metrics", adminOnly)
	if deps.Maintenance != nil {
		e.POST("/admin/v1/maintenance/:task", echo.WrapHandler(deps.Maintenance))
	}
	e.Any("/admin/v1/*", s.authorized(access.Admin, func(c echo.Context, client access.Client) error {
		correlationOf(c)
		r := c.Request()
		deps.Admin.ServeHTTP(c.Response(), r.WithContext(access.WithClient(r.Context(), client)))
		return nil
	}))
	if deps.Console != nil {
		e.Any("/console", s.console(deps.Console))
		e.Any("/console/*", s.console(deps.Console))
	}
}

// Ready returns nil if reads can be served: the cache has entries, or the ping of the database
// succeeds.
func (s *Server) Ready(ctx context.Context, ping func(context.Context) error) error {
	if !s.cache.isEmpty() {
		return nil
	}
	return ping(ctx)
}

// strictTransport makes browsers use only HTTPS for a year (RFC 6797).
const strictTransport = "max-age=31536000"

// ServeHTTP implements http.Handler. Each response over TLS has the header
// Strict-Transport-Security.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.TLS != nil {
		w.Header().Set("Strict-Transport-Security", strictTransport)
	}
	escapePath(r, s.catalog.sources)
	s.echo.ServeHTTP(w, r)
}

// Run receives settle messages and records reads until ctx ends. Then it records the last reads,
// for at most finalFlushTimeout.
func (s *Server) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { s.readCounter.run(ctx) })
	if s.cache.static != nil {
		background.Go(func() {
			s.cache.static.run(ctx, s.cache.store, func(e schemas.Entity) { s.waits.set.notify(schemas.Settled{Entity: e}) })
		})
	}
	defer background.Wait()
	defer stop() // ends the read counter, also if Subscribe fails; it runs before background.Wait, because deferred calls run in reverse order
	return s.subscriber.Subscribe(ctx, s.onSettled, func(connected bool) {
		if ctx.Err() == nil { // at shutdown the end of the subscription is expected, so it is not logged
			s.onConnection(connected)
		}
	})
}

// onSettled handles a settle message. It invalidates the cached entry before it wakes the waiters,
// so that the waiters do not read the outdated entry.
func (s *Server) onSettled(settled schemas.Settled) {
	s.cache.invalidate(settled.Entity)
	if settled.Number == 0 { // number 0: the entity was deleted
		s.readCounter.remove(settled.Entity)
	}
	s.waits.set.notify(settled)
}

func (s *Server) onConnection(connected bool) {
	s.cache.setConnected(connected)
	if !connected {
		s.metrics.connected.Set(0)
		s.log.Warn("redis subscription lost; cache TTL reduced to 1s, waiting clients may time out")
		return
	}
	s.metrics.connected.Set(1)
	s.log.Info("redis subscription connected; cache TTL is 30s")
	s.waits.set.notifyAll() // messages may have been lost: all waiters read again
}

// Serve handles requests on the listener until ctx ends. Then waiting requests respond at once,
// and the other requests have shutdownTimeout to complete.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return s.serveUntil(ctx, l, shutdownTimeout)
}

func (s *Server) serveUntil(ctx context.Context, l net.Listener, timeout time.Duration) error {
	server := &http.Server{
		Handler: s,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			limitSendBuffer(conn)
			return withConn(ctx, conn)
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
		close(s.waits.set.stopping)
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		stopped <- server.Shutdown(limit)
	})
	defer stop()
	if err := server.Serve(joinedListener{l}); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	if err := <-stopped; err != nil {
		s.log.Warn("shutdown timeout expired; connections closed", "timeout", timeout)
		return server.Close()
	}
	return nil
}
