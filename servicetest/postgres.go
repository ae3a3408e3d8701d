package servicetest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Postgres returns the URL of a new, empty database, dropped when the test ends.
func Postgres(t testing.TB) string {
	t.Helper()
	return createDatabase(t, "")
}

// PostgresTemplate is a database that is prepared once for each test process. To copy it is faster
// than to migrate an empty database.
type PostgresTemplate struct {
	Prepare func(ctx context.Context, url string) error // for example, migrates the empty database

	mu    sync.Mutex
	admin string // URL of the server's database postgres
	name  string // "" until the template is prepared
}

// PostgresCopy returns the URL of a new copy of the template, dropped when the test ends.
func PostgresCopy(t testing.TB, p *PostgresTemplate) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.name == "" {
		admin, name := address(t, "FRESHET_TEST_POSTGRES", "PostgreSQL"), databaseName()
		if err := execute(admin, "CREATE DATABASE "+name); err != nil {
			t.Fatal(err)
		}
		if err := p.Prepare(t.Context(), databaseURL(admin, name)); err != nil {
			t.Fatalf("prepare the template: %v", errors.Join(err, execute(admin, "DROP DATABASE "+name+" WITH (FORCE)")))
		}
		p.admin, p.name = admin, name
	}
	return createDatabase(t, " TEMPLATE "+p.name)
}

// Drop drops the template, and then executes the statements, such as DROP ROLE. Call it at the end
// of TestMain.
func (p *PostgresTemplate) Drop(statements ...string) error {
	if p.name == "" {
		return nil
	}
	err := execute(p.admin, "DROP DATABASE "+p.name+" WITH (FORCE)")
	for _, s := range statements {
		err = errors.Join(err, execute(p.admin, s))
	}
	return err
}

// createDatabase creates a database with options of CREATE DATABASE, and returns its URL. The
// database is dropped when the test ends.
func createDatabase(t testing.TB, options string) string {
	t.Helper()
	admin, name := address(t, "FRESHET_TEST_POSTGRES", "PostgreSQL"), databaseName()
	if err := execute(admin, "CREATE DATABASE "+name+options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := execute(admin, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	return databaseURL(admin, name)
}

func databaseName() string { return strings.ReplaceAll(Name("freshet"), "-", "_") }

// databaseURL returns the URL of another database of the same server.
func databaseURL(admin, name string) string {
	u, err := url.Parse(admin)
	if err != nil {
		panic(fmt.Sprintf("FRESHET_TEST_POSTGRES: %v", err)) // pgx has accepted it before
	}
	u.Path = "/" + name
	return u.String()
}

// execute executes a statement on a connection of its own.
func execute(url, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", url, err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}
