// Package deadletters defines the rows of dead letters and the DLQ jobs that replay or purge them. Its SQL
// texts are shared by both databases.
package deadletters

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// ID is the position of a dead letter on its topic. With it the record can be read and
// replayed without a scan of the topic. A request that was dead-lettered twice has two IDs.
type ID struct {
	Topic     string
	Partition int32
	Offset    int64
}

// DeadLetter is a row of the table dead_letters. It describes one record of a dead-letter topic.
type DeadLetter struct {
	ID
	// Entity has no facet and no key if the record could not be decoded.
	Entity schemas.Entity
	Reason schemas.DeadLetterReason
	// Error is the summary of the dead letter's error, at most MaxIndexedErrorBytes long.
	// Fingerprint is a hash that is equal for errors that differ only in keys and numbers.
	Error, Fingerprint string
	Status             int // HTTP status of the last upstream response; 0 if there was no response
	Attempts           int // number of upstream calls that the request caused
	// Replays is how often the request had been replayed before it was dead-lettered.
	Replays int
	// Visibility is the group of clients that may see the dead letter; empty means every reader.
	Visibility    string
	At            time.Time
	CorrelationID string
	// Handled is the dead letter's outcome (Replayed or Purged); empty while the dead letter is
	// open. Job is the ID of the DLQ job that handled it.
	Handled   string
	HandledAt time.Time
	HandledBy string
	Job       string
}

// Outcomes of a dead letter.
const (
	Replayed = "replayed"
	Purged   = "purged"
)

// MaxIndexedErrorBytes is how many bytes of an error the index keeps. So a million dead letters
// need only some hundred megabytes in the index. The record in Kafka has the whole error.
const MaxIndexedErrorBytes = 400

// Filter selects dead letters of one source. An empty field matches all.
type Filter struct {
	Source      string                   `json:"source"`
	Reason      schemas.DeadLetterReason `json:"reason,omitempty"`
	Fingerprint string                   `json:"fingerprint,omitempty"`
	Facet       string                   `json:"facet,omitempty"`
	Key         string                   `json:"key,omitempty"`
	Since       time.Time                `json:"since,omitzero"` // dead letters at this time or later
	Until       time.Time                `json:"until,omitzero"` // selects dead letters that were written before this time
	Attempts    *int                     `json:"attempts,omitempty"`
	Partition   *int32                   `json:"partition,omitempty"`
	Offset      *int64                   `json:"offset,omitempty"`
	// Handled is "open", "handled", "replayed" or "purged".
	Handled string `json:"handled,omitempty"`
	// Visibilities limits the result to dead letters that every reader may see and dead letters of
	// these visibilities; nil means no limit. The limit depends on the client that lists dead letters,
	// so jobs do not store it.
	Visibilities []string `json:"-"`
}

// Values of Filter.Handled, besides Replayed and Purged.
const (
	Open    = "open"
	Handled = "handled"
)

// where returns the filter as an SQL condition, and `args` with the arguments of the condition
// appended.
func (f Filter) where(args []any) (string, []any) {
	conditions := []string{}
	add := func(condition string, value any) {
		args = append(args, value)
		conditions = append(conditions, fmt.Sprintf(condition, len(args)))
	}
	add("source = $%d", f.Source)
	for _, c := range []struct{ condition, value string }{
		{"reason = $%d", string(f.Reason)},
		{"fingerprint = $%d", f.Fingerprint},
		{"facet = $%d", f.Facet},
		{"key <> '' AND key = $%d", f.Key},
	} {
		if c.value != "" {
			add(c.condition, c.value)
		}
	}
	switch f.Handled {
	case "":
	case Open:
		conditions = append(conditions, "handled = ''")
	case Handled:
		conditions = append(conditions, "handled <> ''")
	default:
		add("handled = $%d", f.Handled)
	}
	if !f.Since.IsZero() {
		add("at >= $%d", store.ToMicros(f.Since))
	}
	if !f.Until.IsZero() {
		add("at < $%d", store.ToMicros(f.Until))
	}
	if f.Attempts != nil {
		add("attempts = $%d", *f.Attempts)
	}
	if f.Partition != nil {
		add("kafka_partition = $%d", *f.Partition)
	}
	if f.Offset != nil {
		add("kafka_offset = $%d", *f.Offset)
	}
	if f.Visibilities != nil {
		visible := []string{"visibility = ''"}
		for _, v := range f.Visibilities {
			args = append(args, v)
			visible = append(visible, fmt.Sprintf("visibility = $%d", len(args)))
		}
		conditions = append(conditions, "("+strings.Join(visible, " OR ")+")")
	}
	return strings.Join(conditions, " AND "), args
}

const deadLetterColumns = `topic, kafka_partition, kafka_offset, source, facet, key, reason, error, fingerprint, status, attempts, replays,
	at, correlation_id, handled, handled_at, handled_by, job, visibility`

// SelectNewest returns the statement, and its arguments, that lists matching dead letters, newest
// first, with the columns of ScanDeadLetter. If after.At is set, the list continues after the dead
// letter `after`, the last one of the previous page.
func (f Filter) SelectNewest(after DeadLetter, limit int) (string, []any) {
	where, args := f.where(nil)
	if !after.At.IsZero() {
		n := len(args)
		where += fmt.Sprintf(" AND (at, topic, kafka_partition, kafka_offset) < ($%d, $%d, $%d, $%d)", n+1, n+2, n+3, n+4)
		args = append(args, store.ToMicros(after.At), after.Topic, after.Partition, after.Offset)
	}
	args = append(args, limit)
	return fmt.Sprintf(`SELECT %s FROM dead_letters WHERE %s
ORDER BY at DESC, topic DESC, kafka_partition DESC, kafka_offset DESC LIMIT $%d`, deadLetterColumns, where, len(args)), args
}

// SelectByOffset returns the statement, and its arguments, that lists matching dead letters in the
// order of partition and offset, with the columns of ScanDeadLetter. The list starts after the
// given position.
func (f Filter) SelectByOffset(after ID, limit int) (string, []any) {
	where, args := f.where([]any{schemas.DeadLetterTopic(f.Source), after.Partition, after.Offset, limit})
	return `SELECT ` + deadLetterColumns + ` FROM dead_letters
WHERE topic = $1 AND (kafka_partition, kafka_offset) > ($2, $3) AND ` + where + `
ORDER BY kafka_partition, kafka_offset LIMIT $4`, args
}

// Group is the number of dead letters with the same reason, fingerprint and facet.
type Group struct {
	Reason      schemas.DeadLetterReason `json:"reason"`
	Fingerprint string                   `json:"fingerprint"`
	Facet       string                   `json:"facet"`
	Status      int                      `json:"status,omitempty"`
	// Error is the error of one dead letter of the group.
	Error string    `json:"error"`
	Count int64     `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// AtReplayLimit is the number of dead letters that were replayed schemas.MaxReplays times and
	// can't be replayed again.
	AtReplayLimit int64 `json:"atReplayLimit"`
	// Totals counts the dead letters of all groups, including groups beyond the query's limit.
	Totals Count `json:"-"`
}

// Count counts dead letters. All counts every dead letter. AtReplayLimit counts the dead
// letters that were replayed schemas.MaxReplays times. Undecoded counts the dead letters that were
// replayed less often and whose record could not be decoded.
type Count struct{ All, AtReplayLimit, Undecoded int64 }

// SelectOfJob returns the statement, and its arguments, that lists dead letters that a job has handled.
// The rows have the columns of ScanDeadLetter.
func (Filter) SelectOfJob(job string, limit int) (string, []any) {
	return `SELECT ` + deadLetterColumns + ` FROM dead_letters WHERE job = $1 AND job <> ''
ORDER BY topic, kafka_partition, kafka_offset LIMIT $2`, []any{job, limit}
}

// SelectHours returns the statement, and its arguments, that counts matching dead letters by hour
// (UTC) and reason. The rows have the columns of ScanHour, the earliest hour first.
func (f Filter) SelectHours() (string, []any) {
	where, args := f.where([]any{time.Hour.Microseconds()})
	return `SELECT at / CAST($1 AS bigint), reason, count(*) FROM dead_letters WHERE ` + where + `
GROUP BY 1, 2 ORDER BY 1, 2`, args
}

// ScanHour reads a group from a row of SelectHours. First is the start of its hour.
func (g *Group) ScanHour(scan func(...any) error) error {
	var hour int64
	err := scan(&hour, &g.Reason, &g.Count)
	g.First = time.Unix(hour*3600, 0).UTC()
	return err
}

// SelectGroups returns the statement, and its arguments, that counts matching dead letters by
// reason, fingerprint and facet. The rows have the columns of ScanGroup, largest group first.
func (f Filter) SelectGroups(limit int) (string, []any) {
	where, args := f.where([]any{schemas.MaxReplays, limit})
	return `SELECT reason, fingerprint, facet, max(status), max(error), count(*), min(at), max(at),
	count(CASE WHEN replays >= $1 THEN 1 END), CAST(sum(count(*)) OVER () AS bigint), CAST(sum(count(CASE WHEN replays >= $1 THEN 1 END)) OVER () AS bigint),
	CAST(sum(count(CASE WHEN replays < $1 AND facet = '' THEN 1 END)) OVER () AS bigint)
FROM dead_letters WHERE ` + where + `
GROUP BY reason, fingerprint, facet ORDER BY count(*) DESC, max(at) DESC, fingerprint, facet LIMIT $2`, args
}

// ScanGroup reads the group from a row.
func (g *Group) ScanGroup(scan func(...any) error) error {
	var first, last int64
	err := scan(&g.Reason, &g.Fingerprint, &g.Facet, &g.Status, &g.Error, &g.Count, &first, &last, &g.AtReplayLimit, &g.Totals.All, &g.Totals.AtReplayLimit, &g.Totals.Undecoded)
	g.First, g.Last = store.FromMicros(first), store.FromMicros(last)
	return err
}

const (
	// Insert inserts the row of a dead letter. If the same row is stored already, it changes
	// nothing. If a row with the same position but another time is stored, the topic was deleted and
	// created again: then the new row replaces the stored one. Arguments: DeadLetter.InsertArgs.
	Insert = `INSERT INTO dead_letters (topic, kafka_partition, kafka_offset, source, facet, key, reason, error, fingerprint, status, attempts, replays,
	at, correlation_id, visibility)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT (topic, kafka_partition, kafka_offset) DO UPDATE
SET source = excluded.source, facet = excluded.facet, key = excluded.key, reason = excluded.reason, error = excluded.error,
	fingerprint = excluded.fingerprint, status = excluded.status, attempts = excluded.attempts, replays = excluded.replays,
	at = excluded.at, correlation_id = excluded.correlation_id, visibility = excluded.visibility, handled = '', handled_at = 0, handled_by = '', job = ''
WHERE dead_letters.at <> excluded.at`

	// UpdateDisposition writes the outcome of an open dead letter. Arguments: DispositionArgs.
	UpdateDisposition = `UPDATE dead_letters SET handled = $4, handled_at = $5, handled_by = $6, job = $7
WHERE topic = $1 AND kafka_partition = $2 AND kafka_offset = $3 AND handled = ''`

	// SelectHandledPrefixes returns the columns of ScanPrefix for each partition. Arguments: topic,
	// and the times "recent" and "missing" (in microseconds), which are parameters of the method
	// HandledPrefixes.
	SelectHandledPrefixes = `SELECT kafka_partition, min(kafka_offset), max(kafka_offset),
	max(CASE WHEN previous IS NULL AND at >= $3 THEN 1 ELSE 0 END),
	COALESCE(min(CASE WHEN kafka_offset > previous + 1 AND at >= $3 THEN previous + 1
		WHEN handled = '' OR at >= $2 THEN kafka_offset END), max(kafka_offset) + 1)
FROM (SELECT kafka_partition, kafka_offset, at, handled,
	lag(kafka_offset) OVER (PARTITION BY kafka_partition ORDER BY kafka_offset) AS previous
	FROM dead_letters WHERE topic = $1) AS entries
GROUP BY kafka_partition ORDER BY kafka_partition`

	// DeleteBefore deletes the rows of dead letters with lower offsets. Arguments: topic,
	// partition, offset, limit.
	DeleteBefore = `DELETE FROM dead_letters WHERE (topic, kafka_partition, kafka_offset) IN (
	SELECT topic, kafka_partition, kafka_offset FROM dead_letters
	WHERE topic = $1 AND kafka_partition = $2 AND kafka_offset < $3 ORDER BY kafka_offset LIMIT $4)`
)

// HandledPrefix is the range of offsets, at the start of one partition, in which all dead letters
// are handled.
type HandledPrefix struct {
	Partition int32
	// HandledBefore is the end of the range, exclusive. Every entry before this offset is handled
	// and older than the time "recent", a parameter of the method HandledPrefixes. No further entry
	// before this offset can be added.
	HandledBefore int64
	// First and Last are the lowest and the highest offset with an entry. FirstIsRecent is set if
	// the entry at First is not older than the time "missing", a parameter of the method
	// HandledPrefixes. Then records before First may still get their entries.
	First, Last   int64
	FirstIsRecent bool
}

// ScanPrefix reads the prefix from a row.
func (p *HandledPrefix) ScanPrefix(scan func(...any) error) error {
	var fresh int
	err := scan(&p.Partition, &p.First, &p.Last, &fresh, &p.HandledBefore)
	p.FirstIsRecent = fresh == 1
	return err
}

// InsertArgs returns the arguments of Insert.
func (d DeadLetter) InsertArgs() []any {
	return []any{
		d.Topic, d.Partition, d.Offset, d.Entity.Source, d.Entity.Facet, d.Entity.Key,
		string(d.Reason), store.ValidTextOf(d.Error, MaxIndexedErrorBytes), d.Fingerprint, d.Status, d.Attempts, d.Replays, store.ToMicros(d.At), store.ValidText(d.CorrelationID),
		d.Visibility,
	}
}

// ScanDeadLetter reads the entry from a row.
func (d *DeadLetter) ScanDeadLetter(scan func(...any) error) error {
	var at, handled int64
	err := scan(&d.Topic, &d.Partition, &d.Offset, &d.Entity.Source, &d.Entity.Facet, &d.Entity.Key,
		&d.Reason, &d.Error, &d.Fingerprint, &d.Status, &d.Attempts, &d.Replays, &at, &d.CorrelationID, &d.Handled, &handled, &d.HandledBy, &d.Job, &d.Visibility)
	d.At, d.HandledAt = store.FromMicros(at), store.FromMicros(handled)
	return err
}

// SortIDs returns the IDs in the order in which the databases lock their rows, which
// prevents deadlocks between concurrent jobs.
func SortIDs(ids []ID) []ID {
	return slices.SortedFunc(slices.Values(ids), func(a, b ID) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
}

// Disposition is the outcome of dead letters, with the time, the actor and the ID of the job.
type Disposition struct {
	Outcome, By, Job string
	At               time.Time
}

// DispositionArgs returns the arguments of UpdateDisposition.
func (id ID) DispositionArgs(h Disposition) []any {
	return []any{id.Topic, id.Partition, id.Offset, store.ValidText(h.Outcome), store.ToMicros(h.At), store.ValidText(h.By), h.Job}
}
