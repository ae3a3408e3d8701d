package harness

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// createDatabase creates the site's database. Close drops it.
func (s *Site) createDatabase(ctx context.Context) error {
	admin, err := ServiceAddress("FRESHET_TEST_POSTGRES")
	if err != nil {
		return err
	}
	name := "freshet_" + strings.ToLower(rand.Text()[:10])
	execute := func(ctx context.Context, sql string) error {
		conn, err := pgx.Connect(ctx, admin)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		_, err = conn.Exec(ctx, sql)
		return err
	}
	if err := execute(ctx, "CREATE DATABASE "+name); err != nil {
		return fmt.Errorf("create a database: %w", err)
	}
	s.OnClose(func() { _ = execute(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)") })
	u, err := url.Parse(admin)
	if err != nil {
		return fmt.Errorf("FRESHET_TEST_POSTGRES: %w", err)
	}
	u.Path = "/" + name
	s.Database = u.String()
	return nil
}

// StoredCount and FailedRows are SQL queries. StoredCount counts the snapshots whose key has the
// prefix $1. FailedRows counts the entities with a recorded failure.
const (
	StoredCount = "SELECT count(*) FROM snapshot_state WHERE starts_with(key, $1)"
	FailedRows  = "SELECT count(*) FROM update_status"
)

// Number runs a query that returns one integer.
func (s *Site) Number(ctx context.Context, sql string, args ...any) (n int, err error) {
	conn, err := pgx.Connect(ctx, s.Database)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	err = conn.QueryRow(ctx, sql, args...).Scan(&n)
	return n, err
}

// UntilStored waits until `want` snapshots, or more, of keys with the prefix are stored.
func (s *Site) UntilStored(ctx context.Context, limit time.Duration, prefix string, want int) error {
	n := 0
	err := Until(ctx, limit, fmt.Sprintf("%d stored snapshots with the prefix %s", want, prefix), func() (done bool, err error) {
		n, err = s.Number(ctx, StoredCount, prefix)
		return n >= want, err
	})
	if err != nil {
		err = fmt.Errorf("%w; %d snapshots are stored", err, n)
	}
	return err
}

// LockTables locks the snapshot tables against reads and writes until the returned function
// `unlock` is called. `stored` is the number of snapshots whose key has the prefix, counted after
// the tables are locked.
func (s *Site) LockTables(ctx context.Context, prefix string) (stored int, unlock func() error, err error) {
	conn, err := pgx.Connect(ctx, s.Database)
	if err != nil {
		return 0, nil, err
	}
	s.OnClose(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(ctx, "BEGIN; LOCK TABLE snapshot_state, snapshot_payload, update_status IN ACCESS EXCLUSIVE MODE")
	if err == nil { // count in a second statement, because the statement that locks does not see transactions that committed just before the lock
		err = conn.QueryRow(ctx, StoredCount, prefix).Scan(&stored)
	}
	return stored, func() error {
		_, err := conn.Exec(context.WithoutCancel(ctx), "ROLLBACK")
		return err
	}, err
}

// AllowConnections allows connections to the site's database if allow is true. Otherwise the
// database server rejects new connections and terminates the open connections. Other databases of
// the server are not affected.
func (s *Site) AllowConnections(ctx context.Context, allow bool) error {
	admin, err := ServiceAddress("FRESHET_TEST_POSTGRES")
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	own, err := pgx.ParseConfig(s.Database)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf("ALTER DATABASE %s WITH ALLOW_CONNECTIONS %t", own.Database, allow)); err != nil || allow {
		return err
	}
	_, err = conn.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", own.Database)
	return err
}
