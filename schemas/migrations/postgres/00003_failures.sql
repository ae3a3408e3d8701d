-- +goose Up
-- What became of entities whose refresh failed. Sparse: an entity that is well
-- has no row. A row goes only in the transaction that stores a snapshot or an
-- absence of at least its number, never because a retry was queued. The due time
-- is indexed, so it lies here and not in the state that every check writes, and
-- no page keeps room: an update that moves an indexed column can't use it (HOT).
CREATE TABLE update_status (
    source         text COLLATE "C" NOT NULL,
    facet          text COLLATE "C" NOT NULL,
    key            text COLLATE "C" NOT NULL,
    state          text    NOT NULL, -- RETRYING, FAILED, SUSPENDED
    reason         text    NOT NULL,
    error          text    NOT NULL,
    rounds         integer NOT NULL, -- of tries that failed in a row since the last success; a wait that counts no failure is none
    failures       integer NOT NULL, -- times it became FAILED since the last success
    number         bigint  NOT NULL, -- of the failed fetch
    next_retry_at  bigint  NOT NULL, -- RETRYING: when it is due, or the end of a claim; FAILED: the end of its hold; SUSPENDED: 0
    lane           text    NOT NULL, -- of the request that failed, as are the columns up to trace_parent
    params         json    NOT NULL,
    correlation_id text    NOT NULL,
    trace_parent   text    NOT NULL,
    since          bigint  NOT NULL, -- when the first failure since the last success was written
    updated_at     bigint  NOT NULL, -- when the last one was
    PRIMARY KEY (source, facet, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- Retries are claimed by it, earliest first, in time that doesn't grow with the
-- table.
CREATE INDEX update_status_due ON update_status (source, next_retry_at) WHERE state = 'RETRYING';

-- Which records lie on a dead-letter topic, and what was done about each: Kafka
-- itself can only delete a prefix. A letter is named by where it lies, so that it
-- can be read and replayed without a scan.
CREATE TABLE dead_letters (
    topic           text COLLATE "C" NOT NULL,
    kafka_partition integer NOT NULL,
    kafka_offset    bigint  NOT NULL,
    source          text COLLATE "C" NOT NULL,
    facet           text COLLATE "C" NOT NULL, -- empty, like the key, where the record could not be decoded
    key             text COLLATE "C" NOT NULL,
    reason          text    NOT NULL, -- see dead_letter.v1.schema.json
    attempts        integer NOT NULL, -- calls of the upstream; 0 if there was none
    at              bigint  NOT NULL, -- microseconds since 1970 UTC
    correlation_id  text    NOT NULL,
    handled         text    NOT NULL DEFAULT '', -- replayed, purged; empty while it is open
    handled_at      bigint  NOT NULL DEFAULT 0,
    handled_by      text    NOT NULL DEFAULT '',
    PRIMARY KEY (topic, kafka_partition, kafka_offset)
);

-- In the order in which letters are listed, which is that of these columns
-- backwards: the open ones, and all.
CREATE INDEX dead_letters_open ON dead_letters (source, at, topic, kafka_partition, kafka_offset) WHERE handled = '';
CREATE INDEX dead_letters_all ON dead_letters (source, at, topic, kafka_partition, kafka_offset);

-- +goose Down
DROP TABLE dead_letters;
DROP TABLE update_status;
