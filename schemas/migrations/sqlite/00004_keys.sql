-- +goose Up
-- The columns are those of the PostgreSQL migration of the same number, where
-- each one is explained.
CREATE TABLE api_keys (
    id         TEXT    NOT NULL PRIMARY KEY,
    hash       BLOB    NOT NULL,
    name       TEXT    NOT NULL,
    scopes     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT    NOT NULL,
    expires_at INTEGER NOT NULL,
    revoked_at INTEGER NOT NULL DEFAULT 0,
    revoked_by TEXT    NOT NULL DEFAULT ''
) WITHOUT ROWID;

-- +goose Down
DROP TABLE api_keys;
