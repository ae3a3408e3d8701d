-- +goose Up
-- The columns are those of the PostgreSQL migration of the same number, where
-- each one is explained.
CREATE TABLE snapshot_state (
    source          TEXT    NOT NULL,
    facet           TEXT    NOT NULL,
    key             TEXT    NOT NULL,
    version         INTEGER NOT NULL,
    hash            BLOB    NOT NULL,
    extract_version INTEGER NOT NULL,
    encoding        TEXT    NOT NULL,
    size            INTEGER NOT NULL,
    last_fetched_at INTEGER NOT NULL,
    last_checked_at INTEGER NOT NULL,
    last_updated_at INTEGER NOT NULL,
    absent          BOOLEAN NOT NULL,
    etag            TEXT    NOT NULL,
    last_modified   TEXT    NOT NULL,
    PRIMARY KEY (source, facet, key)
) WITHOUT ROWID;

CREATE TABLE snapshot_payload (
    source  TEXT NOT NULL,
    facet   TEXT NOT NULL,
    key     TEXT NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (source, facet, key)
);

-- +goose Down
DROP TABLE snapshot_payload;
DROP TABLE snapshot_state;
