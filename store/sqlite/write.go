package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
)

// These statements correspond to the statements of store/postgres, but each writes one row.
const (
	touch = `UPDATE snapshot_state
SET version = $4, last_checked_at = $5, not_found = false, etag = $8, last_modified = $9, visibility = $10, manual = $11,
	alias_changed = false, last_fetched_at = CASE WHEN $12 THEN $5 ELSE last_fetched_at END
WHERE source = $1 AND facet = $2 AND key = $3 AND hash = $6 AND extract_version = $7 AND version <= $4
	AND ($12 OR visibility IN ('', $10)) AND (NOT alias_changed OR $13)
RETURNING true`

	upsert = `INSERT INTO snapshot_state AS s (source, facet, key, version, hash, extract_version, encoding, size, media_type,
	last_fetched_at, last_checked_at, last_updated_at, not_found, etag, last_modified, visibility, manual, alias_payload)
VALUES ($1, $2, $3, $4, $6, $7, $12, $13, $14, $5, $5, $5, false, $8, $9, $10, $11, $15)
ON CONFLICT (source, facet, key) DO UPDATE
SET version = excluded.version, hash = excluded.hash, extract_version = excluded.extract_version,
	encoding = excluded.encoding, size = excluded.size, media_type = excluded.media_type, last_fetched_at = excluded.last_fetched_at,
	last_checked_at = excluded.last_checked_at, not_found = false, etag = excluded.etag, last_modified = excluded.last_modified,
	visibility = excluded.visibility, manual = excluded.manual, alias_changed = false,
	alias_payload = excluded.alias_payload, last_updated_at = CASE
		WHEN s.encoding <> '' AND (s.hash = excluded.hash OR s.extract_version <> excluded.extract_version) THEN s.last_updated_at
		ELSE excluded.last_checked_at END
WHERE excluded.version >= s.version
RETURNING last_updated_at = last_checked_at`

	payload = `INSERT INTO snapshot_payload (source, facet, key, payload) VALUES ($1, $2, $3, $4)
ON CONFLICT (source, facet, key) DO UPDATE SET payload = excluded.payload`

	deletePayload = `DELETE FROM snapshot_payload WHERE source = $1 AND facet = $2 AND key = $3`

	notFound = `INSERT INTO snapshot_state AS s (source, facet, key, version, hash, extract_version, encoding, size,
	last_fetched_at, last_checked_at, last_updated_at, not_found, etag, last_modified, visibility, manual, alias_not_found)
VALUES ($1, $2, $3, $4, x'', 0, '', 0, 0, $5, 0, true, '', '', $6, $7, $8)
ON CONFLICT (source, facet, key) DO UPDATE
SET version = excluded.version, last_checked_at = excluded.last_checked_at, not_found = true, manual = excluded.manual,
	alias_not_found = excluded.alias_not_found` + shared.ResetOtherVisibility + `
WHERE excluded.version >= s.version
RETURNING encoding = ''`

	markUser = `UPDATE snapshot_state SET alias_changed = true WHERE source = $1 AND facet = $2 AND key = $3 AND NOT alias_changed`

	// wakeAliasUser makes the retry of an entity due that waits for its alias.
	wakeAliasUser = `UPDATE update_status SET next_retry_at = $4
WHERE source = $1 AND facet = $2 AND key = $3 AND reason = '` + schemas.HoldAlias + `' AND next_retry_at > $4`

	deleteStatus = `DELETE FROM update_status WHERE source = $1 AND facet = $2 AND key = $3 AND version <= $4`
)

// Write writes the results of fetches in one transaction and returns the result of each in the
// given order. On an error nothing was written.
func (s *Store) Write(ctx context.Context, writes []store.Write) ([]store.Result, error) {
	b := shared.NewBatch(writes)
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		clear(b.Results)
		if err := touchUnchanged(ctx, tx, b, false); err != nil {
			return err
		}
		if aliases := b.Aliases(); len(aliases) > 0 {
			states, err := readStates(ctx, tx, aliases)
			if err != nil {
				return err
			}
			b.CheckAliases(states)
			if err := touchUnchanged(ctx, tx, b, true); err != nil {
				return err
			}
		}
		for i, w := range b.Writes {
			if b.Results[i] == 0 {
				var err error
				if b.Results[i], err = write(ctx, tx, w); err != nil {
					return fmt.Errorf("write %s: %w", w.Entity, err)
				}
			}
			if !b.Results[i].Stored() {
				continue
			}
			if _, err := tx.ExecContext(ctx, deleteStatus, w.Entity.Source, w.Entity.Facet, w.Entity.Key, w.Version); err != nil {
				return fmt.Errorf("write %s: %w", w.Entity, err)
			}
			if err := wakeAliasUsers(ctx, tx, w.Entity, w.AliasUsers, w.CheckedAt); err != nil {
				return err
			}
		}
		for _, e := range b.ChangedAliasUsers() {
			if _, err := tx.ExecContext(ctx, markUser, e.Source, e.Facet, e.Key); err != nil {
				return fmt.Errorf("mark %s, whose alias has changed: %w", e, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b.InOrder()
}

// wakeAliasUsers makes the retries of the facets due at once that wait for this entity.
func wakeAliasUsers(ctx context.Context, tx *sql.Tx, e schemas.Entity, facets []string, now time.Time) error {
	for _, facet := range facets {
		if _, err := tx.ExecContext(ctx, wakeAliasUser, e.Source, facet, e.Key, now.UnixMicro()); err != nil {
			return fmt.Errorf("make the retry of facet %s of %s due: %w", facet, e, err)
		}
	}
	return nil
}

// touchUnchanged writes the times of unchanged content. The parameter `checked` says whether the aliases
// of the writes are checked (shared.Batch.MayTouch).
func touchUnchanged(ctx context.Context, tx *sql.Tx, b *shared.Batch, checked bool) error {
	for i, w := range b.Writes {
		if !b.MayTouch(i, checked) {
			continue
		}
		touched, _, err := queryReturning(ctx, tx, touch, append(contentArgs(w), w.Kind == store.Content, checked)...)
		if err != nil {
			return fmt.Errorf("write %s: %w", w.Entity, err)
		}
		if touched {
			b.Results[i] = store.Touched
		}
	}
	return nil
}

// contentArgs returns the first arguments of touch and upsert.
func contentArgs(w store.Write) []any {
	return append(entityArgs(w), w.Hash[:], w.ExtractVersion, w.ETag, w.LastModified, w.Visibility, w.Manual)
}

// entityArgs returns the first arguments of each statement that writes a result.
func entityArgs(w store.Write) []any {
	return []any{w.Entity.Source, w.Entity.Facet, w.Entity.Key, w.Version, w.CheckedAt.UnixMicro()}
}

// write writes a result that is not the check of unchanged content.
func write(ctx context.Context, tx *sql.Tx, w store.Write) (store.Result, error) {
	e := entityArgs(w)
	if w.Kind == store.KindNotFound {
		recorded, empty, err := queryReturning(ctx, tx, notFound, append(e, w.Visibility, w.Manual, w.AliasNotFound)...)
		if err != nil || !recorded {
			return store.Superseded, err
		}
		if empty {
			_, err = tx.ExecContext(ctx, deletePayload, e[:3]...)
		}
		return store.NotFoundStored, err
	}
	if w.Kind == store.NotModified {
		return store.BaseMissing, nil
	}
	var before store.Hash
	var err error
	if !w.Outbox.Empty() {
		if before, err = readReplaced(ctx, tx, w); err != nil {
			return 0, err
		}
	}
	p, err := w.Payload()
	if err != nil {
		return 0, err
	}
	accepted, changed, err := queryReturning(ctx, tx, upsert, append(contentArgs(w), p.Encoding, p.Size, p.MediaType, w.AliasPayload(p))...)
	if err != nil || !accepted {
		return store.Superseded, err
	}
	if _, err := tx.ExecContext(ctx, payload, w.Entity.Source, w.Entity.Facet, w.Entity.Key, p.Bytes); err != nil {
		return 0, err
	}
	if !changed {
		return store.Rewritten, nil
	}
	if !w.Outbox.Empty() {
		err = writeOutboxEvents(ctx, tx, w, before)
	}
	return store.Changed, err
}

// queryReturning runs a statement. It reports whether the statement returned a row, and returns
// the flag in that row.
func queryReturning(ctx context.Context, tx *sql.Tx, statement string, args ...any) (returned, flag bool, err error) {
	err = tx.QueryRowContext(ctx, statement, args...).Scan(&flag)
	if errors.Is(err, sql.ErrNoRows) {
		return false, false, nil
	}
	return err == nil, flag, err
}
