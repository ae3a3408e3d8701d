package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"path/filepath"
	"testing"

	embedded "modernc.org/sqlite"
)

// countingDriver counts the statements that its connections prepare, and the texts that they run
// without a prepared statement.
type countingDriver struct {
	driver.Driver
	conn *countingConn
}

type countingConn struct {
	sqliteConn
	prepared, unprepared int
}

func (d *countingDriver) Open(dsn string) (driver.Conn, error) {
	c, err := d.Driver.Open(dsn)
	if err != nil {
		return nil, err
	}
	d.conn = &countingConn{sqliteConn: c.(sqliteConn)} //nolint:forcetypeassert // SQLite's connection has all these methods
	return d.conn, nil
}

func (c *countingConn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	c.prepared++
	return c.sqliteConn.PrepareContext(ctx, text)
}

func (c *countingConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	c.unprepared++
	return c.sqliteConn.QueryContext(ctx, text, args)
}

// openCounting opens a database through cachingDriver and countingDriver.
func openCounting(t *testing.T) (*sql.DB, *countingDriver) {
	t.Helper()
	d := &countingDriver{Driver: &embedded.Driver{}}
	db := sql.OpenDB(connector{cachingDriver{d}, "file:" + filepath.Join(t.TempDir(), "a.db")})
	db.SetMaxOpenConns(1)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	mustExec(t, db, "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); CREATE INDEX i ON t (b)")
	for n := range 3 {
		mustExec(t, db, "INSERT INTO t (a, b) VALUES ($1, $2)", n, fmt.Sprint("text ", n))
	}
	return db, d
}

func mustExec(t *testing.T, db *sql.DB, text string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func wantText(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	var got string
	err := db.QueryRowContext(t.Context(), "SELECT b FROM t WHERE a = $1", n).Scan(&got)
	if want := fmt.Sprint("text ", n); got != want || err != nil {
		t.Errorf("row %d: got %q, %v; want %q", n, got, err, want)
	}
}

func TestStatements_ArePreparedOnce(t *testing.T) {
	db, d := openCounting(t)
	before := d.conn.prepared
	for range 5 {
		wantText(t, db, 1)
		wantText(t, db, 2)
	}
	if got := d.conn.prepared - before; got != 1 {
		t.Errorf("prepared statements of ten equal queries: got %d, want 1", got)
	}
	if d.conn.unprepared != 0 {
		t.Errorf("queries without a prepared statement: got %d, want 0", d.conn.unprepared)
	}
}

// A query can run again while its rows are open, as in a loop over rows in a transaction.
func TestStatements_CanRunWhileTheirRowsAreOpen(t *testing.T) {
	db, _ := openCounting(t)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	var list func(depth int) []int
	list = func(depth int) (all []int) {
		rows, err := tx.QueryContext(t.Context(), "SELECT a FROM t ORDER BY a")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var a int
			if err := rows.Scan(&a); err != nil {
				t.Fatal(err)
			}
			if all = append(all, a); depth > 0 {
				all = append(all, len(list(depth-1)))
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return all
	}
	for range 2 {
		if got := fmt.Sprint(list(1)); got != "[0 3 1 3 2 3]" {
			t.Errorf("rows and rows of the inner query: got %s, want [0 3 1 3 2 3]", got)
		}
	}
}

func TestStatements_CanRunAfterAFailure(t *testing.T) {
	db, _ := openCounting(t)
	for range 3 {
		if _, err := db.ExecContext(t.Context(), "INSERT INTO t (a, b) VALUES ($1, $2)", 1, "again"); err == nil {
			t.Error("insert of a known key: got no error, want one")
		}
	}
	mustExec(t, db, "INSERT INTO t (a, b) VALUES ($1, $2)", 7, "text 7")
	wantText(t, db, 7)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := db.QueryRowContext(cancelled, "SELECT b FROM t WHERE a = $1", 1).Scan(new(string)); err == nil {
		t.Error("cancelled query: got no error, want one")
	}
	wantText(t, db, 1)
}

func TestStatements_SeeAChangedSchema(t *testing.T) {
	db, _ := openCounting(t)
	columns := func() int {
		rows, err := db.QueryContext(t.Context(), "SELECT * FROM t")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		if !rows.Next() {
			t.Fatalf("got no row, %v; want one", rows.Err())
		}
		names, _ := rows.Columns()
		return len(names)
	}
	if got := columns(); got != 2 {
		t.Errorf("columns: got %d, want 2", got)
	}
	mustExec(t, db, "ALTER TABLE t ADD COLUMN c TEXT")
	if got := columns(); got != 3 {
		t.Errorf("columns after ALTER TABLE: got %d, want 3", got)
	}
}

func TestStatements_AreBounded(t *testing.T) {
	d := cachingDriver{&countingDriver{Driver: &embedded.Driver{}}}
	c, err := d.Open("file:" + filepath.Join(t.TempDir(), "a.db"))
	if err != nil {
		t.Fatal(err)
	}
	conn := c.(*cachingConn)
	for n := range 3 * maxStatements {
		rows, err := conn.QueryContext(t.Context(), fmt.Sprint("SELECT ", n), nil)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]driver.Value, 1)
		if err := rows.Next(got); err != nil || got[0] != int64(n) {
			t.Fatalf("statement %d: got %v, %v; want %d", n, got[0], err, n)
		}
		_ = rows.Close()
	}
	if got := len(conn.statements); got > maxStatements || got == 0 {
		t.Errorf("prepared statements: got %d, want at most %d", got, maxStatements)
	}
	if err := conn.Close(); err != nil {
		t.Errorf("close: got %v, want no error", err)
	}
}
