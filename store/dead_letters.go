package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
)

// DeadLetterID names a dead letter by where it lies on its topic, so that it can be
// read and replayed without a scan. A record that is buried twice has two.
type DeadLetterID struct {
	Topic     string
	Partition int32
	Offset    int64
}

// DeadLetter is the index's entry of a record that lies on a dead-letter topic.
type DeadLetter struct {
	DeadLetterID
	// Entity has no facet and no key where the record could not be decoded.
	Entity schemas.Entity
	Reason schemas.DeadLetterReason
	// Error is the beginning of the letter's summary, at most MaxIndexedError bytes of it;
	// Fingerprint is that of schemas.DeadLetter. Both are empty in letters of before they
	// were kept.
	Error, Fingerprint string
	Status             int // of the upstream's last answer; 0 if there was none
	Attempts           int // calls of the upstream
	// Replays is how often what failed had been replayed.
	Replays int
	// Visibility names the clients that may see the letter; empty: every reader.
	Visibility    string
	At            time.Time
	CorrelationID string
	// Handled is what was done about it; empty while it is open. Job is the job that did
	// it, if one did.
	Handled   string
	HandledAt time.Time
	HandledBy string
	Job       string
}

// What may have been done about a letter.
const (
	Replayed = "replayed"
	Purged   = "purged"
)

// MaxIndexedErrorBytes is how many bytes of an error the index keeps: a million letters of one
// outage must not cost gigabytes. The letter itself has more.
const MaxIndexedErrorBytes = 400

// DeadLetterFilter chooses letters of one source. What is empty chooses all.
type DeadLetterFilter struct {
	Source      string                   `json:"source"`
	Reason      schemas.DeadLetterReason `json:"reason,omitempty"`
	Fingerprint string                   `json:"fingerprint,omitempty"`
	Facet       string                   `json:"facet,omitempty"`
	Key         string                   `json:"key,omitempty"`
	Since       time.Time                `json:"since,omitzero"` // from then on
	Until       time.Time                `json:"until,omitzero"` // before then
	Attempts    *int                     `json:"attempts,omitempty"`
	Partition   *int32                   `json:"partition,omitempty"`
	Offset      *int64                   `json:"offset,omitempty"`
	// Handled is open, handled, replayed or purged.
	Handled string `json:"handled,omitempty"`
	// Visibilities limits the letters to these visibilities and those of every reader; nil:
	// no limit. It belongs to the client that lists, so that a job does not keep it.
	Visibilities []string `json:"-"`
}

// What DeadLetterFilter.Handled may be besides Replayed and Purged.
const (
	OpenDeadLetters    = "open"
	HandledDeadLetters = "handled"
)

// where returns the condition, and its arguments behind those that there are.
func (f DeadLetterFilter) where(args []any) (string, []any) {
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
	case OpenDeadLetters:
		conditions = append(conditions, "handled = ''")
	case HandledDeadLetters:
		conditions = append(conditions, "handled <> ''")
	default:
		add("handled = $%d", f.Handled)
	}
	if !f.Since.IsZero() {
		add("at >= $%d", toMicros(f.Since))
	}
	if !f.Until.IsZero() {
		add("at < $%d", toMicros(f.Until))
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

// SelectNewest returns the statement that lists the chosen letters, the newest first,
// behind one of them unless its time is zero; and what it takes. It returns what
// ScanDeadLetter takes.
func (f DeadLetterFilter) SelectNewest(behind DeadLetter, limit int) (string, []any) {
	where, args := f.where(nil)
	if !behind.At.IsZero() {
		n := len(args)
		where += fmt.Sprintf(" AND (at, topic, kafka_partition, kafka_offset) < ($%d, $%d, $%d, $%d)", n+1, n+2, n+3, n+4)
		args = append(args, toMicros(behind.At), behind.Topic, behind.Partition, behind.Offset)
	}
	args = append(args, limit)
	return fmt.Sprintf(`SELECT %s FROM dead_letters WHERE %s
ORDER BY at DESC, topic DESC, kafka_partition DESC, kafka_offset DESC LIMIT $%d`, deadLetterColumns, where, len(args)), args
}

// SelectByOffset returns the statement that lists the chosen letters in the order in which
// they lie on their topic, behind one of them; and what it takes. It returns what
// ScanDeadLetter takes.
func (f DeadLetterFilter) SelectByOffset(behind DeadLetterID, limit int) (string, []any) {
	where, args := f.where([]any{schemas.DeadLetterTopic(f.Source), behind.Partition, behind.Offset, limit})
	return `SELECT ` + deadLetterColumns + ` FROM dead_letters
WHERE topic = $1 AND (kafka_partition, kafka_offset) > ($2, $3) AND ` + where + `
ORDER BY kafka_partition, kafka_offset LIMIT $4`, args
}

// DeadLetterGroup is how many letters there are of one kind.
type DeadLetterGroup struct {
	Reason      schemas.DeadLetterReason `json:"reason"`
	Fingerprint string                   `json:"fingerprint"`
	Facet       string                   `json:"facet"`
	Status      int                      `json:"status,omitempty"`
	// Error is that of one of them.
	Error string    `json:"error"`
	Count int64     `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// AtReplayLimit are those that were replayed as often as may be.
	AtReplayLimit int64 `json:"atReplayLimit"`
	// Totals counts the letters of all groups, also of those beyond the limit.
	Totals DeadLetterCount `json:"-"`
}

// DeadLetterCount is how many letters there are. Spent are those of them that were replayed as
// often as may be, and Undecoded those besides whose record could not be decoded.
type DeadLetterCount struct{ All, AtReplayLimit, Undecoded int64 }

// SelectGroups returns the statement that counts the chosen letters by what went wrong, the
// most frequent first; and what it takes. It returns what ScanGroup takes.
func (f DeadLetterFilter) SelectGroups(limit int) (string, []any) {
	where, args := f.where([]any{schemas.MaxReplays, limit})
	return `SELECT reason, fingerprint, facet, max(status), max(error), count(*), min(at), max(at),
	count(CASE WHEN replays >= $1 THEN 1 END), CAST(sum(count(*)) OVER () AS bigint), CAST(sum(count(CASE WHEN replays >= $1 THEN 1 END)) OVER () AS bigint),
	CAST(sum(count(CASE WHEN replays < $1 AND facet = '' THEN 1 END)) OVER () AS bigint)
FROM dead_letters WHERE ` + where + `
GROUP BY reason, fingerprint, facet ORDER BY count(*) DESC, max(at) DESC, fingerprint, facet LIMIT $2`, args
}

// ScanGroup fills the group by scan, which is a row's Scan.
func (g *DeadLetterGroup) ScanGroup(scan func(...any) error) error {
	var first, last int64
	err := scan(&g.Reason, &g.Fingerprint, &g.Facet, &g.Status, &g.Error, &g.Count, &first, &last, &g.AtReplayLimit, &g.Totals.All, &g.Totals.AtReplayLimit, &g.Totals.Undecoded)
	g.First, g.Last = fromMicros(first), fromMicros(last)
	return err
}

const (
	// InsertDeadLetter takes InsertArgs. A letter that is written again is the same; one of
	// another time lies on a topic that was made anew, and the one before it is gone.
	InsertDeadLetter = `INSERT INTO dead_letters (topic, kafka_partition, kafka_offset, source, facet, key, reason, error, fingerprint, status, attempts, replays,
	at, correlation_id, visibility)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT (topic, kafka_partition, kafka_offset) DO UPDATE
SET source = excluded.source, facet = excluded.facet, key = excluded.key, reason = excluded.reason, error = excluded.error,
	fingerprint = excluded.fingerprint, status = excluded.status, attempts = excluded.attempts, replays = excluded.replays,
	at = excluded.at, correlation_id = excluded.correlation_id, visibility = excluded.visibility, handled = '', handled_at = 0, handled_by = '', job = ''
WHERE dead_letters.at <> excluded.at`

	// UpdateDisposition takes DispositionArgs.
	UpdateDisposition = `UPDATE dead_letters SET handled = $4, handled_at = $5, handled_by = $6, job = $7
WHERE topic = $1 AND kafka_partition = $2 AND kafka_offset = $3 AND handled = ''`

	// SelectHandledPrefixes takes a topic, a time from which on letters are young, and one from which
	// on an entry that is missing may yet be written. It returns a row for each partition,
	// which ScanPrefix takes.
	SelectHandledPrefixes = `SELECT kafka_partition, min(kafka_offset), max(kafka_offset),
	max(CASE WHEN previous IS NULL AND at >= $3 THEN 1 ELSE 0 END),
	COALESCE(min(CASE WHEN kafka_offset > previous + 1 AND at >= $3 THEN previous + 1
		WHEN handled = '' OR at >= $2 THEN kafka_offset END), max(kafka_offset) + 1)
FROM (SELECT kafka_partition, kafka_offset, at, handled,
	lag(kafka_offset) OVER (PARTITION BY kafka_partition ORDER BY kafka_offset) AS previous
	FROM dead_letters WHERE topic = $1) AS entries
GROUP BY kafka_partition ORDER BY kafka_partition`

	// DeleteDeadLettersBefore takes a topic, a partition, an offset before which the topic has no
	// records, and the greatest number of rows.
	DeleteDeadLettersBefore = `DELETE FROM dead_letters WHERE (topic, kafka_partition, kafka_offset) IN (
	SELECT topic, kafka_partition, kafka_offset FROM dead_letters
	WHERE topic = $1 AND kafka_partition = $2 AND kafka_offset < $3 ORDER BY kafka_offset LIMIT $4)`
)

// HandledPrefix says how far the letters of one partition are handled.
type HandledPrefix struct {
	Partition int32
	// HandledBefore is an offset, before which all entries are of letters that are handled and not
	// young, and none is missing behind the first that may yet be written.
	HandledBefore int64
	// First and Last are the offsets of the first and the last entry. Fresh says that the
	// first is of a time from which entries before it may yet be written.
	First, Last   int64
	FirstIsRecent bool
}

// ScanPrefix fills the prefix by scan, which is a row's Scan.
func (p *HandledPrefix) ScanPrefix(scan func(...any) error) error {
	var fresh int
	err := scan(&p.Partition, &p.First, &p.Last, &fresh, &p.HandledBefore)
	p.FirstIsRecent = fresh == 1
	return err
}

// InsertArgs are what InsertLetter takes.
func (l DeadLetter) InsertArgs() []any {
	return []any{
		l.Topic, l.Partition, l.Offset, l.Entity.Source, l.Entity.Facet, l.Entity.Key,
		string(l.Reason), toValidTextOf(l.Error, MaxIndexedErrorBytes), l.Fingerprint, l.Status, l.Attempts, l.Replays, toMicros(l.At), toValidText(l.CorrelationID),
		l.Visibility,
	}
}

// ScanDeadLetter fills the letter by scan, which is a row's Scan.
func (l *DeadLetter) ScanDeadLetter(scan func(...any) error) error {
	var at, handled int64
	err := scan(&l.Topic, &l.Partition, &l.Offset, &l.Entity.Source, &l.Entity.Facet, &l.Entity.Key,
		&l.Reason, &l.Error, &l.Fingerprint, &l.Status, &l.Attempts, &l.Replays, &at, &l.CorrelationID, &l.Handled, &handled, &l.HandledBy, &l.Job, &l.Visibility)
	l.At, l.HandledAt = fromMicros(at), fromMicros(handled)
	return err
}

// SortDeadLetterIDs returns the letters in the order in which a database takes them, so
// that two who mark the same ones never wait for each other in a circle.
func SortDeadLetterIDs(ids []DeadLetterID) []DeadLetterID {
	return slices.SortedFunc(slices.Values(ids), func(a, b DeadLetterID) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
}

// Disposition is what was done about letters.
type Disposition struct {
	Outcome, By, Job string
	At               time.Time
}

// DispositionArgs are what HandleLetter takes.
func (id DeadLetterID) DispositionArgs(h Disposition) []any {
	return []any{id.Topic, id.Partition, id.Offset, toValidText(h.Outcome), toMicros(h.At), toValidText(h.By), h.Job}
}
