-- +goose Up
-- The PostgreSQL migration of the same number explains it.
ALTER TABLE dead_letters ADD COLUMN visibility TEXT NOT NULL DEFAULT '';

-- +goose Down
DELETE FROM dead_letters WHERE visibility <> '';
ALTER TABLE dead_letters DROP COLUMN visibility;
