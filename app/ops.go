package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/status"
)

// newRegistry returns a registry with the metrics of the Go runtime, and a registerer that adds
// the namespace to the names of freshet's own metrics.
func newRegistry(namespace string) (*prometheus.Registry, *status.Metrics) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	ours := status.NewMetrics(prometheus.WrapRegistererWithPrefix(metricPrefix(namespace), reg))
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
