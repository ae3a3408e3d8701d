package postgres

import (
	"context"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
)

const (
	// lockAliases reads the states of aliases, and locks them until the transaction ends. So an alias
	// cannot change between this check and the commit.
	lockAliases = `SELECT i.n, ` + shared.StateColumns + `
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS i (source, facet, key, n)
CROSS JOIN LATERAL (SELECT * FROM snapshot_state s WHERE s.source = i.source AND s.facet = i.facet AND s.key = i.key LIMIT 1 FOR SHARE) s`

	// markUsers marks the stored entities of changed aliases. The upsert of the alias locks its row first,
	// so a transaction that has checked the alias (lockAliases) has written the entity's row before.
	markUsers = `UPDATE snapshot_state s SET alias_changed = true
FROM unnest($1::text[], $2::text[], $3::text[]) AS i (source, facet, key)
WHERE s.source = i.source AND s.facet = i.facet AND s.key = i.key AND NOT s.alias_changed`

	// wakeAliases makes retries due that wait for their alias. It runs last, so that it sees retries
	// that were committed while the other statements waited for locks (store.Status.Aliases). A condition
	// for the state would let the planner read the index of all due retries.
	wakeAliases = `UPDATE update_status u SET next_retry_at = i.at
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS i (source, facet, key, at)
WHERE u.source = i.source AND u.facet = i.facet AND u.key = i.key AND u.reason = '` + schemas.HoldAlias + `' AND u.next_retry_at > i.at`
)

// checkAliases reads and locks the aliases of the writes that have no result yet. If an alias has
// changed, the result of its write becomes BaseMissing. Then it touches the rows that touchUnchanged has
// left out because of an earlier change of their alias.
func checkAliases(ctx context.Context, db prepared, b *shared.Batch) error {
	aliases := b.Aliases()
	if len(aliases) == 0 {
		return nil
	}
	states := make([]store.State, len(aliases))
	err := forEachEntity(ctx, readFrom(db), lockAliases, aliases, func(found *store.State, scan func(...any) error) error {
		return shared.ScanState(found, scan)
	}, func(i int, found store.State) {
		found.Entity = aliases[i]
		states[i] = found
	})
	if err != nil {
		return err
	}
	b.CheckAliases(states)
	return touchUnchanged(ctx, db, b, true)
}

// markAliasUsers marks the entities whose alias the batch has changed, so that a fetch with the earlier
// alias does not touch them.
func markAliasUsers(ctx context.Context, db prepared, b *shared.Batch) error {
	var c entities
	for _, e := range b.ChangedAliasUsers() {
		c.add(e)
	}
	if len(c.keys) == 0 {
		return nil
	}
	return db.exec(ctx, markUsers, c.sources, c.facets, c.keys)
}

// aliasUsers holds the entities to wake and the time at which they become due, as arguments of
// wakeAliases.
type aliasUsers struct {
	entities
	due []int64
}

func (c *aliasUsers) add(e schemas.Entity, facets []string, due int64) {
	for _, facet := range facets {
		c.entities.add(schemas.Entity{Source: e.Source, Facet: facet, Key: e.Key})
		c.due = append(c.due, due)
	}
}

// wakeAliasUsers makes the retries due that wait for an entity of the batch.
func wakeAliasUsers(ctx context.Context, db prepared, b *shared.Batch) error {
	var c aliasUsers
	for i, w := range b.Writes {
		if b.Results[i].Stored() {
			c.add(w.Entity, w.AliasUsers, w.CheckedAt.UnixMicro())
		}
	}
	if len(c.due) == 0 {
		return nil
	}
	return db.exec(ctx, wakeAliases, c.sources, c.facets, c.keys, c.due)
}
