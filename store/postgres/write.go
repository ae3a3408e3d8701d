package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
)

// Write runs four constant statements for a batch of any size. Writes with outbox events need three more
// (outbox.go). Changed content with aliases needs two more, and aliases of other facets two (aliases.go).
// The first, touch, is a plain UPDATE of the table without payloads. A single INSERT … ON CONFLICT for
// everything would also rewrite the payloads of unchanged entities.
const (
	// touch stores the time of the check of unchanged content. It leaves out entities whose alias has
	// changed since their last check, except if the aliases are checked ($13). It neither reads nor
	// locks the aliases: the transaction that changes an alias writes the entity's row (markAliasUsers).
	touch = `UPDATE snapshot_state s
SET version = i.version, last_checked_at = i.checked_at, not_found = false, etag = i.etag, last_modified = i.last_modified,
	visibility = i.visibility, manual = i.manual, alias_changed = false,
	last_fetched_at = CASE WHEN i.fetched THEN i.checked_at ELSE s.last_fetched_at END
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bigint[], $8::bool[], $9::text[], $10::text[], $11::text[], $12::bool[])
	AS i (source, facet, key, version, checked_at, hash, extract_version, fetched, etag, last_modified, visibility, manual)
WHERE s.source = i.source AND s.facet = i.facet AND s.key = i.key
	AND s.hash = i.hash AND s.extract_version = i.extract_version AND s.version <= i.version
	AND (i.fetched OR s.visibility IN ('', i.visibility)) AND (NOT s.alias_changed OR $13::bool)
RETURNING s.source, s.facet, s.key`

	upsert = `WITH input AS (
	SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bigint[], $8::text[], $9::text[], $10::text[], $11::bool[], $12::text[], $13::int[], $14::text[], $15::bytea[], $16::bytea[])
		AS i (source, facet, key, version, checked_at, hash, extract_version, etag, last_modified, visibility, manual, encoding, size, media_type, payload, alias_payload)
), state AS (
	INSERT INTO snapshot_state AS s (source, facet, key, version, hash, extract_version, encoding, size, media_type,
		last_fetched_at, last_checked_at, last_updated_at, not_found, etag, last_modified, visibility, manual, alias_payload)
	SELECT source, facet, key, version, hash, extract_version, encoding, size, media_type,
		checked_at, checked_at, checked_at, false, etag, last_modified, visibility, manual, alias_payload
	FROM input
	ON CONFLICT (source, facet, key) DO UPDATE
	SET version = excluded.version, hash = excluded.hash, extract_version = excluded.extract_version,
		encoding = excluded.encoding, size = excluded.size, media_type = excluded.media_type, last_fetched_at = excluded.last_fetched_at,
		last_checked_at = excluded.last_checked_at, not_found = false, etag = excluded.etag, last_modified = excluded.last_modified,
		visibility = excluded.visibility, manual = excluded.manual, alias_changed = false,
		alias_payload = excluded.alias_payload, last_updated_at = CASE
			WHEN s.encoding <> '' AND (s.hash = excluded.hash OR s.extract_version <> excluded.extract_version) THEN s.last_updated_at
			ELSE excluded.last_checked_at END
	WHERE excluded.version >= s.version
	RETURNING s.source, s.facet, s.key, s.last_updated_at = s.last_checked_at AS changed
), payload AS (
	INSERT INTO snapshot_payload AS p (source, facet, key, payload)
	SELECT source, facet, key, payload FROM input JOIN state USING (source, facet, key)
	ON CONFLICT (source, facet, key) DO UPDATE SET payload = excluded.payload
)
SELECT source, facet, key, changed FROM state`

	// notFound stores not-found results. If the stored content has another visibility
	// (shared.ResetOtherVisibility), it also deletes the payload. It can't see a payload that another
	// transaction has committed while it waited for the lock. Such a payload stays in the table,
	// without a reference, until the entity gets new content or is deleted.
	notFound = `WITH state AS (
	INSERT INTO snapshot_state AS s (source, facet, key, version, hash, extract_version, encoding, size,
		last_fetched_at, last_checked_at, last_updated_at, not_found, etag, last_modified, visibility, manual, alias_not_found)
	SELECT source, facet, key, version, '', 0, '', 0, 0, checked_at, 0, true, '', '', visibility, manual, alias_not_found
	FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::bool[], $8::bool[])
		AS i (source, facet, key, version, checked_at, visibility, manual, alias_not_found)
	ON CONFLICT (source, facet, key) DO UPDATE
	SET version = excluded.version, last_checked_at = excluded.last_checked_at, not_found = true, manual = excluded.manual,
		alias_not_found = excluded.alias_not_found` + shared.ResetOtherVisibility + `
	WHERE excluded.version >= s.version
	RETURNING s.source, s.facet, s.key, s.encoding
), payload AS (
	DELETE FROM snapshot_payload p USING state s
	WHERE s.encoding = '' AND p.source = s.source AND p.facet = s.facet AND p.key = s.key
)
SELECT source, facet, key FROM state`

	// deleteStatuses is a separate statement and runs last, so that it sees statuses that were
	// committed while the other statements waited for locks. The statement is cheap, because the
	// table update_status has rows of failed entities only.
	deleteStatuses = `DELETE FROM update_status u
USING unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS i (source, facet, key, version)
WHERE u.source = i.source AND u.facet = i.facet AND u.key = i.key AND u.version <= i.version`
)

// Write writes the results of fetches in one transaction and returns the result of each in the
// given order. On an error nothing was written.
func (s *Store) Write(ctx context.Context, writes []store.Write) ([]store.Result, error) {
	b := shared.NewBatch(writes)
	err := pgx.BeginTxFunc(ctx, s.pool, s.beginOptions(), func(tx pgx.Tx) error {
		db := s.prepared(tx)
		clear(b.Results)
		if err := touchUnchanged(ctx, db, b, false); err != nil {
			return err
		}
		if err := checkAliases(ctx, db, b); err != nil {
			return err
		}
		before, err := lockReplaced(ctx, tx, b)
		if err != nil {
			return err
		}
		if err := upsertChanged(ctx, db, b); err != nil {
			return err
		}
		if err := writeOutboxEvents(ctx, db, b, before); err != nil {
			return err
		}
		if err := recordNotFound(ctx, db, b); err != nil {
			return err
		}
		if err := deleteEndedStatuses(ctx, db, b); err != nil {
			return err
		}
		if err := markAliasUsers(ctx, db, b); err != nil {
			return err
		}
		return wakeAliasUsers(ctx, db, b)
	})
	if err != nil {
		return nil, fmt.Errorf("write %d snapshots: %w", len(writes), classifyError(err))
	}
	return b.InOrder()
}

// classifyError wraps an error by its SQLSTATE: ErrRejected for errors in the data (22, data
// exception; 23, integrity violation), also ErrConflict for a violation of a unique index (23505), and
// ErrContention for conflicts of transactions (40001, serialisation failure; 40P01, deadlock).
func classifyError(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return err
	case pg.Code == "23505":
		return fmt.Errorf("%w: %w: %w", store.ErrConflict, store.ErrRejected, err)
	case strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23"):
		return fmt.Errorf("%w: %w", store.ErrRejected, err)
	case pg.Code == "40001" || pg.Code == "40P01":
		return fmt.Errorf("%w: %w", store.ErrContention, err)
	}
	return err
}

// columns holds the fields of writes, one slice per column, as array arguments of unnest.
type columns struct {
	entities
	versions, checked []int64
	hashes            [][]byte
	extracts          []int64
	fetched           []bool
	etags, modified   []string
	visibilities      []string
	manuals           []bool
}

func (c *columns) add(w store.Write) {
	c.entities.add(w.Entity)
	c.versions, c.checked = append(c.versions, w.Version), append(c.checked, w.CheckedAt.UnixMicro())
	c.hashes, c.extracts = append(c.hashes, w.Hash[:]), append(c.extracts, w.ExtractVersion)
	c.fetched = append(c.fetched, w.Kind == store.Content)
	c.etags, c.modified = append(c.etags, w.ETag), append(c.modified, w.LastModified)
	c.visibilities, c.manuals = append(c.visibilities, w.Visibility), append(c.manuals, w.Manual)
}

// execReturning runs a statement that returns the keys of written entities and, if withFlag is set, a
// flag per entity. It calls `result` with the flag and stores the entity's result in the batch.
func execReturning(ctx context.Context, db prepared, b *shared.Batch, result func(flag bool) store.Result, withFlag bool, sql string, args ...any) error {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	var e schemas.Entity
	var flag bool
	to := []any{&e.Source, &e.Facet, &e.Key}
	if withFlag {
		to = append(to, &flag)
	}
	_, err = pgx.ForEachRow(rows, to, func() error {
		if i, found := b.Find(e); found {
			b.Results[i] = result(flag)
		}
		return nil
	})
	return err
}

// touchUnchanged writes the times of unchanged content. The parameter `checked` says whether the aliases
// of the writes are checked (shared.Batch.MayTouch).
func touchUnchanged(ctx context.Context, db prepared, b *shared.Batch, checked bool) error {
	var c columns
	for i, w := range b.Writes {
		if b.MayTouch(i, checked) {
			c.add(w)
		}
	}
	if len(c.versions) == 0 {
		return nil
	}
	return execReturning(ctx, db, b, func(bool) store.Result { return store.Touched }, false, touch,
		c.sources, c.facets, c.keys, c.versions, c.checked, c.hashes, c.extracts, c.fetched, c.etags, c.modified, c.visibilities, c.manuals, checked)
}

// upsertChanged stores new and changed content, which touchUnchanged has not written. Payloads are
// encoded and written only here.
func upsertChanged(ctx context.Context, db prepared, b *shared.Batch) error {
	var c columns
	var encodings, mediaTypes []string
	var sizes []int
	var payloads, aliasPayloads [][]byte
	for i, w := range b.Writes {
		if w.Kind == store.KindNotFound || b.Results[i] != 0 {
			continue
		}
		if w.Kind == store.NotModified {
			b.Results[i] = store.BaseMissing
			continue
		}
		p, err := w.Payload()
		if err != nil {
			return fmt.Errorf("encode %s: %w", w.Entity, err)
		}
		c.add(w)
		encodings, sizes = append(encodings, p.Encoding), append(sizes, p.Size)
		mediaTypes, payloads = append(mediaTypes, p.MediaType), append(payloads, p.Bytes)
		aliasPayloads = append(aliasPayloads, w.AliasPayload(p))
		b.Results[i] = store.Superseded // this result remains if the statement below does not write the entity
	}
	if len(c.versions) == 0 {
		return nil
	}
	return execReturning(ctx, db, b, func(changed bool) store.Result {
		if changed {
			return store.Changed
		}
		return store.Rewritten
	}, true, upsert, c.sources, c.facets, c.keys, c.versions, c.checked, c.hashes, c.extracts, c.etags, c.modified, c.visibilities, c.manuals, encodings, sizes, mediaTypes, payloads, aliasPayloads)
}

func recordNotFound(ctx context.Context, db prepared, b *shared.Batch) error {
	var c columns
	var alias []bool
	for i, w := range b.Writes {
		if w.Kind == store.KindNotFound && b.Results[i] == 0 {
			c.add(w)
			alias = append(alias, w.AliasNotFound)
			b.Results[i] = store.Superseded // this result remains if the statement below does not write the entity
		}
	}
	if len(c.versions) == 0 {
		return nil
	}
	return execReturning(ctx, db, b, func(bool) store.Result { return store.NotFoundStored }, false, notFound,
		c.sources, c.facets, c.keys, c.versions, c.checked, c.visibilities, c.manuals, alias)
}

// deleteEndedStatuses deletes the statuses of all entities whose writes were stored.
func deleteEndedStatuses(ctx context.Context, db prepared, b *shared.Batch) error {
	var c columns
	for i, w := range b.Writes {
		if b.Results[i].Stored() {
			c.add(w)
		}
	}
	if len(c.versions) == 0 {
		return nil
	}
	return db.exec(ctx, deleteStatuses, c.sources, c.facets, c.keys, c.versions)
}
