package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/freshet/freshet/store"
)

// The statements run in PostgreSQL and SQLite. Times are microseconds since 1970 UTC; 0 means no time.
const (
	runColumns = `id, source, name, scope, keys, triggered_by, definition, state, waiting, attempt, since, attempt_at,
	total, open, done, not_found, failed, cancelled, started, last_started, deadline_at, created_at, updated_at, ended_at, error`
	selectRun = `SELECT ` + runColumns + ` FROM runs WHERE id = $1`
	// insertRun inserts a run. It inserts no row in two cases: another run of the same scope is active
	// (if the new run is RUNNING) or waits (if the new run waits), or a run has the same idempotency
	// key.
	insertRun = `INSERT INTO runs (` + runColumns + `, idempotency, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27)
ON CONFLICT DO NOTHING`
	updateRun = `UPDATE runs SET state = $2, waiting = $3, attempt = $4, since = $5, attempt_at = $6, total = $7, open = $8, done = $9,
	not_found = $10, failed = $11, cancelled = $12, started = $13, last_started = $14, deadline_at = $15, updated_at = $16, ended_at = $17,
	error = $18
WHERE id = $1`
	// lockRun locks the row of a run. Each transaction that ends or adds steps, or ends the run,
	// executes it first. Claims and answers of workers do not.
	lockRun = `UPDATE runs SET updated_at = $2 WHERE id = $1`
	// selectScope returns the active run of a scope, followed by the run that waits for its end.
	// Arguments: source, name, scope.
	selectScope = `SELECT ` + runColumns + ` FROM runs WHERE source = $1 AND name = $2 AND scope = $3 AND state = 'RUNNING' ORDER BY waiting`

	selectIdempotent = `SELECT id, body, created_at FROM runs WHERE idempotency = $1`
	forgetIdempotent = `UPDATE runs SET idempotency = '' WHERE id = $1`

	// moveSchedule changes the time of the next scheduled run. It writes no row if another process has
	// changed the stored time. Arguments: source, name, stored time, new time.
	moveSchedule   = `UPDATE run_schedules SET due_at = $4 WHERE source = $1 AND name = $2 AND due_at = $3`
	insertSchedule = `INSERT INTO run_schedules (source, name, due_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`
	selectSchedule = `SELECT name, due_at FROM run_schedules WHERE source = $1`

	// selectRegistered returns registered keys in their order. Arguments: source, facet, first key,
	// upper bound that is no longer included, limit.
	selectRegistered = `SELECT key FROM entities WHERE source = $1 AND facet = $2 AND key >= $3 AND key < $4 AND enabled ORDER BY key LIMIT $5`

	insertSteps = `INSERT INTO run_steps (run, no, source, facet, key, state, due_at, error, ended_at) VALUES `
	stepFields  = 9

	// endStep ends an open step. Arguments: run, number, state, time, error.
	endStep = `UPDATE run_steps SET state = $3, due_at = 0, ended_at = $4, error = $5 WHERE run = $1 AND no = $2 AND state = 'OPEN'`
	// endOpenSteps ends all open steps of a run. Arguments: run, state, time, error.
	endOpenSteps = `UPDATE run_steps SET state = $2, due_at = 0, ended_at = $3, error = $4 WHERE run = $1 AND state = 'OPEN'`
	// reopenSteps opens the failed steps of a run.
	reopenSteps = `UPDATE run_steps SET state = 'OPEN', due_at = 0, requests = 0, ended_at = 0, error = '' WHERE run = $1 AND state = 'FAILED'`
	// selectWaiting returns the numbers of open steps that were not requested yet, in their order.
	// Arguments: run, number after which the result begins, limit.
	selectWaiting = `SELECT no FROM run_steps WHERE run = $1 AND no > $2 AND state = 'OPEN' AND due_at = 0 ORDER BY no LIMIT $3`
	startStep     = `UPDATE run_steps SET due_at = $3 WHERE run = $1 AND no = $2`
	// moveFan stores the position of the last item for which steps were added. It writes no row if the
	// step has ended, or if another process has changed the position. Arguments: run, number, stored
	// position (version, id), new position (version, id).
	moveFan = `UPDATE run_steps SET fan_version = $5, fan_item = $6
WHERE run = $1 AND no = $2 AND state = 'OPEN' AND fan_version = $3 AND fan_item = $4`
	// selectKeys is the first part of a query that returns which of the given keys are steps of the run
	// already. Arguments: run, facet, keys.
	selectKeys = `SELECT key FROM run_steps WHERE run = $1 AND facet = $2 AND key IN (`

	// dueSteps claims due steps by moving their due times by the lease. Each repeated request without
	// an answer has a longer lease, up to ten times the argument. A step that another process claims at
	// the same time is not claimed again. Arguments: source, time, lease, limit.
	dueSteps = `UPDATE run_steps SET due_at = CAST($2 AS bigint) + CAST($3 AS bigint) * (1 + CASE WHEN requests < 9 THEN requests ELSE 9 END), requests = requests + 1
WHERE source = $1 AND state = 'OPEN' AND due_at > 0 AND due_at <= $2
AND (run, no) IN (SELECT run, no FROM run_steps WHERE source = $1 AND state = 'OPEN' AND due_at > 0 AND due_at <= $2 ORDER BY due_at LIMIT $4)
RETURNING run, no`
	// selectClaimed is the first part of a query that returns claimed steps with the stored data of
	// their entities. Arguments: run, numbers.
	selectClaimed = `SELECT s.run, s.no, s.facet, s.key, s.requests, s.fan_version, s.fan_item, r.since, r.attempt_at, r.state,
	COALESCE(e.version, 0), COALESCE(e.last_checked_at, 0), COALESCE(e.not_found, false), COALESCE(e.encoding, ''),
	COALESCE(u.state, ''), COALESCE(u.reason, ''), COALESCE(u.error, ''), COALESCE(u.next_retry_at, 0), COALESCE(u.updated_at, 0),
	COALESCE(c.complete_at, 0), COALESCE(c.walk, 0), COALESCE(c.page, 0)
FROM run_steps s
JOIN runs r ON r.id = s.run
LEFT JOIN snapshot_state e ON e.source = s.source AND e.facet = s.facet AND e.key = s.key
LEFT JOIN update_status u ON u.source = s.source AND u.facet = s.facet AND u.key = s.key
LEFT JOIN collections c ON c.source = s.source AND c.facet = s.facet AND c.key = s.key
WHERE s.run = $1 AND s.state = 'OPEN' AND s.no IN (`
	// setDue changes the due time of a requested step. Arguments: run, number, due time, number of
	// requests.
	setDue = `UPDATE run_steps SET due_at = $3, requests = $4 WHERE run = $1 AND no = $2 AND state = 'OPEN' AND due_at > 0`
	// answered makes a step due, because the record of its request is finished. Arguments: run, facet,
	// key, time.
	answered = `UPDATE run_steps SET due_at = $4, requests = 0 WHERE run = $1 AND facet = $2 AND key = $3 AND state = 'OPEN' AND due_at > $4`
	// storePage is executed in the transaction that stores a page of a run. It locks the step's row and
	// makes the step due, so that a poller requests the next page. It writes no row if the step is not
	// open. Arguments: run, facet, key, time.
	storePage = `UPDATE run_steps SET due_at = $4, requests = 0 WHERE run = $1 AND facet = $2 AND key = $3 AND state = 'OPEN'`
	isOpen    = `SELECT 1 FROM run_steps WHERE run = $1 AND facet = $2 AND key = $3 AND state = 'OPEN'`

	nextDue = `SELECT (SELECT min(due_at) FROM run_steps WHERE source = $1 AND state = 'OPEN' AND due_at > 0),
	(SELECT min(deadline_at) FROM runs WHERE source = $1 AND state = 'RUNNING' AND NOT waiting)`
	selectOverdue = `SELECT id FROM runs WHERE source = $1 AND state = 'RUNNING' AND NOT waiting AND deadline_at <= $2 ORDER BY deadline_at LIMIT 100`

	stepColumns    = `no, facet, key, state, due_at, requests, ended_at, error, fan_version, fan_item`
	selectSteps    = `SELECT ` + stepColumns + ` FROM run_steps WHERE run = $1 AND no > $2 AND ($3 = '' OR state = $3) ORDER BY no LIMIT $4`
	selectFailures = `SELECT ` + stepColumns + ` FROM run_steps WHERE run = $1 AND state = 'FAILED' ORDER BY no LIMIT $2`

	insertEvent = `INSERT INTO outbox (source, facet, key, version, at, before, after, publish_change, triggers, due_at, run)
VALUES ($1, '', $2, $3, $4, $5, $5, true, '[]', $4, $6)`
)

// rowsPerStatement is the maximum number of rows in one statement.
const rowsPerStatement = 500

// rows returns the placeholders of n rows, from $1 on: a group in parentheses for each row, with one
// placeholder for each field.
func rows(n, fields int) string {
	var b strings.Builder
	for i := range n * fields {
		switch {
		case i > 0 && i%fields == 0:
			b.WriteString("),(")
		case i > 0:
			b.WriteByte(',')
		default:
			b.WriteByte('(')
		}
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(i + 1))
	}
	b.WriteByte(')')
	return b.String()
}

// placeholders returns the text of n placeholders such as $4,$5,$6. The first one has the number
// `first`.
func placeholders(first, n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = "$" + strconv.Itoa(first+i)
	}
	return strings.Join(all, ",")
}

// one executes a statement, and reports whether it has written a row.
func one(ctx context.Context, tx store.Tx, text string, args ...any) (bool, error) {
	written, err := tx.Exec(ctx, store.Statement{Text: text, Args: args})
	return err == nil && written[0] > 0, err
}

func (r *Run) scan(scan func(...any) error) error {
	var definition []byte
	var since, attempt, deadline, created, updated, ended int64
	c := &r.Counts
	if err := scan(&r.ID, &r.Source, &r.Name, &r.Scope, &r.Keys, &r.TriggeredBy, &definition, &r.State, &r.Waiting, &r.Attempt, &since, &attempt,
		&c.Total, &c.Open, &c.Done, &c.NotFound, &c.Failed, &c.Cancelled, &r.started, &r.lastStarted, &deadline, &created, &updated, &ended, &r.Error); err != nil {
		return err
	}
	r.Since, r.AttemptAt, r.Deadline, r.CreatedAt, r.UpdatedAt, r.EndedAt = store.FromMicros(since), store.FromMicros(attempt), store.FromMicros(deadline), store.FromMicros(created), store.FromMicros(updated), store.FromMicros(ended)
	r.Definition = Definition{}
	if err := json.Unmarshal(definition, &r.Definition); err != nil {
		return fmt.Errorf("decode the definition of run %s: %w", r.ID, err)
	}
	return nil
}

func (r *Run) insertArgs(idempotency string, body []byte) ([]any, error) {
	definition, err := json.Marshal(r.Definition)
	c := r.Counts
	return []any{
		r.ID, r.Source, r.Name, r.Scope, r.Keys, r.TriggeredBy, string(definition), string(r.State), r.Waiting, r.Attempt, store.ToMicros(r.Since), store.ToMicros(r.AttemptAt),
		c.Total, c.Open, c.Done, c.NotFound, c.Failed, c.Cancelled, r.started, r.lastStarted, store.ToMicros(r.Deadline), store.ToMicros(r.CreatedAt), store.ToMicros(r.UpdatedAt), store.ToMicros(r.EndedAt), r.Error,
		idempotency, body,
	}, err
}

func (r *Run) update() store.Statement {
	c := r.Counts
	return store.Statement{Text: updateRun, Args: []any{
		r.ID, string(r.State), r.Waiting, r.Attempt, store.ToMicros(r.Since), store.ToMicros(r.AttemptAt), c.Total, c.Open, c.Done, c.NotFound, c.Failed, c.Cancelled,
		r.started, r.lastStarted, store.ToMicros(r.Deadline), store.ToMicros(r.UpdatedAt), store.ToMicros(r.EndedAt), r.Error,
	}}
}

func (s *Step) scan(scan func(...any) error) error {
	var due, ended int64
	err := scan(&s.Number, &s.Facet, &s.Key, &s.State, &due, &s.Requests, &ended, &s.Error, &s.fan.version, &s.fan.item)
	s.DueAt, s.EndedAt = store.FromMicros(due), store.FromMicros(ended)
	return err
}
