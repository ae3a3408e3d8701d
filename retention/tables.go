package retention

import (
	"context"
	"time"

	"github.com/freshet/freshet/store"
)

// Table is a table whose rows are deleted after their retention period.
type Table struct {
	Name string                     // name in the configuration, the metric and the commands
	Keep func(Config) time.Duration // returns the retention period of the table; 0 means that rows are kept without limit
	rows
	unit time.Duration // unit of the column rows.time; 0 means microseconds
	// replace deletes the rows of a batch in another way than DeleteStatement; nil means that
	// DeleteStatement deletes them.
	replace func(ctx context.Context, tx store.Tx, before int64, limit int) (deleted int, err error)
}

// rows describes which rows of a database table are deleted. The table must have an index on time, with
// the same condition.
type rows struct {
	table     string
	key       string // columns of the primary key
	time      string // SQL expression for the time from which the retention period of a row counts, in units of Table.unit
	condition string // SQL condition of the rows that may be deleted; empty means all rows
}

// Tables lists the tables whose old rows are deleted. A new table needs an entry here, a setting in
// Config, an index, rows for its test in package storetest, and grants in docs/deploying.md.
var Tables = []Table{
	{Name: "audit", Keep: func(c Config) time.Duration { return c.Audit }, rows: rows{"audit", "id", "at", ""}},
	{Name: "deadLetters", Keep: func(c Config) time.Duration { return c.DeadLetters }, rows: rows{"dead_letters", "topic, kafka_partition, kafka_offset", "handled_at", "handled <> ''"}},
	{Name: "openDeadLetters", Keep: func(c Config) time.Duration { return c.OpenDeadLetters }, rows: rows{"dead_letters", "topic, kafka_partition, kafka_offset", "at", "handled = ''"}},
	{Name: "dlqJobs", Keep: func(c Config) time.Duration { return c.DLQJobs }, rows: rows{"dlq_jobs", "id", "updated_at", "state <> 'RUNNING' AND chunk_started_at = 0"}},
	{Name: "apiKeys", Keep: func(c Config) time.Duration { return c.APIKeys }, rows: rows{"api_keys", "id", "CASE WHEN revoked_at <> 0 THEN revoked_at ELSE expires_at END", "(revoked_at <> 0 OR expires_at <> 0)"}},
	{Name: "creditHolds", Keep: func(c Config) time.Duration { return c.CreditHolds }, rows: rows{"credit_holds", "id", "ended_at", "state <> 'HELD'"}},
	{Name: "creditGrants", Keep: func(c Config) time.Duration { return c.CreditGrants }, rows: rows{"credit_grants", "id", "created_at", "remaining = 0 AND " + withoutOpenHolds}},
	{Name: "creditEntries", Keep: func(c Config) time.Duration { return c.CreditEntries }, rows: rows{"credit_entries", "id", "at", "kind <> 'opening'"}, replace: carryForward},
	{Name: "creditUse", Keep: func(c Config) time.Duration { return c.CreditUse }, rows: rows{"credit_use", "client, hour", "hour", ""}, unit: time.Hour},
	{Name: "runs", Keep: func(c Config) time.Duration { return c.Runs }, rows: rows{"runs", "id", "ended_at", "state <> 'RUNNING'"}, replace: deleteRuns},
}

// withoutOpenHolds is the condition that the client of a grant has no open hold. The credits of an open
// hold may still be given back to the grant.
const withoutOpenHolds = `NOT EXISTS (SELECT 1 FROM credit_holds h WHERE h.client = credit_grants.client AND h.state = 'HELD')`

// where joins a condition and the condition of the rows with AND.
func (r rows) where(condition string) string {
	if r.condition == "" {
		return condition
	}
	return r.condition + " AND " + condition
}

// DeleteStatement deletes the oldest rows of the table. Arguments: time before which a row is old,
// limit. The conditions are in the statement twice. The reason: if another transaction changes a row at
// the same time, PostgreSQL checks only the outer conditions again.
func (r rows) DeleteStatement() string {
	old := r.where(r.time + " < $1")
	return "DELETE FROM " + r.table + " WHERE (" + r.key + ") IN (SELECT " + r.key + " FROM " + r.table + " WHERE " + old +
		" ORDER BY " + r.time + " LIMIT $2) AND " + old
}

// OldestStatement returns the time of the oldest row that may be deleted. It returns no row if there is
// none.
func (r rows) OldestStatement() string {
	where := ""
	if r.condition != "" {
		where = " WHERE " + r.condition
	}
	return "SELECT " + r.time + " FROM " + r.table + where + " ORDER BY " + r.time + " LIMIT 1"
}

// micros returns the unit of the column rows.time in microseconds.
func (t Table) micros() int64 { return max(1, t.unit.Microseconds()) }

// Delete deletes at most `limit` rows whose retention period began before the time `before`. It
// deletes the oldest rows first.
func (t Table) Delete(ctx context.Context, tx store.Tx, before time.Time, limit int) (deleted int, err error) {
	if t.replace != nil {
		return t.replace(ctx, tx, before.UnixMicro(), limit)
	}
	written, err := tx.Exec(ctx, store.Statement{Text: t.DeleteStatement(), Args: []any{before.UnixMicro() / t.micros(), limit}})
	if err != nil {
		return 0, err
	}
	return int(written[0]), nil
}
