package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/freshet/freshet/schemas"
)

// The queries about entities that are prefetched, the same in every database.
const (
	// EntityColumns are those that ScanEntity takes.
	EntityColumns = `e.source, e.facet, e.key, e.params, e.tier, e.enabled, e.due_at,
	e.claimed_at, e.updated_at, e.changes, e.watched, e.reads, e.read_at, e.pinned`

	// InsertEntity begins a statement that goes on with rows of InsertArgs.
	InsertEntity = `INSERT INTO entities AS e (source, facet, key, params, tier, enabled, due_at,
	claimed_at, updated_at, changes, watched, reads, read_at, pinned)`

	// OnConflictReplace ends a statement that registers: of an entity that is registered already its
	// history remains, and its tier too unless a pinned one replaces it. A row that says the
	// same is not written. It returns a row for each that was written.
	OnConflictReplace = ` ON CONFLICT (source, facet, key) DO UPDATE
SET params = excluded.params, tier = CASE WHEN excluded.pinned THEN excluded.tier ELSE e.tier END, pinned = excluded.pinned, enabled = excluded.enabled
WHERE (CAST(e.params AS text), e.pinned, e.enabled) <> (CAST(excluded.params AS text), excluded.pinned, excluded.enabled)
	OR (excluded.pinned AND e.tier <> excluded.tier)`

	// OnConflictCountReads ends a statement that counts reads. It writes no column of an index, and
	// returns what ScanCounted takes.
	OnConflictCountReads = ` ON CONFLICT (source, facet, key) DO UPDATE
SET reads = e.reads + excluded.reads, read_at = CASE WHEN excluded.read_at > e.read_at THEN excluded.read_at ELSE e.read_at END
RETURNING source, facet, key, tier, pinned, reads`

	// BringForward takes source, facet, key and the time.
	BringForward = `UPDATE entities SET due_at = $4 WHERE source = $1 AND facet = $2 AND key = $3 AND due_at > $4`

	// SelectDueEntities takes the source, the time and the greatest number of rows.
	SelectDueEntities = `SELECT ` + EntityColumns + ` FROM entities e
WHERE e.source = $1 AND e.enabled AND e.due_at <= $2
ORDER BY e.due_at LIMIT $3`

	// SelectEntitiesDueAfter takes the source, a time and the greatest number of rows.
	SelectEntitiesDueAfter = `SELECT ` + EntityColumns + ` FROM entities e
WHERE e.source = $1 AND e.enabled AND e.due_at > $2
ORDER BY e.due_at LIMIT $3`

	// SelectNextDueEntity takes the source and returns microseconds, or no row.
	SelectNextDueEntity = `SELECT due_at FROM entities
WHERE source = $1 AND enabled ORDER BY due_at LIMIT 1`

	// SetEntityEnabled takes source, facet, key and the flag, and writes a row or none.
	SetEntityEnabled = `UPDATE entities SET enabled = $4 WHERE source = $1 AND facet = $2 AND key = $3 AND enabled <> $4`

	// PinEntity takes source, facet, key and the tier, UnpinEntity source, facet and key. Each
	// writes a row or none.
	PinEntity   = `UPDATE entities SET tier = $4, pinned = true WHERE source = $1 AND facet = $2 AND key = $3 AND (tier <> $4 OR NOT pinned)`
	UnpinEntity = `UPDATE entities SET pinned = false WHERE source = $1 AND facet = $2 AND key = $3 AND pinned`

	// DeleteEntity takes source, facet and key.
	DeleteEntity = `DELETE FROM entities WHERE source = $1 AND facet = $2 AND key = $3`

	// SelectPrice takes the source and returns the price and microseconds, or no row.
	SelectPrice = `SELECT price, updated_at FROM schedule_state WHERE source = $1`

	// SetPrice takes source, price, the time, and before which time the stored one must
	// have been written. It writes a row or none.
	SetPrice = `INSERT INTO schedule_state AS s (source, price, updated_at) VALUES ($1, $2, $3)
ON CONFLICT (source) DO UPDATE SET price = excluded.price, updated_at = excluded.updated_at
WHERE s.updated_at <= $4`
)

// ScanParams reads params from text as they are kept.
func ScanParams(text []byte) (map[string]string, error) { return decodeParams(text) }

// InsertArgs are the values of InsertEntity's columns.
func (r RegisteredEntity) InsertArgs() ([]any, error) {
	params, err := encodeParams(r.Params)
	if err != nil {
		return nil, err
	}
	h := r.History
	return []any{
		r.Entity.Source, r.Entity.Facet, r.Entity.Key, params, int64(r.Tier), r.Enabled, toMicros(r.Due),
		toMicros(h.ClaimedAt), toMicros(h.UpdatedAt), h.Changes, h.Watched.Microseconds(), h.Reads, toMicros(h.ReadAt), r.Pinned,
	}, nil
}

// RegisteredEntity is what an entity becomes that was read and is not registered.
func (r EntityReads) RegisteredEntity() RegisteredEntity {
	return RegisteredEntity{
		Entity: r.Entity, Tier: r.Tier, Enabled: true, Due: r.Due,
		History: History{Reads: float64(r.Count), ReadAt: r.At},
	}
}

// CountedReads are entities whose reads are a reason to look at them at once: they become due when
// they were read.
type CountedReads struct {
	reads      map[schemas.Entity]EntityReads
	refreshNow RefreshNowFunc
	RefreshNow []DueTime
}

// NewCountedReads returns none of what is about to be counted; risen may be nil.
func NewCountedReads(reads []EntityReads, risen RefreshNowFunc) *CountedReads {
	r := &CountedReads{reads: make(map[schemas.Entity]EntityReads, len(reads)), refreshNow: risen}
	for _, one := range reads {
		r.reads[one.Entity] = one
	}
	return r
}

// ScanCounted adds the entity of a row of OnConflictCountReads, which is read by scan, if it has risen.
func (r *CountedReads) ScanCounted(scan func(...any) error) error {
	var of RegisteredEntity
	var tier int64
	var after float64
	if err := scan(&of.Entity.Source, &of.Entity.Facet, &of.Entity.Key, &tier, &of.Pinned, &after); err != nil {
		return err
	}
	of.Tier = Tier(tier)
	if one := r.reads[of.Entity]; r.refreshNow != nil && r.refreshNow(of, after-float64(one.Count), after) {
		r.RefreshNow = append(r.RefreshNow, DueTime{one.Entity, one.At})
	}
	return nil
}

// ScanEntity fills the entity by scan, which is a row's Scan.
func (r *RegisteredEntity) ScanEntity(scan func(...any) error) error {
	var params []byte
	var tier, due, claimed, updated, watched, read int64
	h := &r.History
	err := scan(
		&r.Entity.Source, &r.Entity.Facet, &r.Entity.Key, &params, &tier, &r.Enabled, &due,
		&claimed, &updated, &h.Changes, &watched, &h.Reads, &read, &r.Pinned)
	if err != nil {
		return err
	}
	r.Tier, r.Due = Tier(tier), fromMicros(due)
	h.ClaimedAt, h.UpdatedAt, h.ReadAt = fromMicros(claimed), fromMicros(updated), fromMicros(read)
	h.Watched = time.Duration(watched) * time.Microsecond
	if r.Params, err = decodeParams(params); err != nil {
		return fmt.Errorf("params of %s: %w", r.Entity, err)
	}
	return nil
}

func encodeParams(params map[string]string) (string, error) {
	if len(params) == 0 {
		return "{}", nil
	}
	text, err := json.Marshal(params)
	return string(text), err
}

func decodeParams(text []byte) (params map[string]string, err error) {
	if string(text) != "{}" {
		err = json.Unmarshal(text, &params)
	}
	return params, err
}

// SortRegisteredEntities returns the entities in the order in which a database takes them, so
// that two who write the same ones never wait for each other in a circle. Of several
// for one entity the last is taken.
func SortRegisteredEntities(all []RegisteredEntity) []RegisteredEntity {
	return sorted(all, func(r RegisteredEntity) schemas.Entity { return r.Entity }, func(_, later RegisteredEntity) RegisteredEntity { return later })
}

// SortReads does the same for reads; those of one entity are added up.
func SortReads(all []EntityReads) []EntityReads {
	return sorted(all, func(r EntityReads) schemas.Entity { return r.Entity }, func(a, b EntityReads) EntityReads {
		a.Count += b.Count
		if b.At.After(a.At) {
			a.At = b.At
		}
		return a
	})
}

// SortDueTimes returns the due times in the order in which a database takes their entities.
func SortDueTimes(all []DueTime) []DueTime {
	return slices.SortedFunc(slices.Values(all), func(a, b DueTime) int { return compareEntities(a.Entity, b.Entity) })
}

// SortEntities returns the entities in the order in which a database takes them, each
// once.
func SortEntities(all []schemas.Entity) []schemas.Entity {
	return slices.Compact(slices.SortedFunc(slices.Values(all), compareEntities))
}

func sorted[T any](all []T, of func(T) schemas.Entity, merge func(a, b T) T) []T {
	all = slices.SortedStableFunc(slices.Values(all), func(a, b T) int { return compareEntities(of(a), of(b)) })
	kept := all[:0]
	for _, x := range all {
		if n := len(kept); n > 0 && of(kept[n-1]) == of(x) {
			kept[n-1] = merge(kept[n-1], x)
			continue
		}
		kept = append(kept, x)
	}
	return kept
}

// where returns the filter as a condition, and its arguments.
func (f EntityFilter) where() (string, []any) {
	conditions, args := []string{"true"}, []any{}
	add := func(condition string, arg any) {
		args = append(args, arg)
		conditions = append(conditions, fmt.Sprintf(condition, len(args)))
	}
	if f.Source != "" {
		add("e.source = $%d", f.Source)
	}
	if f.Facet != "" {
		add("e.facet = $%d", f.Facet)
	}
	if f.Tier != nil {
		add("e.tier = $%d", int64(*f.Tier))
	}
	if f.Enabled != nil {
		add("e.enabled = $%d", *f.Enabled)
	}
	if f.KeyPrefix != "" {
		add("e.key >= $%d", f.KeyPrefix)
		if end := afterPrefix(f.KeyPrefix); end != "" {
			add("e.key < $%d", end)
		}
	}
	return strings.Join(conditions, " AND "), args
}

// afterPrefix returns the first text behind all that begin with the prefix, in the
// order of their bytes, which is that of their runes; empty if there is none.
func afterPrefix(prefix string) string {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch last {
		case utf8.MaxRune:
			continue
		case 0xD7FF: // halves of surrogate pairs follow, which no text holds
			last = 0xDFFF
		}
		return prefix + string(last+1)
	}
	return ""
}

// SelectEntities returns the statement that lists what the filter chooses behind an
// entity, in the order of entities, and its arguments. It returns what ScanEntity
// takes.
func (f EntityFilter) SelectEntities(after schemas.Entity, limit int) (string, []any) {
	where, args := f.where()
	n := len(args)
	return fmt.Sprintf(`SELECT `+EntityColumns+` FROM entities e
WHERE (e.source, e.facet, e.key) > ($%d, $%d, $%d) AND `+where+`
ORDER BY e.source, e.facet, e.key LIMIT $%d`, n+1, n+2, n+3, n+4),
		append(args, after.Source, after.Facet, after.Key, limit)
}

// FromWhere returns the rows that the filter chooses as the end of a statement, and its
// arguments.
func (f EntityFilter) FromWhere() (string, []any) {
	where, args := f.where()
	return ` FROM entities e WHERE ` + where, args
}

// SetEnabled enables or disables what the filter chooses, a batch at a time, and returns how
// many were not so already: with keys those of its source and facet alone. list lists
// entities, and flag writes the flags and returns how many it wrote.
func (f EntityFilter) SetEnabled(keys []string, enabled bool, batch int,
	list func(f EntityFilter, after schemas.Entity, limit int) ([]RegisteredEntity, error),
	flag func(of []schemas.Entity) (int, error),
) (int, error) {
	if keys != nil {
		if f.Source == "" || f.Facet == "" {
			return 0, errors.New("keys are those of a source and a facet, which must be named")
		}
		of := make([]schemas.Entity, len(keys))
		for i, key := range keys {
			of[i] = schemas.Entity{Source: f.Source, Facet: f.Facet, Key: key}
		}
		return flag(of)
	}
	other := !enabled
	if f.Enabled != nil && *f.Enabled == enabled {
		return 0, nil
	}
	f.Enabled = &other
	switched, after := 0, schemas.Entity{}
	for {
		page, err := list(f, after, batch)
		if err != nil || len(page) == 0 {
			return switched, err
		}
		of := make([]schemas.Entity, len(page))
		for i, r := range page {
			of[i] = r.Entity
		}
		n, err := flag(of)
		switched += n
		if err != nil {
			return switched, err
		}
		after = of[len(of)-1]
	}
}
