-- +goose Up
-- The PostgreSQL migration of the same number explains it.
ALTER TABLE snapshot_state ADD COLUMN visibility TEXT NOT NULL DEFAULT '';

-- +goose Down
DELETE FROM snapshot_payload WHERE (source, facet, key) IN (SELECT source, facet, key FROM snapshot_state WHERE visibility <> '');
DELETE FROM snapshot_state WHERE visibility <> '';
ALTER TABLE snapshot_state DROP COLUMN visibility;
