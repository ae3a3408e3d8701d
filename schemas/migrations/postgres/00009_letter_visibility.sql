-- +goose Up
-- Whatever reads or writes the table waits behind who waits for it.
SET LOCAL lock_timeout = '10s';

-- The visibility within which the answer of a dead letter was fetched; empty: every reader's.
-- The console lists and counts a dead letter only for clients that may see it.
ALTER TABLE dead_letters ADD COLUMN visibility text NOT NULL DEFAULT '';

-- +goose Down
SET LOCAL lock_timeout = '10s';
-- Dead letters of limited content must not become public with the column. They stay on their
-- topic.
DELETE FROM dead_letters WHERE visibility <> '';
ALTER TABLE dead_letters DROP COLUMN visibility;
