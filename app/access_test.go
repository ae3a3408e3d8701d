package app

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store/sqlite"
)

func TestOps_AllowsARemoteListenerIfConfigured(t *testing.T) {
	if err := (OpsConfig{Listen: "0.0.0.0:1", AllowRemote: true}).checkRemote(); err != nil {
		t.Error(err)
	}
}

func TestGuard_MetersOnlyWhenNeeded(t *testing.T) {
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for _, c := range []struct {
		require  access.Require
		listen   string
		required bool
		meters   bool
	}{{access.Auto, "127.0.0.1:1", false, false}, {access.Never, "127.0.0.1:1", false, false}, {access.Never, "0.0.0.0:1", false, true}} {
		config, err := loadConfig("", nil, builtInSources)
		if err != nil {
			t.Fatal(err)
		}
		config.Access.Require = c.require
		p := queryRole{parts{config: config, store: db, log: slog.New(slog.NewTextHandler(t.Output(), nil)), reg: status.NewMetrics(prometheus.NewPedanticRegistry())}}
		guard, meters, err := p.newGuard(t.Context(), c.listen)
		if err != nil || guard.AuthRequired() != c.required || (meters != nil) != c.meters {
			t.Errorf("%+v: got authentication required: %v, meters: %v, %v; want %v, %v",
				c, guard != nil && guard.AuthRequired(), meters != nil, err, c.required, c.meters)
		}
	}
}

func TestOps_RequiresLoopbackHost(t *testing.T) {
	ops := requireLoopbackHost(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	for host, status := range map[string]int{"127.0.0.1:9464": 200, "localhost": 200, "": 200, "evil.example:9464": 421, "192.0.2.1": 421} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
		r.Host = host
		w := httptest.NewRecorder()
		if ops.ServeHTTP(w, r); w.Code != status {
			t.Errorf("%q: got status %d, want %d", host, w.Code, status)
		}
	}
}
