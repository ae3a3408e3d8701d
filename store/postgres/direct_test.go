package postgres

import (
	"net/url"
	"testing"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store/shared"
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
		want      bool
	}{
		{"direct", direct, true},
		{"one connection", one.String(), true},
		{"proxy", proxied.String(), false},
	} {
		s, err := Open(t.Context(), c.url)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if s.prepare != c.want {
			t.Errorf("%s: got prepare %v, want %v", c.name, s.prepare, c.want)
		}
		if _, err := s.States(t.Context(), []schemas.Entity{{Source: "s", Facet: "f", Key: "k"}}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var prepared int
		if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_prepared_statements WHERE name <> ''").Scan(&prepared); err != nil {
			t.Fatal(err)
		}
		if c.name == "one connection" && prepared != 2 || c.name == "proxy" && prepared != 0 {
			t.Errorf("%s: got %d prepared statements, want 2 (the settings and the query) without a proxy, 0 with one", c.name, prepared)
		}
		s.Close()
	}
}

// PostgreSQL would plan statements about the partitioned tables at each execution, which takes longer
// than the execution.
func TestStatementsByKey_ArePlannedOncePerConnection(t *testing.T) {
	s, err := Open(t.Context(), servicetest.PostgresCopy(t, &template)+"&pool_max_conns=1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	writes := benchWrites(2, 2, 1)
	keys := []schemas.Entity{writes[0].Entity, writes[1].Entity}
	const executions = 8 // PostgreSQL chooses between a generic plan and new plans after five executions
	for range executions {
		if _, err := s.Write(t.Context(), writes); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(t.Context(), keys[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := s.States(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
		if _, err := s.GetAll(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
	}
	for name, sql := range map[string]string{
		"touch": touch, "end failures": deleteStatuses, "snapshot": shared.SelectSnapshot, "states": selectStates, "snapshots": selectSnapshots,
	} {
		var generic, custom int
		err := s.pool.QueryRow(t.Context(), "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement = $1", sql).Scan(&generic, &custom)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if generic != executions || custom != 0 {
			t.Errorf("%s: got %d executions of the generic plan and %d new plans, want %d and 0", name, generic, custom, executions)
		}
	}
}
