-- +goose Up
-- The columns are those of the PostgreSQL migration of the same number, where
-- each one is explained.
CREATE TABLE settings (
    source     TEXT    NOT NULL PRIMARY KEY,
    value      TEXT    NOT NULL,
    revision   INTEGER NOT NULL CHECK (revision > 0),
    changed_at INTEGER NOT NULL,
    changed_by TEXT    NOT NULL
) WITHOUT ROWID;

CREATE TABLE audit (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL,
    actor  TEXT    NOT NULL,
    action TEXT    NOT NULL,
    source TEXT    NOT NULL,
    before TEXT    NOT NULL,
    after  TEXT    NOT NULL,
    note   TEXT    NOT NULL
);

CREATE TABLE quota_usage (
    source     TEXT    NOT NULL,
    policy     TEXT    NOT NULL,
    day_end    INTEGER NOT NULL,
    calls      INTEGER NOT NULL,
    counted_at INTEGER NOT NULL,
    PRIMARY KEY (source, policy)
) WITHOUT ROWID;

-- +goose Down
DROP TABLE quota_usage;
DROP TABLE audit;
DROP TABLE settings;
