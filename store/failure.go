package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/freshet/freshet/schemas"
)

// StatusState says how it goes on with an entity whose refresh failed.
type StatusState string

// The states. An entity that is well has no status.
const (
	Retrying  StatusState = "RETRYING"  // it is fetched again at Status.Until
	Failed    StatusState = "FAILED"    // it was given up, and is held until Status.Until
	Suspended StatusState = "SUSPENDED" // it is held until a person lifts it
)

// Status is what is known of an entity's failures since the last success. It
// ends only with a snapshot or an absence of at least its Number, which the same
// transaction stores.
type Status struct {
	Entity schemas.Entity
	State  StatusState // empty where there is no status
	// Reason and Error say why, for people. What the database can't hold is
	// replaced in them, and they are cut to MaxTextBytes.
	Reason, Error string
	// Rounds counts the rounds of tries that failed in a row; a wait that counts
	// no failure, as for an upstream's quota, does not raise it.
	Rounds int
	// Failures counts how often it became FAILED.
	Failures int
	// Version is that of the failed fetch.
	Version int64
	// Until is when a retry is due, or when the claim on it ends (Retrying), or
	// the end of a hold (Failed). It is kept in microseconds, as all times are.
	Until time.Time
	// Lane, Params, CorrelationID, TraceParent and Replay are those of the request that
	// failed, and of the one that tries again.
	Lane                       schemas.Lane
	Params                     map[string]string
	CorrelationID, TraceParent string
	Replay                     schemas.ReplayMark
	// Since is when the first of these failures was written; a later one does not
	// change it. UpdatedAt is when the last one was.
	Since, UpdatedAt time.Time
}

// MaxTextBytes is the length of the longest text of a failure that is kept.
const MaxTextBytes = 4 << 10

// The queries about failures.
const (
	// StatusColumns are those that ScanStatus takes.
	StatusColumns = `u.source, u.facet, u.key, u.state, u.reason, u.error, u.rounds, u.failures, u.version,
	u.next_retry_at, u.lane, u.params, u.correlation_id, u.trace_parent, u.replay, u.replays, u.since, u.updated_at`

	// UpsertStatus takes StatusArgs. A later success or a later failure wins, in
	// whatever order they are written; of one number the last writer does, since
	// it is one fetch whose failure is written again.
	UpsertStatus = `INSERT INTO update_status AS u (source, facet, key, state, reason, error, rounds, failures, version,
	next_retry_at, lane, params, correlation_id, trace_parent, replay, replays, since, updated_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18
WHERE NOT EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3 AND s.version >= $9)
ON CONFLICT (source, facet, key) DO UPDATE
SET state = excluded.state, reason = excluded.reason, error = excluded.error, rounds = excluded.rounds,
	failures = excluded.failures, version = excluded.version, next_retry_at = excluded.next_retry_at, lane = excluded.lane,
	params = excluded.params, correlation_id = excluded.correlation_id, trace_parent = excluded.trace_parent,
	replay = excluded.replay, replays = excluded.replays, updated_at = excluded.updated_at
WHERE excluded.version >= u.version`

	// DeleteStatus takes source, facet and key.
	DeleteStatus = `DELETE FROM update_status WHERE source = $1 AND facet = $2 AND key = $3`

	// SelectDueRetries takes the source, the time and the greatest number of rows, and
	// returns what ScanStatus takes.
	SelectDueRetries = `SELECT ` + StatusColumns + ` FROM update_status u
WHERE u.source = $1 AND u.state = 'RETRYING' AND u.next_retry_at <= $2
ORDER BY u.next_retry_at LIMIT $3`

	// SelectNextRetryTime takes the source and returns microseconds, or no row.
	SelectNextRetryTime = `SELECT next_retry_at FROM update_status
WHERE source = $1 AND state = 'RETRYING' ORDER BY next_retry_at LIMIT 1`
)

// StatusArgs are what UpsertStatus takes.
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
		toValidText(s.Replay.ID), s.Replay.Count, toMicros(s.Since), toMicros(s.UpdatedAt),
	}, nil
}

// ScanStatus fills the status by scan, which is a row's Scan.
func (s *Status) ScanStatus(scan func(...any) error) error {
	var params []byte
	var until, since, updated int64
	err := scan(
		&s.Entity.Source, &s.Entity.Facet, &s.Entity.Key, &s.State, &s.Reason, &s.Error, &s.Rounds, &s.Failures, &s.Version,
		&until, &s.Lane, &params, &s.CorrelationID, &s.TraceParent, &s.Replay.ID, &s.Replay.Count, &since, &updated)
	if err != nil {
		return err
	}
	s.Until, s.Since, s.UpdatedAt = fromMicros(until), fromMicros(since), fromMicros(updated)
	s.Params = nil
	if string(params) != "{}" {
		if err := json.Unmarshal(params, &s.Params); err != nil {
			return fmt.Errorf("params of %s: %w", s.Entity, err)
		}
	}
	return nil
}

// toValidText makes a text of any origin one that every database holds: PostgreSQL
// refuses the whole row for a NUL or for what is not UTF-8, and the failure
// would have no end.
func toValidText(s string) string { return toValidTextOf(s, MaxTextBytes) }

func toValidTextOf(s string, most int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= most {
		return s
	}
	for !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
