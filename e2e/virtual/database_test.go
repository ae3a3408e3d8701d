package virtual

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync"
	"time"
)

// errDatabase is the error of a statement during a fault of the database.
var errDatabase = errors.New("the database failed by a fault")

// gate delays or fails the statements of one process. Its methods may be called concurrently.
type gate struct {
	mu      sync.Mutex
	dead    bool // true: the process was killed
	failing bool
	unknown bool // a commit is applied, but reported as failed
	delay   time.Duration
}

func (g *gate) set(change func(*gate)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g)
}

// pass waits for the delay of a statement, and returns the error of the fault.
func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	delay := g.delay
	g.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return g.check()
}

func (g *gate) check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead || g.failing {
		return errDatabase
	}
	return nil
}

func (g *gate) wrap(d driver.Driver) driver.Driver { return gatedDriver{d, g} }

type gatedDriver struct {
	driver.Driver
	gate *gate
}

// Open opens a connection whose statements pass the gate.
func (d gatedDriver) Open(name string) (driver.Conn, error) {
	c, err := d.Driver.Open(name)
	if err != nil {
		return nil, err
	}
	return &gatedConn{c.(sqliteConn), d.gate, false}, nil
}

// sqliteConn is the set of methods of the SQLite driver's connection that database/sql calls.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
}

type gatedConn struct {
	sqliteConn
	gate *gate
	// true in a transaction; its statements are not delayed, because a delay would lock the database
	// for all processes
	inTx bool
}

func (c *gatedConn) pass(ctx context.Context) error {
	if c.inTx {
		return c.gate.check()
	}
	return c.gate.pass(ctx)
}

func (c *gatedConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if err := c.gate.pass(ctx); err != nil {
		return nil, err
	}
	tx, err := c.sqliteConn.BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}
	c.inTx = true
	return gatedTx{tx, c}, nil
}

func (c *gatedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.pass(ctx); err != nil {
		return nil, err
	}
	return c.sqliteConn.ExecContext(ctx, query, args)
}

func (c *gatedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.pass(ctx); err != nil {
		return nil, err
	}
	return c.sqliteConn.QueryContext(ctx, query, args)
}

// PrepareContext prepares a statement. Prepared statements pass the gate when they run.
func (c *gatedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.pass(ctx); err != nil {
		return nil, err
	}
	s, err := c.sqliteConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return gatedStmt{s.(sqliteStmt), c}, nil
}

func (c *gatedConn) Ping(ctx context.Context) error {
	if err := c.pass(ctx); err != nil {
		return err
	}
	return c.sqliteConn.Ping(ctx)
}

type sqliteStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type gatedStmt struct {
	sqliteStmt
	conn *gatedConn
}

func (s gatedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.conn.pass(ctx); err != nil {
		return nil, err
	}
	return s.sqliteStmt.ExecContext(ctx, args)
}

func (s gatedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.conn.pass(ctx); err != nil {
		return nil, err
	}
	return s.sqliteStmt.QueryContext(ctx, args)
}

type gatedTx struct {
	driver.Tx
	conn *gatedConn
}

// Commit commits the transaction. During a fault it fails before or, if unknown is set, after the
// database has applied it.
func (t gatedTx) Commit() error {
	if err := t.conn.gate.check(); err != nil {
		return errors.Join(err, t.Rollback())
	}
	t.conn.inTx = false
	err := t.Tx.Commit()
	t.conn.gate.mu.Lock()
	defer t.conn.gate.mu.Unlock()
	if t.conn.gate.unknown {
		return errors.Join(err, errDatabase)
	}
	return err
}

// Rollback always succeeds for the database, as it would for a lost connection.
func (t gatedTx) Rollback() error {
	t.conn.inTx = false
	return t.Tx.Rollback()
}
