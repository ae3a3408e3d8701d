package prefetched

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Statements for prefetched entities, shared by both databases.
const (
	// EntityColumns are the columns that ScanEntity reads.
	EntityColumns = `e.source, e.facet, e.key, e.params, e.tier, e.enabled, e.due_at,
	e.claimed_at, e.updated_at, e.changes, e.watched, e.reads, e.read_at, e.pinned`

	// InsertEntity is the start of a statement. The rows to insert follow it, with the columns of
	// RegisteredEntity.InsertArgs.
	InsertEntity = `INSERT INTO entities AS e (source, facet, key, params, tier, enabled, due_at,
	claimed_at, updated_at, changes, watched, reads, read_at, pinned)`

	// OnConflictReplace is the end of a statement that registers entities. An entity that is already
	// registered keeps its history, and keeps its tier unless the new row is pinned. Unchanged rows
	// are not written. The statement returns one row per written row.
	OnConflictReplace = ` ON CONFLICT (source, facet, key) DO UPDATE
SET params = excluded.params, tier = CASE WHEN excluded.pinned THEN excluded.tier ELSE e.tier END, pinned = excluded.pinned, enabled = excluded.enabled
WHERE (CAST(e.params AS text), e.pinned, e.enabled) <> (CAST(excluded.params AS text), excluded.pinned, excluded.enabled)
	OR (excluded.pinned AND e.tier <> excluded.tier)`

	// OnConflictCountReads is the end of a statement that counts reads. It writes no indexed column,
	// so PostgreSQL updates no index. It returns the columns of ScanCounted.
	OnConflictCountReads = ` ON CONFLICT (source, facet, key) DO UPDATE
SET reads = e.reads + excluded.reads, read_at = CASE WHEN excluded.read_at > e.read_at THEN excluded.read_at ELSE e.read_at END
RETURNING source, facet, key, tier, pinned, reads`

	// BringForward makes an entity due earlier. Arguments: source, facet, key, due time.
	BringForward = `UPDATE entities SET due_at = $4 WHERE source = $1 AND facet = $2 AND key = $3 AND due_at > $4`

	// SelectDueEntities returns the columns of ScanEntity, earliest due first. Arguments: source,
	// time, limit.
	SelectDueEntities = `SELECT ` + EntityColumns + ` FROM entities e
WHERE e.source = $1 AND e.enabled AND e.due_at <= $2
ORDER BY e.due_at LIMIT $3`

	// SelectEntitiesDueAfter returns the columns of ScanEntity of entities that are due after a
	// time, earliest first. Arguments: source, time, limit.
	SelectEntitiesDueAfter = `SELECT ` + EntityColumns + ` FROM entities e
WHERE e.source = $1 AND e.enabled AND e.due_at > $2
ORDER BY e.due_at LIMIT $3`

	// SelectNextDueEntity returns the earliest due time in microseconds, or no row. Argument:
	// source.
	SelectNextDueEntity = `SELECT due_at FROM entities
WHERE source = $1 AND enabled ORDER BY due_at LIMIT 1`

	// SetEntityEnabled enables or disables an entity. It writes one row, or none if nothing changes.
	// Arguments: source, facet, key, flag.
	SetEntityEnabled = `UPDATE entities SET enabled = $4 WHERE source = $1 AND facet = $2 AND key = $3 AND enabled <> $4`

	// PinEntity and UnpinEntity write one row, or none if nothing changes. Arguments: source, facet,
	// key; PinEntity also takes the tier.
	PinEntity   = `UPDATE entities SET tier = $4, pinned = true WHERE source = $1 AND facet = $2 AND key = $3 AND (tier <> $4 OR NOT pinned)`
	UnpinEntity = `UPDATE entities SET pinned = false WHERE source = $1 AND facet = $2 AND key = $3 AND pinned`

	// SelectPrice returns the price and its time in microseconds, or no row. Argument: source.
	SelectPrice = `SELECT price, updated_at FROM schedule_state WHERE source = $1`

	// SetPrice writes the price of a source, unless the stored price is too recent. Arguments:
	// source, price, time of the price, and the latest time at which the stored price may have been
	// set.
	SetPrice = `INSERT INTO schedule_state AS s (source, price, updated_at) VALUES ($1, $2, $3)
ON CONFLICT (source) DO UPDATE SET price = excluded.price, updated_at = excluded.updated_at
WHERE s.updated_at <= $4`
)

// ScanParams decodes the JSON of the column params.
func ScanParams(text []byte) (map[string]string, error) {
	params, err := decodeParams(text)
	if params == nil && err == nil {
		params = map[string]string{}
	}
	return params, err
}

// InsertArgs returns the values of InsertEntity's columns.
func (r RegisteredEntity) InsertArgs() ([]any, error) {
	params, err := encodeParams(r.Params)
	if err != nil {
		return nil, err
	}
	h := r.History
	return []any{
		r.Entity.Source, r.Entity.Facet, r.Entity.Key, params, int64(r.Tier), r.Enabled, store.ToMicros(r.Due),
		store.ToMicros(h.ClaimedAt), store.ToMicros(h.UpdatedAt), h.Changes, h.Watched.Microseconds(), h.Reads, store.ToMicros(h.ReadAt), r.Pinned,
	}, nil
}

// RegisteredEntity returns the entity to insert if the entity of the reads is not registered yet.
func (r EntityReads) RegisteredEntity() RegisteredEntity {
	return RegisteredEntity{
		Entity: r.Entity, Tier: r.Tier, Enabled: true, Due: r.Due,
		History: History{Reads: float64(r.Count), ReadAt: r.At},
	}
}

// CountedReads collects the entities that become due at once because of their reads.
type CountedReads struct {
	reads      map[schemas.Entity]EntityReads
	refreshNow RefreshNowFunc
	DueNow     []DueTime
}

// NewCountedReads returns a collector for the given reads; `refreshNow` may be nil.
func NewCountedReads(reads []EntityReads, refreshNow RefreshNowFunc) *CountedReads {
	r := &CountedReads{reads: make(map[schemas.Entity]EntityReads, len(reads)), refreshNow: refreshNow}
	for _, one := range reads {
		r.reads[one.Entity] = one
	}
	return r
}

// ScanCounted reads a row of OnConflictCountReads. It adds the entity to DueNow if the reads make
// the entity due at once.
func (r *CountedReads) ScanCounted(scan func(...any) error) error {
	var e RegisteredEntity
	var tier int64
	var after float64
	if err := scan(&e.Entity.Source, &e.Entity.Facet, &e.Entity.Key, &tier, &e.Pinned, &after); err != nil {
		return err
	}
	e.Tier = Tier(tier)
	if read := r.reads[e.Entity]; r.refreshNow != nil && r.refreshNow(e, after-float64(read.Count), after) {
		r.DueNow = append(r.DueNow, DueTime{read.Entity, read.At})
	}
	return nil
}

// ScanEntity reads the entity from a row.
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
	r.Tier, r.Due = Tier(tier), store.FromMicros(due)
	h.ClaimedAt, h.UpdatedAt, h.ReadAt = store.FromMicros(claimed), store.FromMicros(updated), store.FromMicros(read)
	h.Watched = time.Duration(watched) * time.Microsecond
	if r.Params, err = decodeParams(params); err != nil {
		return fmt.Errorf("decode params of %s: %w", r.Entity, err)
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

// SortRegisteredEntities returns the entities in the order in which the databases lock their rows,
// which prevents deadlocks. If an entity occurs several times, only its last occurrence is kept.
func SortRegisteredEntities(all []RegisteredEntity) []RegisteredEntity {
	return sorted(all, func(r RegisteredEntity) schemas.Entity { return r.Entity }, func(_, later RegisteredEntity) RegisteredEntity { return later })
}

// SortReads returns the reads in the order of SortRegisteredEntities. If an entity occurs several
// times, it adds up the reads.
func SortReads(all []EntityReads) []EntityReads {
	return sorted(all, func(r EntityReads) schemas.Entity { return r.Entity }, func(a, b EntityReads) EntityReads {
		a.Count += b.Count
		if b.At.After(a.At) {
			a.At = b.At
		}
		return a
	})
}

// SortDueTimes returns the due times in the order of their entities.
func SortDueTimes(all []DueTime) []DueTime {
	return slices.SortedFunc(slices.Values(all), func(a, b DueTime) int { return schemas.Entity.Compare(a.Entity, b.Entity) })
}

// SortEntities returns the entities in the order of source, facet and key, without duplicates.
func SortEntities(all []schemas.Entity) []schemas.Entity {
	return slices.Compact(slices.SortedFunc(slices.Values(all), schemas.Entity.Compare))
}

func sorted[T any](all []T, entityOf func(T) schemas.Entity, merge func(a, b T) T) []T {
	all = slices.SortedStableFunc(slices.Values(all), func(a, b T) int { return schemas.Entity.Compare(entityOf(a), entityOf(b)) })
	kept := all[:0]
	for _, x := range all {
		if n := len(kept); n > 0 && entityOf(kept[n-1]) == entityOf(x) {
			kept[n-1] = merge(kept[n-1], x)
			continue
		}
		kept = append(kept, x)
	}
	return kept
}

// where returns the filter as an SQL condition, and its arguments.
func (f Filter) where() (string, []any) {
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
		if end := store.AfterPrefix(f.KeyPrefix); end != "" {
			add("e.key < $%d", end)
		}
	}
	return strings.Join(conditions, " AND "), args
}

// SelectEntities returns the statement, and its arguments, that lists matching entities in the
// order of source, facet and key, with the columns of ScanEntity. The list starts after the given
// entity.
func (f Filter) SelectEntities(after schemas.Entity, limit int) (string, []any) {
	where, args := f.where()
	n := len(args)
	if f.Source != "" && f.Facet != "" && after.Source == f.Source && after.Facet == f.Facet {
		// With a comparison of rows, PostgreSQL would begin at the first key of the prefix and
		// filter the rows up to the key after which the list starts.
		return fmt.Sprintf(`SELECT `+EntityColumns+` FROM entities e
WHERE e.key > $%d AND `+where+`
ORDER BY e.key LIMIT $%d`, n+1, n+2), append(args, after.Key, limit)
	}
	return fmt.Sprintf(`SELECT `+EntityColumns+` FROM entities e
WHERE (e.source, e.facet, e.key) > ($%d, $%d, $%d) AND `+where+`
ORDER BY e.source, e.facet, e.key LIMIT $%d`, n+1, n+2, n+3, n+4),
		append(args, after.Source, after.Facet, after.Key, limit)
}

// FromWhere returns the FROM and WHERE clauses of the filter, and their arguments.
func (f Filter) FromWhere() (string, []any) {
	where, args := f.where()
	return ` FROM entities e WHERE ` + where, args
}

// SetEnabled enables or disables entities in batches, and returns how many it changed. If keys is
// not nil, it changes the entities with these keys of the filter's source and facet; otherwise all
// entities that match the filter. The function "list" reads a page of entities; the function
// "flag" writes the new value for entities and returns how many rows it changed.
func (f Filter) SetEnabled(keys []string, enabled bool, batch int,
	list func(f Filter, after schemas.Entity, limit int) ([]RegisteredEntity, error),
	flag func(targets []schemas.Entity) (int, error),
) (int, error) {
	if keys != nil {
		if f.Source == "" || f.Facet == "" {
			return 0, errors.New("keys need a source and a facet in the filter")
		}
		targets := make([]schemas.Entity, len(keys))
		for i, key := range keys {
			targets[i] = schemas.Entity{Source: f.Source, Facet: f.Facet, Key: key}
		}
		return flag(targets)
	}
	other := !enabled
	if f.Enabled != nil && *f.Enabled == enabled {
		return 0, nil
	}
	f.Enabled = &other
	changed, after := 0, schemas.Entity{}
	for {
		page, err := list(f, after, batch)
		if err != nil || len(page) == 0 {
			return changed, err
		}
		targets := make([]schemas.Entity, len(page))
		for i, r := range page {
			targets[i] = r.Entity
		}
		n, err := flag(targets)
		changed += n
		if err != nil {
			return changed, err
		}
		after = targets[len(targets)-1]
	}
}
