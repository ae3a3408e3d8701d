package app

import (
	"net/http"
	"net/http/pprof"

	"github.com/freshet/freshet/access"
)

// handlePprof adds Go's profiles at /debug/pprof. A profile shows memory of the process and uses its
// CPU. So only clients on loopback get a profile, even if the listener accepts other clients.
func handlePprof(mux *http.ServeMux) {
	for path, handler := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		mux.Handle("GET "+path, requireLoopbackClient(handler))
	}
}

// requireLoopbackClient rejects requests from other machines, and requests that a proxy on this
// machine has forwarded.
func requireLoopbackClient(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !access.Loopback(r.RemoteAddr) || access.Forwarded(r.Header) {
			http.Error(w, "profiles are served only to clients on the same machine (loopback); run the command there, or forward a local port to this process", http.StatusForbidden)
			return
		}
		requireLoopbackHost(next).ServeHTTP(w, r)
	})
}
