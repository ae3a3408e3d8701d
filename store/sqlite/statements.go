package sqlite

import (
	"context"
	"database/sql/driver"
	"strings"
)

// maxStatements is the maximum number of prepared statements that a connection keeps.
const maxStatements = 200

// sqliteConn has the methods of SQLite's connection that database/sql calls.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	session
	statementConn
}

type session interface {
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type statementConn interface {
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
}

type driverStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// cachingDriver opens connections that keep their prepared statements.
type cachingDriver struct{ driver.Driver }

func (d cachingDriver) Open(dsn string) (driver.Conn, error) {
	c, err := d.Driver.Open(dsn)
	if err != nil {
		return nil, err
	}
	return &cachingConn{c.(sqliteConn), map[string]*statement{}}, nil //nolint:forcetypeassert // SQLite's connection has these methods; a test opens one
}

// cachingConn is a connection that prepares each text of a statement once. To parse and plan a
// statement takes several times as long as to run it. database/sql calls a connection from one
// goroutine at a time.
type cachingConn struct {
	sqliteConn
	statements map[string]*statement
}

// statement is a prepared statement. It can't run again while its rows are open.
type statement struct {
	driverStmt
	open bool
}

// statement returns the prepared statement of a text, or nil if the text can't use one now: its rows
// are open, or it is a script of several statements.
func (c *cachingConn) statement(ctx context.Context, text string) (*statement, error) {
	s, known := c.statements[text]
	if known && !s.open {
		return s, nil
	}
	if known || strings.Contains(text, ";") {
		return nil, nil //nolint:nilnil // the caller runs the text without a prepared statement
	}
	prepared, err := c.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	if len(c.statements) >= maxStatements {
		c.closeStatements()
	}
	s = &statement{driverStmt: prepared.(driverStmt)} //nolint:forcetypeassert // SQLite's statement has these methods
	c.statements[text] = s
	return s, nil
}

// closeStatements closes all prepared statements without open rows.
func (c *cachingConn) closeStatements() {
	for text, s := range c.statements {
		if !s.open {
			_ = s.Close()
			delete(c.statements, text)
		}
	}
}

func (c *cachingConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	s, err := c.statement(ctx, text)
	switch {
	case err != nil:
		return nil, err
	case s == nil:
		return c.sqliteConn.ExecContext(ctx, text, args)
	}
	return s.ExecContext(ctx, args)
}

func (c *cachingConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	s, err := c.statement(ctx, text)
	switch {
	case err != nil:
		return nil, err
	case s == nil:
		return c.sqliteConn.QueryContext(ctx, text, args)
	}
	rows, err := s.QueryContext(ctx, args)
	if err != nil {
		return nil, err
	}
	s.open = true
	return &statementRows{rows, s}, nil
}

func (c *cachingConn) Close() error {
	c.closeStatements()
	return c.sqliteConn.Close()
}

// statementRows are the rows of a prepared statement.
type statementRows struct {
	driver.Rows
	of *statement
}

func (r *statementRows) Close() error {
	r.of.open = false
	return r.Rows.Close()
}
