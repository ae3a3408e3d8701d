-- +goose Up
-- The columns are those of the PostgreSQL migration of the same number, where
-- each one is explained.
CREATE TABLE entities (
    source     TEXT    NOT NULL,
    facet      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    params     TEXT    NOT NULL,
    tier       INTEGER NOT NULL,
    enabled    BOOLEAN NOT NULL,
    due_at     INTEGER NOT NULL,
    claimed_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    changes    REAL    NOT NULL,
    watched    INTEGER NOT NULL,
    reads      REAL    NOT NULL,
    read_at    INTEGER NOT NULL,
    PRIMARY KEY (source, facet, key)
) WITHOUT ROWID;

CREATE INDEX entities_due ON entities (source, due_at) WHERE enabled;

CREATE TABLE schedule_claims (
    id         TEXT    NOT NULL PRIMARY KEY,
    source     TEXT    NOT NULL,
    claimed_at INTEGER NOT NULL,
    until      INTEGER NOT NULL,
    entries    TEXT    NOT NULL
);

CREATE INDEX schedule_claims_until ON schedule_claims (source, until);

CREATE TABLE schedule_state (
    source     TEXT    NOT NULL PRIMARY KEY,
    price      REAL    NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE retention_walks (
    source    TEXT NOT NULL,
    facet     TEXT NOT NULL,
    after_key TEXT NOT NULL,
    PRIMARY KEY (source, facet)
) WITHOUT ROWID;

-- +goose Down
DROP TABLE retention_walks;
DROP TABLE schedule_state;
DROP TABLE schedule_claims;
DROP TABLE entities;
