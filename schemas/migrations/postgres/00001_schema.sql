-- +goose Up
-- Times are bigint microseconds since 1970 UTC, 0 for none, so that one query text serves
-- PostgreSQL and SQLite. The "C" collation orders text by bytes, which is the order in which a
-- batch locks its rows.

-- Snapshots. State and payload are separate tables: a check that finds no change updates one
-- narrow row and never writes the payload. No column that every check writes is indexed, so the
-- update is a HOT update and stays on its page. 16 partitions keep each vacuum small at tens of
-- millions of rows.
CREATE TABLE snapshot_state (
    source          text COLLATE "C" NOT NULL,
    facet           text COLLATE "C" NOT NULL,
    key             text COLLATE "C" NOT NULL,
    version         bigint  NOT NULL, -- of the fetch that wrote the row last
    hash            bytea   NOT NULL, -- SHA-256 of the canonical bytes; empty if only a not-found result is stored
    extract_version bigint  NOT NULL, -- version of the select and ignore rules that made hash and payload
    encoding        text    NOT NULL, -- of the payload: zstd; empty without a payload
    size            integer NOT NULL, -- bytes of the payload before encoding
    last_fetched_at bigint  NOT NULL, -- start of the last fetch that returned content
    last_checked_at bigint  NOT NULL, -- start of the last fetch with any result
    last_updated_at bigint  NOT NULL, -- start of the last fetch that returned a change
    not_found       boolean NOT NULL, -- the last fetch found no such entity
    etag            text    NOT NULL, -- validators of the upstream's response; empty without one
    last_modified   text    NOT NULL,
    visibility      text    NOT NULL DEFAULT '', -- visibility of the last fetch; empty: every reader
    manual          boolean NOT NULL DEFAULT false, -- the last check was for a reader or an operator, not for the schedule
    alias_not_found boolean NOT NULL DEFAULT false, -- not found, because a facet that it takes a param from is not found
    media_type      text    NOT NULL DEFAULT '', -- of raw content; empty for JSON
    alias_changed   boolean NOT NULL DEFAULT false, -- a facet that the entity takes a param from has changed since the last check
    alias_payload   bytea, -- copy of a short payload, if other facets take params from it; one look-up then reads state and content
    PRIMARY KEY (source, facet, key)
) PARTITION BY HASH (source, facet, key);

CREATE TABLE snapshot_payload (
    source  text COLLATE "C" NOT NULL,
    facet   text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (source, facet, key)
) PARTITION BY HASH (source, facet, key);

-- freshet compresses payloads itself; PostgreSQL must not compress them again.
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

-- Runtime changes of a source's quota. A source without a row uses its configuration. Every
-- worker reads the row of its source about once a second.
CREATE TABLE settings (
    source     text COLLATE "C" NOT NULL PRIMARY KEY,
    value      json   NOT NULL, -- an Override of package limiter
    revision   bigint NOT NULL CHECK (revision > 0), -- increases by one with each change; rows are never deleted
    changed_at bigint NOT NULL,
    changed_by text   NOT NULL
);

-- Audit log. Each entry is inserted in the transaction of its change.
CREATE TABLE audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- increases, with gaps
    at     bigint NOT NULL,
    actor  text   NOT NULL,
    action text   NOT NULL, -- set, stop, resume, …
    source text   NOT NULL,
    before json   NOT NULL, -- value before and after the change
    after  json   NOT NULL,
    note   text   NOT NULL  -- the actor's reason; empty if none was given
);
-- The indexes that end in _kept have the rows of a table in the order in which they are deleted (package retention).
CREATE INDEX audit_kept ON audit (at);

-- Upstream calls used of each calendar-day quota. Read when Redis has lost its counter.
CREATE TABLE quota_usage (
    source     text COLLATE "C" NOT NULL,
    policy     text COLLATE "C" NOT NULL,
    day_end    bigint NOT NULL, -- the midnight that ends the day
    calls      bigint NOT NULL,
    counted_at bigint NOT NULL, -- by the Redis clock
    PRIMARY KEY (source, policy)
) WITH (fillfactor = 70);

-- Entities whose last refresh failed. An entity without failures has no row. A row is deleted
-- only in the transaction that stores a snapshot or a not-found result of at least its version, never
-- because a retry was enqueued. next_retry_at is indexed, so an update can't be a HOT update and
-- no page reserves space for one.
CREATE TABLE update_status (
    source         text COLLATE "C" NOT NULL,
    facet          text COLLATE "C" NOT NULL,
    key            text COLLATE "C" NOT NULL,
    state          text    NOT NULL, -- RETRYING, FAILED, SUSPENDED
    reason         text    NOT NULL,
    error          text    NOT NULL,
    rounds         integer NOT NULL, -- retry rounds that failed since the last success; a delay without a failure is not counted
    failures       integer NOT NULL, -- changes to FAILED since the last success
    version        bigint  NOT NULL, -- of the failed fetch
    next_retry_at  bigint  NOT NULL, -- RETRYING: when the retry is due, or the end of its claim; FAILED: end of the hold; SUSPENDED: 0
    lane           text    NOT NULL, -- copied from the failed request, as are params to trace_parent, replay, replays and depth
    params         json    NOT NULL,
    correlation_id text    NOT NULL,
    trace_parent   text    NOT NULL,
    since          bigint  NOT NULL, -- first failure since the last success
    updated_at     bigint  NOT NULL, -- last failure
    replay         text    NOT NULL DEFAULT '', -- id of the replay that enqueued the request; empty: none
    replays        integer NOT NULL DEFAULT 0,  -- how often the request has been replayed
    depth          integer NOT NULL DEFAULT 0,  -- number of links that led to the entity
    dead_alias     text    NOT NULL DEFAULT '', -- hash of the alias that is checked again, because the upstream did not find the entity with it
    PRIMARY KEY (source, facet, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- Retries are claimed through this index, earliest first, in time independent of the table's size.
CREATE INDEX update_status_due ON update_status (source, next_retry_at) WHERE state = 'RETRYING';

-- Index of the records on dead-letter topics, with the disposition of each. Kafka can only delete
-- a prefix of a partition. The primary key is the record's position, so that a dead letter can be
-- read and replayed without a scan.
CREATE TABLE dead_letters (
    topic           text COLLATE "C" NOT NULL,
    kafka_partition integer NOT NULL,
    kafka_offset    bigint  NOT NULL,
    source          text COLLATE "C" NOT NULL,
    facet           text COLLATE "C" NOT NULL, -- facet and key are empty if the record could not be decoded
    key             text COLLATE "C" NOT NULL,
    reason          text    NOT NULL, -- see dead_letter.v1.schema.json
    attempts        integer NOT NULL, -- upstream calls
    at              bigint  NOT NULL, -- when the request was dead-lettered
    correlation_id  text    NOT NULL,
    handled         text    NOT NULL DEFAULT '', -- replayed, purged; empty while it is open
    handled_at      bigint  NOT NULL DEFAULT 0,
    handled_by      text    NOT NULL DEFAULT '',
    error           text    NOT NULL DEFAULT '', -- its first bytes
    fingerprint     text    NOT NULL DEFAULT '', -- equal for errors that differ only in keys and numbers
    status          integer NOT NULL DEFAULT 0,  -- HTTP status of the last upstream response; 0: no response
    replays         integer NOT NULL DEFAULT 0,  -- how often the request had been replayed before
    job             text    NOT NULL DEFAULT '', -- id of the job that handled it
    visibility      text    NOT NULL DEFAULT '', -- visibility of the response; empty: every reader. The console lists a dead letter only for clients that may see it
    PRIMARY KEY (topic, kafka_partition, kafka_offset)
);

-- Lists, newest first: open dead letters, and all.
CREATE INDEX dead_letters_open ON dead_letters (source, at, topic, kafka_partition, kafka_offset) WHERE handled = '';
CREATE INDEX dead_letters_all ON dead_letters (source, at, topic, kafka_partition, kafka_offset);
-- Dead letters of one entity.
CREATE INDEX dead_letters_entity ON dead_letters (source, key, facet, at) WHERE key <> '';
-- Open dead letters with one fingerprint, in the order in which jobs read them.
CREATE INDEX dead_letters_fingerprint ON dead_letters (topic, fingerprint, kafka_partition, kafka_offset) WHERE handled = '';
-- Dead letters that a job handled.
CREATE INDEX dead_letters_job ON dead_letters (job, topic, kafka_partition, kafka_offset) WHERE job <> '';
CREATE INDEX dead_letters_kept ON dead_letters (handled_at) WHERE handled <> '';
CREATE INDEX dead_letters_open_kept ON dead_letters (at) WHERE handled = '';

-- Replay and purge jobs. One process at a time holds a job's lease. It records its position and
-- the handled dead letters in one transaction, so that another process can continue after a crash.
CREATE TABLE dlq_jobs (
    id               text PRIMARY KEY,
    source           text COLLATE "C" NOT NULL,
    kind             text    NOT NULL, -- REPLAY, PURGE
    filter           json    NOT NULL,
    lane             text    NOT NULL, -- of a replay's requests; empty for a purge
    rate             double precision NOT NULL, -- dead letters per second; 0: unlimited
    max              bigint  NOT NULL, -- dead letters to handle at most; 0: all
    note             text    NOT NULL,
    state            text    NOT NULL, -- RUNNING, STOPPED, DONE
    total            bigint  NOT NULL, -- dead letters that matched the filter when the job was created
    done             bigint  NOT NULL, -- handled
    refused          json    NOT NULL, -- dead letters that stay open, counted by reason
    kafka_partition  integer NOT NULL, -- position of the last dead letter the job has examined
    kafka_offset     bigint  NOT NULL,
    chunk_started_at bigint  NOT NULL, -- when the chunk after the position began to be enqueued; 0: no chunk is in flight
    holder           text    NOT NULL, -- process that holds the lease
    lease_until      bigint  NOT NULL,
    error            text    NOT NULL, -- why the job can't continue
    created_at       bigint  NOT NULL,
    created_by       text    NOT NULL,
    updated_at       bigint  NOT NULL,
    ended_at         bigint  NOT NULL
);
-- Jobs that need a worker. A job that was stopped in a chunk still has to find out which requests
-- of the chunk it enqueued.
CREATE INDEX dlq_jobs_lease ON dlq_jobs (lease_until) WHERE state = 'RUNNING' OR chunk_started_at <> 0;
-- One active replay per source: two could choose and enqueue the same dead letters.
CREATE UNIQUE INDEX dlq_jobs_replay ON dlq_jobs (source) WHERE kind = 'REPLAY' AND (state = 'RUNNING' OR chunk_started_at <> 0);
CREATE INDEX dlq_jobs_newest ON dlq_jobs (created_at);
CREATE INDEX dlq_jobs_kept ON dlq_jobs (updated_at) WHERE state <> 'RUNNING' AND chunk_started_at = 0;

-- API keys. Every query service keeps the unrevoked keys in memory and reads them again every few
-- seconds.
CREATE TABLE api_keys (
    id         text COLLATE "C" NOT NULL PRIMARY KEY, -- part of the key itself
    hash       bytea  NOT NULL, -- SHA-256 of the random secret, which is not stored
    name       text   NOT NULL,
    scopes     text   NOT NULL, -- read, refresh, admin; separated by spaces
    created_at bigint NOT NULL,
    created_by text   NOT NULL,
    expires_at bigint NOT NULL, -- 0: never
    revoked_at bigint NOT NULL DEFAULT 0, -- 0: not revoked
    revoked_by text   NOT NULL DEFAULT ''
);
CREATE INDEX api_keys_kept ON api_keys ((CASE WHEN revoked_at <> 0 THEN revoked_at ELSE expires_at END)) WHERE revoked_at <> 0 OR expires_at <> 0;

-- Tokens of credentials that renew themselves. Every change of the token increases generation, and
-- a writer names the generation it has read, so that one process at a time renews a credential.
-- Times are read from the database's clock.
CREATE TABLE tokens (
    source        text COLLATE "C" NOT NULL,
    credential    text COLLATE "C" NOT NULL,
    generation    bigint  NOT NULL DEFAULT 0,  -- 0: there was never a token
    sealed        bytea   NOT NULL DEFAULT '', -- token and refresh token, encrypted with AES-256-GCM; empty: none
    key_id        text    NOT NULL DEFAULT '', -- key in secrets.keyFile that encrypted them
    expires_at    bigint  NOT NULL DEFAULT 0,  -- when the token expires
    renew_at      bigint  NOT NULL DEFAULT 0,  -- when the renewal is due
    renewed_at    bigint  NOT NULL DEFAULT 0,  -- 0: never
    holder        text    NOT NULL DEFAULT '', -- process that renews the credential now; empty: none
    claimed_until bigint  NOT NULL DEFAULT 0,  -- end of the claim, or the time of the next attempt after a failure
    failures      integer NOT NULL DEFAULT 0,  -- failed renewals since the last token
    state         text    NOT NULL DEFAULT '', -- STOPPED: an operator has to act; empty: renewed when due
    error         text    NOT NULL DEFAULT '', -- of the last failed renewal, without secrets
    since         bigint  NOT NULL DEFAULT 0,  -- first failed renewal since the last token
    PRIMARY KEY (source, credential)
) WITH (fillfactor = 70);

-- Prefetched entities and when each is due. due_at is indexed; an update that does not change it
-- (reads, tier, history) is a HOT update, for which each page keeps a fifth free. Each claim leaves
-- dead entries at the front of the index, where the next claim begins: vacuum therefore runs after
-- a number of rows, not after a share of the table. The table is not partitioned because claims
-- read one index in its order.
CREATE TABLE entities (
    source     text COLLATE "C" NOT NULL,
    facet      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    params     json     NOT NULL, -- params that differ from the facet's params
    tier       smallint NOT NULL, -- 0 hot, 1 warm, 2 cold
    enabled    boolean  NOT NULL, -- false: an operator disabled it
    due_at     bigint   NOT NULL,
    claimed_at bigint   NOT NULL, -- last due time; 0: never claimed, and so for the columns below
    updated_at bigint   NOT NULL, -- last change of the snapshot known at claimed_at
    changes    double precision NOT NULL, -- changes within watched; older ones count less
    watched    bigint   NOT NULL, -- microseconds
    reads      double precision NOT NULL, -- reads until read_at; older ones count less
    read_at    bigint   NOT NULL,
    pinned     boolean  NOT NULL DEFAULT false, -- an operator chose the tier; reads do not change it
    PRIMARY KEY (source, facet, key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100000,
    autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX entities_due ON entities (source, due_at) WHERE enabled;

-- Batches of requests that schedulers have claimed and not yet enqueued. A row exists for seconds;
-- after until, another scheduler takes it over.
CREATE TABLE schedule_claims (
    id         text COLLATE "C" NOT NULL PRIMARY KEY, -- changes when the claim is taken over
    source     text COLLATE "C" NOT NULL,
    claimed_at bigint NOT NULL,
    until      bigint NOT NULL,
    entries    json   NOT NULL  -- facet, key, params and version of each request
);

CREATE INDEX schedule_claims_until ON schedule_claims (source, until);

-- State that the schedulers of one source share.
CREATE TABLE schedule_state (
    source     text COLLATE "C" NOT NULL PRIMARY KEY,
    price      double precision NOT NULL, -- current price of an upstream call
    updated_at bigint NOT NULL
) WITH (fillfactor = 70);

-- Position of the retention walk, which deletes expired rows in the order of their keys.
CREATE TABLE retention_walks (
    source    text COLLATE "C" NOT NULL,
    facet     text COLLATE "C" NOT NULL, -- with the suffix /status for the walk along update_status
    after_key text COLLATE "C" NOT NULL, -- empty: the walk starts again
    PRIMARY KEY (source, facet)
) WITH (fillfactor = 70);

-- Maintenance: the deletion of old rows, by table. A process locks the row of a table while it deletes a
-- batch of its rows.
CREATE TABLE maintenance (
    name       text COLLATE "C" NOT NULL PRIMARY KEY, -- of the table, as in the configuration
    due_at     bigint  NOT NULL DEFAULT 0,     -- the next run
    requested  boolean NOT NULL DEFAULT false, -- an operator has requested the run that is due
    running    boolean NOT NULL DEFAULT false, -- the run that is due has deleted its first batch
    started_at bigint  NOT NULL DEFAULT 0,     -- start of the last run
    ended_at   bigint  NOT NULL DEFAULT 0,     -- end of the last run that has ended
    deleted    bigint  NOT NULL DEFAULT 0      -- rows that the last run has deleted
) WITH (fillfactor = 70);

-- Transactional outbox: change messages to publish and triggers to enqueue. A row is inserted in
-- the transaction that stores its change, claimed by moving due_at, and deleted after delivery.
-- The table is nearly empty and its rows are short-lived: vacuum runs after a number of rows,
-- because a share of an empty table is none, and each claim starts where the index's dead entries
-- are. due_at is indexed, so no page reserves space for HOT updates.
CREATE TABLE outbox (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- increases with an entity's versions; across entities, a higher id may commit first
    source         text COLLATE "C" NOT NULL,
    facet          text COLLATE "C" NOT NULL,
    key            text COLLATE "C" NOT NULL,
    version        bigint  NOT NULL, -- of the fetch that returned the change
    at             bigint  NOT NULL, -- start of that fetch
    before         bytea   NOT NULL, -- hash of the replaced content; empty if there was none
    after          bytea   NOT NULL, -- hash of the stored content
    publish_change boolean NOT NULL, -- publish to the source's change topic
    triggers       json    NOT NULL, -- facets to refresh
    due_at         bigint  NOT NULL, -- at, the end of a quiet period, or the end of a claim
    quiet_facet    text COLLATE "C" NOT NULL DEFAULT '', -- the facet whose trigger waits for a quiet period; #page: the request of a collection's next page; empty: none
    latest_at      bigint  NOT NULL DEFAULT 0, -- the latest due_at to which further changes may move a quiet trigger
    item           text    NOT NULL DEFAULT '', -- id of the changed item of a collection; empty: the entity has changed
    run            text    NOT NULL DEFAULT '' -- JSON of the event of a run's end; the key is the run's id; empty: another event
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000);

CREATE INDEX outbox_due ON outbox (source, due_at, id);
-- One waiting quiet trigger per entity and facet.
CREATE UNIQUE INDEX outbox_quiet ON outbox (source, facet, key, quiet_facet) WHERE quiet_facet <> '';

-- Accounts of clients that use credits. Each change of a client's credits locks the account's row
-- first. So the changes of one client happen one after another.
CREATE TABLE credit_accounts (
    client    text COLLATE "C" NOT NULL PRIMARY KEY, -- name of the client, such as key:<id> <name>
    plan      text   NOT NULL, -- plan of the last hold; empty before the first one
    balance   bigint NOT NULL CHECK (balance >= 0), -- credits that can be held; equals the sum of credit_entries.amount
    held      bigint NOT NULL CHECK (held >= 0),    -- credits of the open holds; equals the sum of credit_entries.held
    renews_at bigint NOT NULL -- end of the plan's grant; the first hold after it gets the next grant
) WITH (fillfactor = 70);

-- Credits that a client got from its plan or from an operator.
CREATE TABLE credit_grants (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    client     text COLLATE "C" NOT NULL,
    amount     bigint NOT NULL CHECK (amount > 0),
    remaining  bigint NOT NULL CHECK (remaining >= 0 AND remaining <= amount), -- not held, captured, expired or voided
    created_at bigint NOT NULL,
    created_by text   NOT NULL, -- the actor, or plan:<name>
    expires_at bigint NOT NULL, -- 0: never
    voided     boolean NOT NULL DEFAULT false, -- an operator voided it; expires_at is the time
    note       text   NOT NULL
) WITH (fillfactor = 70);
-- Grants with remaining credits, in the order in which they are used.
CREATE INDEX credit_grants_open ON credit_grants (client, expires_at) WHERE remaining > 0;
CREATE INDEX credit_grants_kept ON credit_grants (created_at) WHERE remaining = 0;

-- Credits that are set aside for refreshes. Ended holds are the history of the refreshes.
CREATE TABLE credit_holds (
    id          text COLLATE "C" NOT NULL PRIMARY KEY,
    client      text COLLATE "C" NOT NULL,
    idempotency text COLLATE "C" NOT NULL, -- hash of the client, the entity and the Idempotency-Key; empty without one
    source      text COLLATE "C" NOT NULL,
    facet       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    number      bigint NOT NULL, -- of the update request; 0 until Kafka has acknowledged it
    amount      bigint NOT NULL CHECK (amount > 0),
    state       text   NOT NULL, -- HELD, CAPTURED, RELEASED, EXPIRED
    created_at  bigint NOT NULL,
    expires_at  bigint NOT NULL,
    ended_at    bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 80);
-- The reaper reads open holds in this order. Ended holds are not in the index.
CREATE INDEX credit_holds_open ON credit_holds (expires_at, id) WHERE state = 'HELD';
CREATE INDEX credit_holds_client ON credit_holds (client, created_at) WHERE state = 'HELD';
CREATE INDEX credit_holds_idempotency ON credit_holds (idempotency, created_at) WHERE idempotency <> '';
CREATE INDEX credit_holds_kept ON credit_holds (ended_at) WHERE state <> 'HELD';

-- Ledger: one row for each change of a balance. Rows are never changed. Old rows of a client are replaced by
-- one opening row with their sums, so that the sums over all rows of the client stay the same.
CREATE TABLE credit_entries (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       bigint NOT NULL,
    client   text COLLATE "C" NOT NULL,
    kind     text   NOT NULL, -- grant, hold, capture, release, expire, void, opening
    grant_id text COLLATE "C" NOT NULL, -- empty for a capture
    hold_id  text COLLATE "C" NOT NULL, -- empty for grant, expire and void
    amount   bigint NOT NULL, -- change of the balance
    held     bigint NOT NULL, -- change of the held credits
    balance  bigint NOT NULL  -- balance after the change
);
CREATE INDEX credit_entries_client ON credit_entries (client, at);
CREATE INDEX credit_entries_hold ON credit_entries (hold_id) WHERE kind = 'hold';
CREATE INDEX credit_entries_kept ON credit_entries (at) WHERE kind <> 'opening';
CREATE UNIQUE INDEX credit_entries_opening ON credit_entries (client) WHERE kind = 'opening';

-- Captured credits by hour: the sums of the capture entries, so that the use of all clients can be read
-- without the ledger.
CREATE TABLE credit_use (
    client text COLLATE "C" NOT NULL,
    hour   bigint NOT NULL, -- hours since 1970 UTC
    used   bigint NOT NULL CHECK (used > 0),
    PRIMARY KEY (client, hour)
) WITH (fillfactor = 70);
CREATE INDEX credit_use_hour ON credit_use (hour, client);

-- Collections: entities whose content is a list that is kept item by item. A page of the list is stored in
-- one transaction, which locks the collection's row of snapshot_state first.
CREATE TABLE collections (
    source               text COLLATE "C" NOT NULL,
    facet                text COLLATE "C" NOT NULL,
    key                  text COLLATE "C" NOT NULL,
    version              bigint  NOT NULL, -- version of the fetch that wrote the row last
    extract_version      bigint  NOT NULL, -- identifies the facet's settings in the last complete walk
    visibility           text    NOT NULL, -- visibility of the last fetch; items of another visibility are deleted
    items                bigint  NOT NULL CHECK (items >= 0), -- number of items that are not deleted
    changed              bigint  NOT NULL, -- version of the fetch that changed an item last; 0: none
    changed_at           bigint  NOT NULL, -- start of that fetch
    cursor_value         text    NOT NULL, -- value up to which the collection is complete; empty: no cursor
    etag                 text    NOT NULL, -- ETag of the first page of the last complete walk
    complete_at          bigint  NOT NULL, -- start of the last complete walk; 0: none
    full_at              bigint  NOT NULL, -- start of the last complete walk of the whole list; 0: none
    full_walk            bigint  NOT NULL, -- id of the last complete walk of the whole list, if its items are in walk_pages; 0: none
    walk                 bigint  NOT NULL, -- the open walk: version of its first fetch; 0: no walk is open
    walk_at              bigint  NOT NULL, -- start of the open walk's first fetch; the columns below describe the open walk too
    walk_date            bigint  NOT NULL, -- the upstream's time at the start of the walk
    page                 integer NOT NULL, -- number of the next page
    position             text    NOT NULL, -- request URI of the next page, or the upstream's cursor for it
    checkpoint           text    NOT NULL, -- position of an earlier page, to detect a walk that repeats itself
    walk_full            boolean NOT NULL, -- the walk requests the whole list
    greatest             text    NOT NULL, -- greatest cursor value of the walk's items
    walk_etag            text    NOT NULL, -- ETag of the walk's first page
    walk_extract_version bigint  NOT NULL,
    walk_again           boolean NOT NULL DEFAULT false, -- another walk follows, because a webhook has announced a change during this one
    PRIMARY KEY (source, facet, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- Items of collections. An unchanged item is never written.
CREATE TABLE items (
    source     text COLLATE "C" NOT NULL,
    facet      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    item       text COLLATE "C" NOT NULL, -- id of the item
    hash       bytea   NOT NULL, -- SHA-256 of the canonical content; for a deleted item, of its last content
    version    bigint  NOT NULL, -- version of the fetch that changed the item last
    changed_at bigint  NOT NULL, -- start of that fetch
    deleted    boolean NOT NULL, -- the upstream no longer has the item; the payload is empty
    encoding   text    NOT NULL, -- encoding of the payload: zstd; empty if the item is deleted
    size       integer NOT NULL, -- bytes of the payload before encoding
    payload    bytea   NOT NULL,
    PRIMARY KEY (source, facet, key, item)
) PARTITION BY HASH (source, facet, key);

ALTER TABLE items ALTER COLUMN payload SET STORAGE EXTERNAL;
-- Items in the order of their changes.
CREATE INDEX items_changed ON items (source, facet, key, version, item);
CREATE INDEX items_deleted ON items (source, facet, key, changed_at) WHERE deleted;

-- +goose StatementBegin
DO $$
BEGIN
    FOR n IN 0..15 LOOP
        EXECUTE format(
            'CREATE TABLE items_%s PARTITION OF items
                FOR VALUES WITH (MODULUS 16, REMAINDER %s)
                WITH (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05)', n, n);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Items that the pages of a walk of the whole list have. They exist only for lists of several pages whose
-- missing items are deleted (deletes: full). The rows of a walk are deleted at the end of the next one.
CREATE TABLE walk_pages (
    source text COLLATE "C" NOT NULL,
    facet  text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    walk   bigint  NOT NULL,
    page   integer NOT NULL,
    items  bytea   NOT NULL, -- the first 8 bytes of the SHA-256 of each id
    PRIMARY KEY (source, facet, key, walk, page)
);

-- Runs: entities and collections that are fetched as one unit of work. The transaction that ends or adds steps
-- locks the run's row first.
CREATE TABLE runs (
    id           text COLLATE "C" NOT NULL PRIMARY KEY, -- UUIDv7, so the order of the ids is the order of the runs
    source       text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL, -- name of the definition
    scope        text COLLATE "C" NOT NULL, -- identifies the keys
    keys         integer NOT NULL, -- number of keys
    triggered_by text    NOT NULL, -- client, or schedule
    definition   json    NOT NULL, -- the run's definition when it started
    state        text    NOT NULL, -- RUNNING, COMPLETED, FAILED, CANCELLED
    waiting      boolean NOT NULL, -- the run waits for the end of the earlier run of its scope
    attempt      integer NOT NULL, -- 1, and one more with each retry
    since        bigint  NOT NULL, -- start of the run: data that was fetched since then ends a step
    attempt_at   bigint  NOT NULL, -- start of the attempt: failures since then end a step
    total        integer NOT NULL CHECK (total >= 0), -- number of steps, and below of the steps in each state
    open         integer NOT NULL CHECK (open >= 0),
    done         integer NOT NULL CHECK (done >= 0),
    not_found    integer NOT NULL CHECK (not_found >= 0),
    failed       integer NOT NULL CHECK (failed >= 0),
    cancelled    integer NOT NULL CHECK (cancelled >= 0),
    started      integer NOT NULL CHECK (started >= 0), -- number of open steps that are requested
    last_started integer NOT NULL, -- highest number of a step that was requested
    deadline_at  bigint  NOT NULL,
    created_at   bigint  NOT NULL,
    updated_at   bigint  NOT NULL, -- last change of the run or of its steps
    ended_at     bigint  NOT NULL, -- 0: the run is active
    error        text    NOT NULL, -- why the run failed, other than by its steps
    idempotency  text COLLATE "C" NOT NULL, -- hash of the client and the Idempotency-Key; empty without one
    body         bytea   NOT NULL -- hash of the request that started the run
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
-- At most one active run, and one that waits, for each name and scope.
CREATE UNIQUE INDEX runs_active ON runs (source, name, scope, waiting) WHERE state = 'RUNNING';
CREATE UNIQUE INDEX runs_idempotency ON runs (idempotency) WHERE idempotency <> '';
CREATE INDEX runs_newest ON runs (source, id);
CREATE INDEX runs_deadline ON runs (source, deadline_at) WHERE state = 'RUNNING' AND NOT waiting;
CREATE INDEX runs_ended ON runs (ended_at) WHERE state <> 'RUNNING';

-- Steps of runs. A requested step has a due_at: the end of its lease, or the time of the answer to its request.
CREATE TABLE run_steps (
    run         text COLLATE "C" NOT NULL,
    no          integer NOT NULL, -- from 1; steps are requested in this order
    source      text COLLATE "C" NOT NULL,
    facet       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    state       text    NOT NULL, -- OPEN, DONE, NOT_FOUND, FAILED, CANCELLED
    due_at      bigint  NOT NULL, -- 0: the step waits for other steps, or has ended
    requests    integer NOT NULL DEFAULT 0, -- requests since the last answer
    fan_version bigint  NOT NULL DEFAULT 0, -- the item up to which the steps of items are added
    fan_item    text COLLATE "C" NOT NULL DEFAULT '',
    error       text    NOT NULL, -- why the step failed
    ended_at    bigint  NOT NULL,
    PRIMARY KEY (run, no)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE UNIQUE INDEX run_steps_entity ON run_steps (run, facet, key);
CREATE INDEX run_steps_due ON run_steps (source, due_at) WHERE state = 'OPEN' AND due_at > 0;
CREATE INDEX run_steps_failed ON run_steps (run, no) WHERE state = 'FAILED';

-- Times of the next scheduled runs.
CREATE TABLE run_schedules (
    source text COLLATE "C" NOT NULL,
    name   text COLLATE "C" NOT NULL,
    due_at bigint NOT NULL,
    PRIMARY KEY (source, name)
);

-- +goose Down
DROP TABLE run_schedules;
DROP TABLE run_steps;
DROP TABLE runs;
DROP TABLE walk_pages;
DROP TABLE items;
DROP TABLE collections;
DROP TABLE credit_use;
DROP TABLE credit_entries;
DROP TABLE credit_holds;
DROP TABLE credit_grants;
DROP TABLE credit_accounts;
DROP TABLE outbox;
DROP TABLE maintenance;
DROP TABLE retention_walks;
DROP TABLE schedule_state;
DROP TABLE schedule_claims;
DROP TABLE entities;
DROP TABLE tokens;
DROP TABLE api_keys;
DROP TABLE dlq_jobs;
DROP TABLE dead_letters;
DROP TABLE update_status;
DROP TABLE quota_usage;
DROP TABLE audit;
DROP TABLE settings;
DROP TABLE snapshot_payload;
DROP TABLE snapshot_state;
