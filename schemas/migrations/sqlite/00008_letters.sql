-- +goose Up
-- The columns are those of the PostgreSQL migration of the same number, where
-- each one is explained.
ALTER TABLE dead_letters ADD COLUMN error TEXT NOT NULL DEFAULT '';
ALTER TABLE dead_letters ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
ALTER TABLE dead_letters ADD COLUMN status INTEGER NOT NULL DEFAULT 0;
ALTER TABLE dead_letters ADD COLUMN replays INTEGER NOT NULL DEFAULT 0;
ALTER TABLE dead_letters ADD COLUMN job TEXT NOT NULL DEFAULT '';

CREATE INDEX dead_letters_of ON dead_letters (source, key, facet, at) WHERE key <> '';
CREATE INDEX dead_letters_alike ON dead_letters (topic, fingerprint, kafka_partition, kafka_offset) WHERE handled = '';

ALTER TABLE update_status ADD COLUMN replay TEXT NOT NULL DEFAULT '';
ALTER TABLE update_status ADD COLUMN replays INTEGER NOT NULL DEFAULT 0;

CREATE TABLE letter_jobs (
    id              TEXT    PRIMARY KEY,
    source          TEXT    NOT NULL,
    kind            TEXT    NOT NULL,
    filter          TEXT    NOT NULL,
    lane            TEXT    NOT NULL,
    rate            REAL    NOT NULL,
    most            INTEGER NOT NULL,
    note            TEXT    NOT NULL,
    state           TEXT    NOT NULL,
    total           INTEGER NOT NULL,
    done            INTEGER NOT NULL,
    refused         TEXT    NOT NULL,
    kafka_partition INTEGER NOT NULL,
    kafka_offset    INTEGER NOT NULL,
    chunk_at        INTEGER NOT NULL,
    holder          TEXT    NOT NULL,
    lease           INTEGER NOT NULL,
    error           TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    created_by      TEXT    NOT NULL,
    updated_at      INTEGER NOT NULL,
    ended_at        INTEGER NOT NULL
);
CREATE INDEX letter_jobs_live ON letter_jobs (lease) WHERE state = 'RUNNING' OR chunk_at <> 0;
CREATE UNIQUE INDEX letter_jobs_alone ON letter_jobs (source) WHERE kind = 'REPLAY' AND (state = 'RUNNING' OR chunk_at <> 0);
CREATE INDEX letter_jobs_newest ON letter_jobs (created_at);

-- +goose Down
DROP TABLE letter_jobs;
ALTER TABLE update_status DROP COLUMN replay;
ALTER TABLE update_status DROP COLUMN replays;
DROP INDEX dead_letters_alike;
DROP INDEX dead_letters_of;
ALTER TABLE dead_letters DROP COLUMN error;
ALTER TABLE dead_letters DROP COLUMN fingerprint;
ALTER TABLE dead_letters DROP COLUMN status;
ALTER TABLE dead_letters DROP COLUMN replays;
ALTER TABLE dead_letters DROP COLUMN job;
