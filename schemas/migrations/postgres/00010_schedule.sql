-- +goose Up
-- A statement of an older release that runs while this waits for a lock waits behind it.
SET LOCAL lock_timeout = '10s';

-- True: the last check was made for a reader or a person, and not by the schedule itself.
-- It decides which cool-down holds.
ALTER TABLE snapshot_state ADD COLUMN manual boolean NOT NULL DEFAULT false;

-- True: the tier was set by a person, and reads don't move the entity out of it.
ALTER TABLE entities ADD COLUMN pinned boolean NOT NULL DEFAULT false;

-- A trigger that waits until changes pause has an effect of its own, one for each changed
-- entity and facet to refresh: each further change moves its due time, up to latest_at.
ALTER TABLE effects ADD COLUMN quiet_facet text COLLATE "C" NOT NULL DEFAULT ''; -- the facet to refresh; empty: nothing waits
ALTER TABLE effects ADD COLUMN latest_at bigint NOT NULL DEFAULT 0; -- microseconds since 1970 UTC
CREATE UNIQUE INDEX effects_quiet ON effects (source, facet, key, quiet_facet) WHERE quiet_facet <> '';

-- +goose Down
SET LOCAL lock_timeout = '10s';
DROP INDEX effects_quiet;
ALTER TABLE effects DROP COLUMN latest_at, DROP COLUMN quiet_facet;
ALTER TABLE entities DROP COLUMN pinned;
ALTER TABLE snapshot_state DROP COLUMN manual;
