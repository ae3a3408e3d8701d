package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/status"
)

// healthCheck checks one dependency. A failed required check makes the process not ready.
type healthCheck struct {
	required bool
	run      func(ctx context.Context) error
}

// newRegistry returns a registry with the metrics of the Go runtime, and a registerer that adds
// the namespace to the names of freshet's own metrics.
func newRegistry(namespace string) (*prometheus.Registry, prometheus.Registerer) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var ours prometheus.Registerer = reg
	if prefix := metricPrefix(namespace); prefix != "" {
		ours = prometheus.WrapRegistererWithPrefix(prefix, reg)
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "build_info", Help: "Always 1; the label version is the version of this process.", ConstLabels: prometheus.Labels{"version": Version()},
	})
	info.Set(1)
	ours.MustRegister(info)
	return reg, ours
}

// metricPrefix returns the prefix of the names of freshet's own metrics.
func metricPrefix(namespace string) string {
	if namespace == "" {
		return ""
	}
	return namespace + "_"
}

// newOpsHandler returns the handler of ops.listen: liveness, readiness, health, metrics and profiles.
func (p parts) newOpsHandler(h *health) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", h.handleReady)
	mux.HandleFunc("GET /healthz", h.handleHealth)
	handlePprof(mux)
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	return mux
}

// readsCheckName is the name of the health check that reports whether the query service can serve
// reads.
const readsCheckName = "reads"

// health runs the health checks. It caches their results for healthCacheTTL, so that frequent
// probes do not load the dependencies.
type health struct {
	checks map[string]healthCheck
	found  status.Cached[map[string]error]
}

func newHealth(checks map[string]healthCheck, log *slog.Logger) *health {
	h := &health{checks: checks}
	h.found.Read, h.found.Timeout, h.found.Clock, h.found.Log = h.runAll, pingTimeout, time.Now, log
	return h
}

const (
	healthCacheTTL = time.Second
	pingTimeout    = time.Second // timeout of one check of all dependencies
)

// checkAll runs all checks concurrently, or returns the cached results.
func (h *health) checkAll(ctx context.Context) map[string]error {
	found, _, _ := h.found.Get(context.WithoutCancel(ctx), healthCacheTTL)
	return found
}

func (h *health) runAll(ctx context.Context) (map[string]error, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	found := map[string]error{}
	for name, c := range h.checks {
		wg.Go(func() {
			err := c.run(ctx)
			mu.Lock()
			defer mu.Unlock()
			found[name] = err
		})
	}
	wg.Wait()
	return found, nil
}

// missing returns the names of the required checks that failed. found holds the result of each
// check.
func (h *health) missing(found map[string]error) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(h.checks)) {
		if h.checks[name].required && found[name] != nil {
			names = append(names, name)
		}
	}
	return names
}

func (h *health) handleReady(w http.ResponseWriter, r *http.Request) {
	if missing := h.missing(h.checkAll(r.Context())); len(missing) > 0 {
		http.Error(w, "not ready: "+strings.Join(missing, ", ")+" unavailable; see /healthz?verbose", http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// dependency is the state of one dependency in the response of /healthz?verbose.
type dependency struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

// handleHealth responds with the health of the process, and with ?verbose with the state and the
// error of each dependency. Those errors name internal hosts, so the query service serves
// ?verbose to administrators only.
func (h *health) handleHealth(w http.ResponseWriter, r *http.Request) {
	found := h.checkAll(r.Context())
	ready := len(h.missing(found)) == 0
	answer := struct {
		Status       string                `json:"status"`
		Ready        *bool                 `json:"ready,omitempty"`
		Dependencies map[string]dependency `json:"dependencies,omitempty"`
	}{Status: "ok"}
	all := map[string]dependency{}
	for name, err := range found {
		d := dependency{OK: err == nil}
		if err != nil {
			d.Reason, answer.Status = err.Error(), "degraded"
		}
		all[name] = d
	}
	if r.URL.Query().Has("verbose") {
		answer.Ready, answer.Dependencies = &ready, all
	}
	w.Header().Set("Content-Type", "application/json")
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(answer) // Encode returns an error only if the client has disconnected
}

// bind binds the address of health and metrics. Roles call it before they start anything else.
func (c OpsConfig) bind(ctx context.Context) (*boundListener, error) {
	return bind(ctx, c.Listen, "ops", "--ops-listen", c.TLS, true)
}

// serveOps serves health and metrics on their own listener until ctx ends.
func serveOps(ctx context.Context, l net.Listener, handler http.Handler, log *slog.Logger) error {
	if access.Loopback(l.Addr().String()) {
		handler = requireLoopbackHost(handler)
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}

// requireLoopbackHost rejects requests whose Host header is not a loopback name. It prevents DNS
// rebinding: otherwise a web page could make its own host name resolve to this listener, and read
// the responses.
func requireLoopbackHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "" && !access.Loopback(r.Host) {
			http.Error(w, "the Host header must be localhost or a loopback address", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Listen binds an address. Its error names the flag and the setting of the address.
func Listen(ctx context.Context, address, setting, flag string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w; choose another address with %s or %s", address, unwrapOpError(err), flag, setting)
	}
	return l, nil
}

// unwrapOpError returns the cause of a net.OpError without its operation and address, because the
// caller's error text already names them.
func unwrapOpError(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}
