-- +goose Up
-- The columns are those of the PostgreSQL migration of the same number, where
-- each one is explained.
CREATE TABLE update_status (
    source         TEXT    NOT NULL,
    facet          TEXT    NOT NULL,
    key            TEXT    NOT NULL,
    state          TEXT    NOT NULL,
    reason         TEXT    NOT NULL,
    error          TEXT    NOT NULL,
    rounds         INTEGER NOT NULL,
    failures       INTEGER NOT NULL,
    number         INTEGER NOT NULL,
    next_retry_at  INTEGER NOT NULL,
    lane           TEXT    NOT NULL,
    params         TEXT    NOT NULL,
    correlation_id TEXT    NOT NULL,
    trace_parent   TEXT    NOT NULL,
    since          INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    PRIMARY KEY (source, facet, key)
) WITHOUT ROWID;

CREATE INDEX update_status_due ON update_status (source, next_retry_at) WHERE state = 'RETRYING';

CREATE TABLE dead_letters (
    topic           TEXT    NOT NULL,
    kafka_partition INTEGER NOT NULL,
    kafka_offset    INTEGER NOT NULL,
    source          TEXT    NOT NULL,
    facet           TEXT    NOT NULL,
    key             TEXT    NOT NULL,
    reason          TEXT    NOT NULL,
    attempts        INTEGER NOT NULL,
    at              INTEGER NOT NULL,
    correlation_id  TEXT    NOT NULL,
    handled         TEXT    NOT NULL DEFAULT '',
    handled_at      INTEGER NOT NULL DEFAULT 0,
    handled_by      TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (topic, kafka_partition, kafka_offset)
) WITHOUT ROWID;

CREATE INDEX dead_letters_open ON dead_letters (source, at, topic, kafka_partition, kafka_offset) WHERE handled = '';
CREATE INDEX dead_letters_all ON dead_letters (source, at, topic, kafka_partition, kafka_offset);

-- +goose Down
DROP TABLE dead_letters;
DROP TABLE update_status;
