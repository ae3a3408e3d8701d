package store

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
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
	// Number is that of the failed fetch.
	Number int64
	// Until is when a retry is due, or when the claim on it ends (Retrying), or
	// the end of a hold (Failed). It is kept in microseconds, as all times are.
	Until time.Time
	// Lane, Params, CorrelationID and TraceParent are those of the request that
	// failed, and of the one that tries again.
	Lane                       schemas.Lane
	Params                     map[string]string
	CorrelationID, TraceParent string
	// Since is when the first of these failures was written; a later one does not
	// change it. UpdatedAt is when the last one was.
	Since, UpdatedAt time.Time
}

// LetterID names a dead letter by where it lies on its topic, so that it can be
// read and replayed without a scan. A record that is buried twice has two.
type LetterID struct {
	Topic     string
	Partition int32
	Offset    int64
}

// Letter is the index's entry of a record that lies on a dead-letter topic.
type Letter struct {
	LetterID
	// Entity has no facet and no key where the record could not be decoded.
	Entity        schemas.Entity
	Reason        schemas.DeadLetterReason
	Attempts      int // calls of the upstream
	At            time.Time
	CorrelationID string
	// Handled is what was done about it; empty while it is open.
	Handled   string
	HandledAt time.Time
	HandledBy string
}

// MaxTextBytes is the length of the longest text of a failure that is kept.
const MaxTextBytes = 4 << 10

// The queries about failures.
const (
	// StatusColumns are those that ScanStatus takes.
	StatusColumns = `u.source, u.facet, u.key, u.state, u.reason, u.error, u.rounds, u.failures, u.number,
	u.next_retry_at, u.lane, u.params, u.correlation_id, u.trace_parent, u.since, u.updated_at`

	// UpsertStatus takes StatusArgs. A later success or a later failure wins, in
	// whatever order they are written; of one number the last writer does, since
	// it is one fetch whose failure is written again.
	UpsertStatus = `INSERT INTO update_status AS u (source, facet, key, state, reason, error, rounds, failures, number,
	next_retry_at, lane, params, correlation_id, trace_parent, since, updated_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16
WHERE NOT EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3 AND s.version >= $9)
ON CONFLICT (source, facet, key) DO UPDATE
SET state = excluded.state, reason = excluded.reason, error = excluded.error, rounds = excluded.rounds,
	failures = excluded.failures, number = excluded.number, next_retry_at = excluded.next_retry_at, lane = excluded.lane,
	params = excluded.params, correlation_id = excluded.correlation_id, trace_parent = excluded.trace_parent,
	updated_at = excluded.updated_at
WHERE excluded.number >= u.number`

	// DeleteStatus takes source, facet and key.
	DeleteStatus = `DELETE FROM update_status WHERE source = $1 AND facet = $2 AND key = $3`

	// SelectDue takes the source, the time and the greatest number of rows, and
	// returns what ScanStatus takes.
	SelectDue = `SELECT ` + StatusColumns + ` FROM update_status u
WHERE u.source = $1 AND u.state = 'RETRYING' AND u.next_retry_at <= $2
ORDER BY u.next_retry_at LIMIT $3`

	// SelectNextDue takes the source and returns microseconds, or no row.
	SelectNextDue = `SELECT next_retry_at FROM update_status
WHERE source = $1 AND state = 'RETRYING' ORDER BY next_retry_at LIMIT 1`

	// InsertLetter takes LetterArgs.
	InsertLetter = `INSERT INTO dead_letters (topic, kafka_partition, kafka_offset, source, facet, key, reason, attempts, at, correlation_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (topic, kafka_partition, kafka_offset) DO NOTHING`

	// HandleLetter takes HandleArgs.
	HandleLetter = `UPDATE dead_letters SET handled = $4, handled_at = $5, handled_by = $6
WHERE topic = $1 AND kafka_partition = $2 AND kafka_offset = $3 AND handled = ''`

	letterColumns = `topic, kafka_partition, kafka_offset, source, facet, key, reason, attempts, at, correlation_id, handled, handled_at, handled_by`
	letterOrder   = ` ORDER BY at DESC, topic DESC, kafka_partition DESC, kafka_offset DESC LIMIT $2`

	selectLetters     = `SELECT ` + letterColumns + ` FROM dead_letters WHERE source = $1` + letterOrder
	selectOpenLetters = `SELECT ` + letterColumns + ` FROM dead_letters WHERE source = $1 AND handled = ''` + letterOrder
)

// SelectLetters returns the statement that lists the letters of a source, newest
// first, all or the open ones. It takes the source and the greatest number of
// rows, and returns what ScanLetter takes. Each has its own index.
func SelectLetters(open bool) string {
	if open {
		return selectOpenLetters
	}
	return selectLetters
}

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
		s.Entity.Source, s.Entity.Facet, s.Entity.Key, string(s.State), clean(s.Reason), clean(s.Error), s.Rounds, s.Failures, s.Number,
		toMicros(s.Until), string(s.Lane), string(params), clean(s.CorrelationID), clean(s.TraceParent), toMicros(s.Since), toMicros(s.UpdatedAt),
	}, nil
}

// ScanStatus fills the status by scan, which is a row's Scan.
func (s *Status) ScanStatus(scan func(...any) error) error {
	var params []byte
	var until, since, updated int64
	err := scan(
		&s.Entity.Source, &s.Entity.Facet, &s.Entity.Key, &s.State, &s.Reason, &s.Error, &s.Rounds, &s.Failures, &s.Number,
		&until, &s.Lane, &params, &s.CorrelationID, &s.TraceParent, &since, &updated)
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

// LetterArgs are what InsertLetter takes.
func (l Letter) LetterArgs() []any {
	return []any{
		l.Topic, l.Partition, l.Offset, l.Entity.Source, l.Entity.Facet, l.Entity.Key,
		string(l.Reason), l.Attempts, toMicros(l.At), clean(l.CorrelationID),
	}
}

// ScanLetter fills the letter by scan, which is a row's Scan.
func (l *Letter) ScanLetter(scan func(...any) error) error {
	var at, handled int64
	err := scan(&l.Topic, &l.Partition, &l.Offset, &l.Entity.Source, &l.Entity.Facet, &l.Entity.Key,
		&l.Reason, &l.Attempts, &at, &l.CorrelationID, &l.Handled, &handled, &l.HandledBy)
	l.At, l.HandledAt = fromMicros(at), fromMicros(handled)
	return err
}

// SortLetters returns the letters in the order in which a database takes them, so
// that two who mark the same ones never wait for each other in a circle.
func SortLetters(ids []LetterID) []LetterID {
	return slices.SortedFunc(slices.Values(ids), func(a, b LetterID) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
}

// HandleArgs are what HandleLetter takes.
func (id LetterID) HandleArgs(how, by string, at time.Time) []any {
	return []any{id.Topic, id.Partition, id.Offset, clean(how), toMicros(at), clean(by)}
}

// clean makes a text of any origin one that every database holds: PostgreSQL
// refuses the whole row for a NUL or for what is not UTF-8, and the failure
// would have no end.
func clean(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= MaxTextBytes {
		return s
	}
	n := MaxTextBytes
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
