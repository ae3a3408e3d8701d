-- +goose Up
-- Entities that are prefetched, and when each is due. The due time is indexed, so it
-- lies here and not in the state that every check writes; an update that leaves it
-- alone (reads, tier, history) stays on its page (HOT), for which a fifth of each page
-- is kept free. Each claim leaves a dead entry at the front of the index, where the next
-- one begins: vacuum comes after a number of rows, not after a share of the table. One
-- table, not partitions: claims are made by one index in its order.
CREATE TABLE entities (
    source     text COLLATE "C" NOT NULL,
    facet      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    params     json     NOT NULL, -- where they differ from the facet's
    tier       smallint NOT NULL, -- 0 hot, 1 warm, 2 cold
    enabled    boolean  NOT NULL, -- by a person
    due_at     bigint   NOT NULL, -- microseconds since 1970 UTC, as all times
    claimed_at bigint   NOT NULL, -- when it was due last; 0: never, as for those below
    updated_at bigint   NOT NULL, -- when its snapshot had changed last, by then
    changes    double precision NOT NULL, -- seen within the time watched, the past counting less and less
    watched    bigint   NOT NULL, -- microseconds
    reads      double precision NOT NULL, -- made until read_at
    read_at    bigint   NOT NULL,
    PRIMARY KEY (source, facet, key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100000,
    autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX entities_due ON entities (source, due_at) WHERE enabled;

-- What schedulers have claimed and not yet asked for, a batch a row. Each row is gone
-- within seconds; one that stays longer than its time is taken over.
CREATE TABLE schedule_claims (
    id         text COLLATE "C" NOT NULL PRIMARY KEY, -- the holder's; another one after a takeover
    source     text COLLATE "C" NOT NULL,
    claimed_at bigint NOT NULL,
    until      bigint NOT NULL,
    entries    json   NOT NULL  -- facet, key, params and version of each
);

CREATE INDEX schedule_claims_until ON schedule_claims (source, until);

-- What the schedulers of a source share: the price that a call is worth at the moment.
CREATE TABLE schedule_state (
    source     text COLLATE "C" NOT NULL PRIMARY KEY,
    price      double precision NOT NULL,
    updated_at bigint NOT NULL
) WITH (fillfactor = 70);

-- How far the walk along the keys has come that finds snapshots kept too long.
CREATE TABLE retention_walks (
    source    text COLLATE "C" NOT NULL,
    facet     text COLLATE "C" NOT NULL,
    after_key text COLLATE "C" NOT NULL, -- empty: it begins anew
    PRIMARY KEY (source, facet)
) WITH (fillfactor = 70);

-- +goose Down
DROP TABLE retention_walks;
DROP TABLE schedule_state;
DROP TABLE schedule_claims;
DROP TABLE entities;
