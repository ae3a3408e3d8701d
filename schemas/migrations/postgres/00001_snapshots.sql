-- +goose Up
-- State and payload lie apart, so that a check which finds nothing new writes
-- one narrow row and never the payload. No column that every check writes is
-- indexed: such an update stays on its page (HOT). Times are microseconds since
-- 1970 UTC, so that one text of each query serves SQLite too. Partitions keep
-- vacuum's work small at tens of millions of rows. The "C" collation orders
-- keys by bytes, which is the order in which a batch locks its rows.
CREATE TABLE snapshot_state (
    source          text COLLATE "C" NOT NULL,
    facet           text COLLATE "C" NOT NULL,
    key             text COLLATE "C" NOT NULL,
    version         bigint  NOT NULL, -- number of the fetch that wrote the row last
    hash            bytea   NOT NULL, -- SHA-256 of the canonical bytes; empty while only an absence is known
    extract_version bigint  NOT NULL, -- which select and ignore made the hash and the payload
    encoding        text    NOT NULL, -- of the payload: zstd; empty without one
    size            integer NOT NULL, -- of the payload before encoding, in bytes
    last_fetched_at bigint  NOT NULL, -- when the last fetch that brought content began; 0 for none
    last_checked_at bigint  NOT NULL, -- when the last fetch of any outcome began
    last_updated_at bigint  NOT NULL, -- when the last fetch that brought a change began; 0 for none
    absent          boolean NOT NULL, -- the upstream said that there is no such entity
    etag            text    NOT NULL, -- the upstream's own validators, empty where it has none
    last_modified   text    NOT NULL,
    PRIMARY KEY (source, facet, key)
) PARTITION BY HASH (source, facet, key);

CREATE TABLE snapshot_payload (
    source  text COLLATE "C" NOT NULL,
    facet   text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (source, facet, key)
) PARTITION BY HASH (source, facet, key);

-- The application compresses: PostgreSQL need not try again.
ALTER TABLE snapshot_payload ALTER COLUMN payload SET STORAGE EXTERNAL;

-- +goose StatementBegin
DO $$
BEGIN
    FOR n IN 0..15 LOOP
        EXECUTE format(
            'CREATE TABLE snapshot_state_%s PARTITION OF snapshot_state
                FOR VALUES WITH (MODULUS 16, REMAINDER %s)
                WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05)', n, n);
        EXECUTE format(
            'CREATE TABLE snapshot_payload_%s PARTITION OF snapshot_payload
                FOR VALUES WITH (MODULUS 16, REMAINDER %s)
                WITH (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05)', n, n);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP TABLE snapshot_payload;
DROP TABLE snapshot_state;
