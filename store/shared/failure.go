package shared

import (
	"encoding/json"
	"fmt"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Statements for statuses.
const (
	// StatusColumns are the columns that ScanStatus reads.
	StatusColumns = `u.source, u.facet, u.key, u.state, u.reason, u.error, u.rounds, u.failures, u.version,
	u.next_retry_at, u.lane, u.params, u.correlation_id, u.trace_parent, u.replay, u.replays, u.since, u.updated_at, u.dead_alias, u.depth`

	// UpsertStatus writes the status, unless a success or failure of a later fetch is stored. So the
	// order in which results arrive does not matter. A status with the same version as the stored
	// one replaces it, because both describe the same fetch. Arguments: StatusArgs.
	UpsertStatus = `INSERT INTO update_status AS u (source, facet, key, state, reason, error, rounds, failures, version,
	next_retry_at, lane, params, correlation_id, trace_parent, replay, replays, since, updated_at, dead_alias, depth)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20
WHERE NOT EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3 AND s.version >= $9)
ON CONFLICT (source, facet, key) DO UPDATE
SET state = excluded.state, reason = excluded.reason, error = excluded.error, rounds = excluded.rounds,
	failures = excluded.failures, version = excluded.version, next_retry_at = excluded.next_retry_at, lane = excluded.lane,
	params = excluded.params, correlation_id = excluded.correlation_id, trace_parent = excluded.trace_parent,
	replay = excluded.replay, replays = excluded.replays, updated_at = excluded.updated_at, dead_alias = excluded.dead_alias,
	depth = excluded.depth
WHERE excluded.version >= u.version`

	// recheckAlias is the SQL statement that RecheckAlias returns.
	recheckAlias = `UPDATE update_status SET next_retry_at = updated_at
WHERE source = $1 AND facet = $2 AND key = $3 AND version = $4 AND reason = '` + schemas.HoldAlias + `'
	AND (EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = $1 AND s.facet = $5 AND s.key = $3 AND s.version > $6)
	OR EXISTS (SELECT 1 FROM update_status a WHERE a.source = $1 AND a.facet = $5 AND a.key = $3 AND a.version > $7))`

	// SelectDueRetries returns the columns of ScanStatus, earliest due first. Arguments: source,
	// time, limit.
	SelectDueRetries = `SELECT ` + StatusColumns + ` FROM update_status u
WHERE u.source = $1 AND u.state = 'RETRYING' AND u.next_retry_at <= $2
ORDER BY u.next_retry_at LIMIT $3`

	// SelectNextRetryTime returns the earliest due time in microseconds, or no row. Argument:
	// source.
	SelectNextRetryTime = `SELECT next_retry_at FROM update_status
WHERE source = $1 AND state = 'RETRYING' ORDER BY next_retry_at LIMIT 1`
)

// StatusArgs returns the arguments of UpsertStatus.
func StatusArgs(s store.Status) ([]any, error) {
	params := []byte("{}")
	if len(s.Params) > 0 {
		var err error
		if params, err = json.Marshal(s.Params); err != nil {
			return nil, err
		}
	}
	return []any{
		s.Entity.Source, s.Entity.Facet, s.Entity.Key, string(s.State), store.ValidText(s.Reason), store.ValidText(s.Error), s.Rounds, s.Failures, s.Version,
		store.ToMicros(s.Until), string(s.Lane), string(params), store.ValidText(s.CorrelationID), store.ValidText(s.TraceParent),
		store.ValidText(s.Replay.ID), s.Replay.Count, store.ToMicros(s.Since), store.ToMicros(s.UpdatedAt), s.DeadAlias, s.Depth,
	}, nil
}

// ScanStatus reads the status from a row.
func ScanStatus(s *store.Status, scan func(...any) error) error {
	var params []byte
	var until, since, updated int64
	err := scan(
		&s.Entity.Source, &s.Entity.Facet, &s.Entity.Key, &s.State, &s.Reason, &s.Error, &s.Rounds, &s.Failures, &s.Version,
		&until, &s.Lane, &params, &s.CorrelationID, &s.TraceParent, &s.Replay.ID, &s.Replay.Count, &since, &updated, &s.DeadAlias, &s.Depth)
	if err != nil {
		return err
	}
	s.Until, s.Since, s.UpdatedAt = store.FromMicros(until), store.FromMicros(since), store.FromMicros(updated)
	s.Params = nil
	if string(params) != "{}" {
		if err := json.Unmarshal(params, &s.Params); err != nil {
			return fmt.Errorf("decode params of %s: %w", s.Entity, err)
		}
	}
	return nil
}

// RecheckAlias returns a statement and its arguments. The statement makes the retry due if the i-th
// alias of the status has a later snapshot, or a later failure, than the worker of the status has read.
func RecheckAlias(s store.Status, i int) (statement string, args []any) {
	alias := s.Aliases[i]
	return recheckAlias, []any{s.Entity.Source, s.Entity.Facet, s.Entity.Key, s.Version, alias.Entity.Facet, alias.Version, s.AliasFailures[i]}
}
