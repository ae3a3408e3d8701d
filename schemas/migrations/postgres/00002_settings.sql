-- +goose Up
-- What was changed of a source's quota while it runs; a source without a row is
-- as it is configured. Every worker reads its row about once a second.
CREATE TABLE settings (
    source     text COLLATE "C" NOT NULL PRIMARY KEY,
    value      json   NOT NULL, -- the change as a whole, an Override of package limiter
    revision   bigint NOT NULL CHECK (revision > 0), -- rises by one with each change; a row is never deleted
    changed_at bigint NOT NULL, -- microseconds since 1970 UTC
    changed_by text   NOT NULL
);

-- Who changed what. Rows are added in the transaction of the change.
CREATE TABLE audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- rises, with gaps
    at     bigint NOT NULL, -- microseconds since 1970 UTC
    actor  text   NOT NULL,
    action text   NOT NULL, -- set, stop, resume
    source text   NOT NULL,
    before json   NOT NULL, -- the value of the settings before and after
    after  json   NOT NULL,
    note   text   NOT NULL  -- why, in the actor's words; empty for none
);

-- How many calls of a calendar day were given out, for when Redis has forgotten.
CREATE TABLE quota_usage (
    source     text COLLATE "C" NOT NULL,
    policy     text COLLATE "C" NOT NULL,
    day_end    bigint NOT NULL, -- the midnight at which the day ends; microseconds since 1970 UTC
    calls      bigint NOT NULL,
    counted_at bigint NOT NULL, -- when that was so, by Redis' clock; microseconds since 1970 UTC
    PRIMARY KEY (source, policy)
) WITH (fillfactor = 70);

-- +goose Down
DROP TABLE quota_usage;
DROP TABLE audit;
DROP TABLE settings;
