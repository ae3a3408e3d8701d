-- +goose Up
-- What is to follow from changes and has not been done yet. A row is written in the
-- transaction that stores its change, claimed by moving its due time, and deleted when
-- all of it is done: the table is nearly empty, and whatever is in it is dead soon. Vacuum
-- comes after a number of rows, for a share of nothing says nothing, and each claim begins
-- where the dead lie in the index. No page keeps room: an update that moves an indexed
-- column can't use it (HOT).
CREATE TABLE effects (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- rises with an entity's versions; of several entities the higher may be committed first
    source   text COLLATE "C" NOT NULL,
    facet    text COLLATE "C" NOT NULL,
    key      text COLLATE "C" NOT NULL,
    version  bigint  NOT NULL, -- number of the fetch that brought the change
    at       bigint  NOT NULL, -- when it began; microseconds since 1970 UTC
    before   bytea   NOT NULL, -- hash of the content that was replaced; empty if there was none
    after    bytea   NOT NULL, -- hash of the content that was stored
    tell     boolean NOT NULL, -- on the source's change topic
    triggers json    NOT NULL, -- facet and backoff (in microseconds) of each
    due_at   bigint  NOT NULL  -- at, or the end of a claim
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000);

CREATE INDEX effects_due ON effects (source, due_at, id);

-- +goose Down
DROP TABLE effects;
