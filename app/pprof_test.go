package app

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestPprof_ServesLoopbackClientsOnly(t *testing.T) {
	p := parts{log: slog.New(slog.DiscardHandler)}
	p.registry, p.reg = newRegistry("")
	ops := p.newOpsHandler(newHealth(nil, p.log))
	for name, c := range map[string]struct {
		client, host, header string
		want                 int
	}{
		"loopback":               {"127.0.0.1:5000", "localhost:9464", "", http.StatusOK},
		"loopback, IPv6":         {"[::1]:5000", "[::1]:9464", "", http.StatusOK},
		"another machine":        {"10.0.0.7:5000", "localhost:9464", "", http.StatusForbidden},
		"another machine, IPv6":  {"[fd00::7]:5000", "localhost:9464", "", http.StatusForbidden},
		"unknown client":         {"", "localhost:9464", "", http.StatusForbidden},
		"a proxy on the machine": {"127.0.0.1:5000", "localhost:9464", "X-Forwarded-For", http.StatusForbidden},
		"DNS rebinding":          {"127.0.0.1:5000", "attacker.example", "", http.StatusMisdirectedRequest},
	} {
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine", "/debug/pprof/cmdline"} {
			r := httptest.NewRequest(http.MethodGet, "http://"+c.host+path, nil)
			r.RemoteAddr = c.client
			if c.header != "" {
				r.Header.Set(c.header, "10.0.0.7")
			}
			w := httptest.NewRecorder()
			ops.ServeHTTP(w, r)
			if w.Code != c.want {
				t.Errorf("%s: %s: got %d, want %d", name, path, w.Code, c.want)
			}
		}
	}
}
