package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/freshet/freshet/schemas"
)

// StatusState is the state of an entity whose refresh failed. The package documentation has the
// transitions.
type StatusState string

// States of a failed entity. A healthy entity has no Status.
const (
	Retrying  StatusState = "RETRYING"  // a retry is due at Status.Until
	Failed    StatusState = "FAILED"    // no further retry; on hold until Status.Until
	Suspended StatusState = "SUSPENDED" // on hold until an operator or a successful fetch lifts the suspension
)

// Status describes an entity's failures since its last success. A write that stores a snapshot or
// a not-found result with at least the status's Version deletes the status in the same transaction.
type Status struct {
	Entity schemas.Entity
	State  StatusState // empty if the entity has no failures since its last success
	// Reason and Error explain the failure to operators. Characters that the database can't store
	// are replaced, and the texts are cut to MaxTextBytes.
	Reason, Error string
	// Rounds counts the failures in a row after which a retry was scheduled. A failure that only
	// delays the request, for example because the upstream's quota is used up, is not counted.
	Rounds int
	// Failures counts how often the state became FAILED.
	Failures int
	// Version is the version that the failed fetch had. A later fetch has a higher version.
	Version int64
	// Until is when the retry is due or its claim ends (Retrying), or when the hold ends (Failed).
	// It is stored in microseconds, as are all times.
	Until time.Time
	// Lane, Params, CorrelationID, TraceParent and Replay are copied from the failed request to the
	// retry's request.
	Lane                       schemas.Lane
	Params                     map[string]string
	CorrelationID, TraceParent string
	Replay                     schemas.ReplayMark
	Depth                      int // copy of schemas.UpdateRequest.Depth
	// DeadAlias is set while the entity waits for a check of an alias with which the upstream did not
	// find the entity: the hash of that alias.
	DeadAlias string
	// Aliases are the states of the entities that the entity takes params from, as its worker has read
	// them. AliasFailures has the version of the stored status of each alias; 0 means that it has
	// none. If a later snapshot or a later failure of one of them is stored, WriteFailure makes the
	// retry due at once. It locks their states, so a concurrent write of one of them is either found
	// by WriteFailure, or makes the retry due itself (AliasUsers). They are not stored.
	Aliases       []State
	AliasFailures []int64
	// AliasUsers are the facets that take a param from this facet. Retries of these facets that wait
	// for their alias become due when this status is written, because a fetch of the alias will not
	// succeed soon. They are not stored.
	AliasUsers []string
	// Since is the time of the first failure after the last success, UpdatedAt the time of the last
	// failure.
	Since, UpdatedAt time.Time
}

// RecheckAlias returns a statement and its arguments. The statement makes the retry due if the i-th
// alias of the status has a later snapshot, or a later failure, than the worker of the status has read.
func (s Status) RecheckAlias(i int) (statement string, args []any) {
	alias := s.Aliases[i]
	return recheckAlias, []any{s.Entity.Source, s.Entity.Facet, s.Entity.Key, s.Version, alias.Entity.Facet, alias.Version, s.AliasFailures[i]}
}

// MaxTextBytes is the maximum length of a stored text.
const MaxTextBytes = 4 << 10

// Statements for statuses, shared by both databases.
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

	// recheckAlias is the SQL statement that Status.RecheckAlias returns.
	recheckAlias = `UPDATE update_status SET next_retry_at = updated_at
WHERE source = $1 AND facet = $2 AND key = $3 AND version = $4 AND reason = '` + schemas.HoldAlias + `'
	AND (EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = $1 AND s.facet = $5 AND s.key = $3 AND s.version > $6)
	OR EXISTS (SELECT 1 FROM update_status a WHERE a.source = $1 AND a.facet = $5 AND a.key = $3 AND a.version > $7))`

	// DeleteStatus deletes the status of an entity. Arguments: source, facet, key.
	DeleteStatus = `DELETE FROM update_status WHERE source = $1 AND facet = $2 AND key = $3`

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
func (s Status) StatusArgs() ([]any, error) {
	params := []byte("{}")
	if len(s.Params) > 0 {
		var err error
		if params, err = json.Marshal(s.Params); err != nil {
			return nil, err
		}
	}
	return []any{
		s.Entity.Source, s.Entity.Facet, s.Entity.Key, string(s.State), toValidText(s.Reason), toValidText(s.Error), s.Rounds, s.Failures, s.Version,
		toMicros(s.Until), string(s.Lane), string(params), toValidText(s.CorrelationID), toValidText(s.TraceParent),
		toValidText(s.Replay.ID), s.Replay.Count, toMicros(s.Since), toMicros(s.UpdatedAt), s.DeadAlias, s.Depth,
	}, nil
}

// ScanStatus reads the status from a row.
func (s *Status) ScanStatus(scan func(...any) error) error {
	var params []byte
	var until, since, updated int64
	err := scan(
		&s.Entity.Source, &s.Entity.Facet, &s.Entity.Key, &s.State, &s.Reason, &s.Error, &s.Rounds, &s.Failures, &s.Version,
		&until, &s.Lane, &params, &s.CorrelationID, &s.TraceParent, &s.Replay.ID, &s.Replay.Count, &since, &updated, &s.DeadAlias, &s.Depth)
	if err != nil {
		return err
	}
	s.Until, s.Since, s.UpdatedAt = fromMicros(until), fromMicros(since), fromMicros(updated)
	s.Params = nil
	if string(params) != "{}" {
		if err := json.Unmarshal(params, &s.Params); err != nil {
			return fmt.Errorf("decode params of %s: %w", s.Entity, err)
		}
	}
	return nil
}

// toValidText returns a text that both databases can store, cut to MaxTextBytes. It replaces NUL
// bytes and invalid UTF-8: PostgreSQL would reject the whole row because of them, and the failure
// could never be written.
func toValidText(s string) string { return toValidTextOf(s, MaxTextBytes) }

// toValidTextOf returns a text that both databases can store, cut to `maxBytes`.
func toValidTextOf(s string, maxBytes int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= maxBytes {
		return s
	}
	for !utf8.RuneStart(s[maxBytes]) {
		maxBytes--
	}
	return s[:maxBytes]
}
