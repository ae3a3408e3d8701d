-- +goose Up
-- Within which visibility a snapshot was fetched: who may see it; empty: every reader. A
-- process of a release before this one names the column nowhere. What it writes over a row
-- leaves the visibility as it stands, so that nothing limited becomes public by it: what it
-- fetched stays limited until a process of this release fetches it. A row that it inserts
-- is public, which is true, for it knows no credential of a limited visibility; if the
-- configuration limits the key by now, readers go by that too. But it also serves whatever
-- it reads: give a credential a visibility only when no process of an older release serves
-- reads any more (one that starts refuses such a configuration).
ALTER TABLE snapshot_state ADD COLUMN visibility text NOT NULL DEFAULT '';

-- +goose Down
-- What is limited must not become public with the column: it is fetched again.
DELETE FROM snapshot_payload p USING snapshot_state s
WHERE s.visibility <> '' AND p.source = s.source AND p.facet = s.facet AND p.key = s.key;
DELETE FROM snapshot_state WHERE visibility <> '';
ALTER TABLE snapshot_state DROP COLUMN visibility;
