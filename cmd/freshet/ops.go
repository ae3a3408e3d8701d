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

// check asks one dependency for its state; what is required makes the process
// not ready.
type check struct {
	required bool
	ask      func(ctx context.Context) error
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

// ops answers for the process: alive, ready, healthy, and its metrics.
func (p parts) ops(h *health) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", h.ready)
	mux.HandleFunc("GET /healthz", h.healthy)
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.Handle(levelPath, fromHere(p.levels.handler(p.log, nil)))
	return mux
}

// readsCheck is whether reads can be answered.
const readsCheck = "reads"

// health remembers the last look for a moment: a probe must not become load.
type health struct {
	checks map[string]check

	mu    sync.Mutex
	at    time.Time
	found map[string]error
}

const (
	healthLife  = time.Second
	pingTimeout = time.Second // bounds one look at a dependency
)

// look asks all dependencies at once, or returns what was found a moment ago.
func (h *health) look(ctx context.Context) map[string]error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) < healthLife {
		return h.found
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	found := map[string]error{}
	for name, c := range h.checks {
		wg.Go(func() {
			err := c.ask(ctx)
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

func (h *health) ready(w http.ResponseWriter, r *http.Request) {
	if missing := h.missing(h.look(r.Context())); len(missing) > 0 {
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

// healthy answers whether all is well, and with ?verbose which dependency is away and
// why: that names what stands behind the process, so that the query service serves it
// to administrators only.
func (h *health) healthy(w http.ResponseWriter, r *http.Request) {
	found := h.look(r.Context())
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
func (c OpsConfig) bind(ctx context.Context) (*bound, error) {
	return bind(ctx, c.Listen, "ops", "--ops-listen", c.TLS, true)
}

// serveOps answers on its own address until ctx ends.
func serveOps(ctx context.Context, l net.Listener, handler http.Handler, log *slog.Logger) error {
	if access.Loopback(l.Addr().String()) {
		handler = ownNames(handler)
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

// ownNames answers to the names of this machine alone: a page whose name was made
// to lead here must not read what lies behind.
func ownNames(next http.Handler) http.Handler {
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
		return nil, fmt.Errorf("listen on %s: %w; choose another address with %s or %s", address, plainNetError(err), flag, setting)
	}
	return l, nil
}

// plainNetError drops what the sentence around it says already.
func plainNetError(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}
