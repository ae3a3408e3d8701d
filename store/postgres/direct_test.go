package postgres

import (
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// A pool of a proxy can give the sessions of PostgreSQL to other clients, so prepared statements would
// be missing there.
func TestOpen_PreparesOnDirectConnectionsOnly(t *testing.T) {
	direct := servicetest.PostgresCopy(t, &template)
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	proxied := *u
	proxied.Host = servicetest.Proxy(t, u.Host, nil)
	one := *u
	one.RawQuery += "&pool_max_conns=1"
	for _, c := range []struct {
		name, url string
		want      pgx.QueryExecMode
	}{
		{"direct", direct, pgx.QueryExecModeCacheStatement},
		{"one connection", one.String(), pgx.QueryExecModeCacheStatement},
		{"proxy", proxied.String(), pgx.QueryExecModeCacheDescribe},
	} {
		s, err := Open(t.Context(), c.url)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if s.prepared.mode != c.want {
			t.Errorf("%s: got mode %v, want %v", c.name, s.prepared.mode, c.want)
		}
		if _, err := s.States(t.Context(), []schemas.Entity{{Source: "s", Facet: "f", Key: "k"}}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var prepared int
		if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_prepared_statements WHERE name <> ''").Scan(&prepared); err != nil {
			t.Fatal(err)
		}
		if c.name == "one connection" && prepared != 1 || c.name == "proxy" && prepared != 0 {
			t.Errorf("%s: got %d prepared statements, want 1 without a proxy, 0 with one", c.name, prepared)
		}
		s.Close()
	}
}
