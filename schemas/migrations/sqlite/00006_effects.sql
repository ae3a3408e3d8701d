-- +goose Up
-- The columns are those of the PostgreSQL migration of the same number, where
-- each one is explained.
CREATE TABLE effects (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    source   TEXT    NOT NULL,
    facet    TEXT    NOT NULL,
    key      TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    before   BLOB    NOT NULL,
    after    BLOB    NOT NULL,
    tell     BOOLEAN NOT NULL,
    triggers TEXT    NOT NULL,
    due_at   INTEGER NOT NULL
);

CREATE INDEX effects_due ON effects (source, due_at, id);

-- +goose Down
DROP TABLE effects;
