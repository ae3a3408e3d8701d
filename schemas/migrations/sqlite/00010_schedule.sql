-- +goose Up
-- The columns are those of the PostgreSQL migration of the same number, where
-- each one is explained.
ALTER TABLE snapshot_state ADD COLUMN manual BOOLEAN NOT NULL DEFAULT false;
ALTER TABLE entities ADD COLUMN pinned BOOLEAN NOT NULL DEFAULT false;
ALTER TABLE effects ADD COLUMN quiet_facet TEXT NOT NULL DEFAULT '';
ALTER TABLE effects ADD COLUMN latest_at INTEGER NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX effects_quiet ON effects (source, facet, key, quiet_facet) WHERE quiet_facet <> '';

-- +goose Down
DROP INDEX effects_quiet;
ALTER TABLE effects DROP COLUMN latest_at;
ALTER TABLE effects DROP COLUMN quiet_facet;
ALTER TABLE entities DROP COLUMN pinned;
ALTER TABLE snapshot_state DROP COLUMN manual;
