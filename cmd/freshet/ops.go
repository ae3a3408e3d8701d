package main

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
)

// healthCheck asks one dependency for its state; what is required makes the process
// not ready.
type healthCheck struct {
	required bool
	run      func(ctx context.Context) error
}

// newRegistry returns a registry with the runtime's own metrics, and a registerer
// that puts the namespace before the names of ours.
func newRegistry(namespace string) (*prometheus.Registry, prometheus.Registerer) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var ours prometheus.Registerer = reg
	if prefix := metricPrefix(namespace); prefix != "" {
		ours = prometheus.WrapRegistererWithPrefix(prefix, reg)
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "build_info", Help: "1, with the version that runs.", ConstLabels: prometheus.Labels{"version": version()},
	})
	info.Set(1)
	ours.MustRegister(info)
	return reg, ours
}

// metricPrefix returns what stands before the name of each of our metrics.
func metricPrefix(namespace string) string {
	if namespace == "" {
		return ""
	}
	return namespace + "_"
}

// newOpsHandler answers for the process: alive, ready, healthy, and its metrics.
func (p parts) newOpsHandler(h *health) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", h.handleReady)
	mux.HandleFunc("GET /healthz", h.handleHealth)
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.Handle(logLevelPath, requireLoopback(p.levels.handler(p.log, nil)))
	return mux
}

// readsCheckName is whether reads can be answered.
const readsCheckName = "reads"

// health remembers the last look for a moment: a probe must not become load.
type health struct {
	checks map[string]healthCheck

	mu    sync.Mutex
	at    time.Time
	found map[string]error
}

const (
	healthCacheTTL = time.Second
	pingTimeout    = time.Second // bounds one look at a dependency
)

// checkAll asks all dependencies at once, or returns what was found a moment ago.
func (h *health) checkAll(ctx context.Context) map[string]error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) < healthCacheTTL {
		return h.found
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
	defer cancel()
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
	h.at, h.found = time.Now(), found
	return found
}

// missing names the required dependencies that are away.
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

// dependency is the state of one in the health of a process.
type dependency struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

// handleHealth answers whether all is well, and with ?verbose which dependency is away and
// why: that names what stands behind the process, so that the query service serves it
// to administrators only.
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
	_ = json.NewEncoder(w).Encode(answer) // the client has left otherwise
}

// bind takes the address of health and metrics, before anything starts that they
// report on.
func (c OpsConfig) bind(ctx context.Context) (*boundListener, error) {
	return bind(ctx, c.Listen, "ops", "--ops-listen", c.TLS, true)
}

// serveOps answers on its own address until ctx ends.
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

// requireLoopbackHost answers to the names of this machine alone: a page whose name was made
// to lead here must not read what lies behind.
func requireLoopbackHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "" && !access.Loopback(r.Host) {
			http.Error(w, "this answers to localhost and 127.0.0.1 alone", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// listen takes an address, or says how to choose another.
func listen(ctx context.Context, address, setting, flag string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w; choose another address with %s or %s", address, unwrapOpError(err), flag, setting)
	}
	return l, nil
}

// unwrapOpError drops what the sentence around it says already.
func unwrapOpError(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}
