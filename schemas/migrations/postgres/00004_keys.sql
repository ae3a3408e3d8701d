-- +goose Up
-- Who may call by an API key. Every query service holds all that are not revoked
-- in memory and reads them every few seconds; a row is never deleted.
CREATE TABLE api_keys (
    id         text COLLATE "C" NOT NULL PRIMARY KEY, -- stands in the key itself
    hash       bytea  NOT NULL, -- SHA-256 of the secret, which is random and stored nowhere
    name       text   NOT NULL,
    scopes     text   NOT NULL, -- of read, refresh, admin; separated by spaces
    created_at bigint NOT NULL, -- microseconds since 1970 UTC
    created_by text   NOT NULL,
    expires_at bigint NOT NULL, -- 0: never
    revoked_at bigint NOT NULL DEFAULT 0, -- 0: it is not
    revoked_by text   NOT NULL DEFAULT ''
);

-- +goose Down
DROP TABLE api_keys;
