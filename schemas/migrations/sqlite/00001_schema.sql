-- +goose Up
-- The tables and columns of migrations/postgres/00001_schema.sql, which explains each of them.

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
    not_found       BOOLEAN NOT NULL,
    etag            TEXT    NOT NULL,
    last_modified   TEXT    NOT NULL,
    visibility      TEXT    NOT NULL DEFAULT '',
    manual          BOOLEAN NOT NULL DEFAULT false,
    alias_not_found BOOLEAN NOT NULL DEFAULT false,
    media_type      TEXT    NOT NULL DEFAULT '',
    alias_changed   BOOLEAN NOT NULL DEFAULT false,
    alias_payload   BLOB,
    PRIMARY KEY (source, facet, key)
) WITHOUT ROWID;

CREATE TABLE snapshot_payload (
    source  TEXT NOT NULL,
    facet   TEXT NOT NULL,
    key     TEXT NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (source, facet, key)
);

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
CREATE INDEX audit_kept ON audit (at);

CREATE TABLE quota_usage (
    source     TEXT    NOT NULL,
    policy     TEXT    NOT NULL,
    day_end    INTEGER NOT NULL,
    calls      INTEGER NOT NULL,
    counted_at INTEGER NOT NULL,
    PRIMARY KEY (source, policy)
) WITHOUT ROWID;

CREATE TABLE update_status (
    source         TEXT    NOT NULL,
    facet          TEXT    NOT NULL,
    key            TEXT    NOT NULL,
    state          TEXT    NOT NULL,
    reason         TEXT    NOT NULL,
    error          TEXT    NOT NULL,
    rounds         INTEGER NOT NULL,
    failures       INTEGER NOT NULL,
    version        INTEGER NOT NULL,
    next_retry_at  INTEGER NOT NULL,
    lane           TEXT    NOT NULL,
    params         TEXT    NOT NULL,
    correlation_id TEXT    NOT NULL,
    trace_parent   TEXT    NOT NULL,
    since          INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    replay         TEXT    NOT NULL DEFAULT '',
    replays        INTEGER NOT NULL DEFAULT 0,
    depth          INTEGER NOT NULL DEFAULT 0,
    dead_alias     TEXT    NOT NULL DEFAULT '',
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
    error           TEXT    NOT NULL DEFAULT '',
    fingerprint     TEXT    NOT NULL DEFAULT '',
    status          INTEGER NOT NULL DEFAULT 0,
    replays         INTEGER NOT NULL DEFAULT 0,
    job             TEXT    NOT NULL DEFAULT '',
    visibility      TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (topic, kafka_partition, kafka_offset)
) WITHOUT ROWID;

CREATE INDEX dead_letters_open ON dead_letters (source, at, topic, kafka_partition, kafka_offset) WHERE handled = '';
CREATE INDEX dead_letters_all ON dead_letters (source, at, topic, kafka_partition, kafka_offset);
CREATE INDEX dead_letters_entity ON dead_letters (source, key, facet, at) WHERE key <> '';
CREATE INDEX dead_letters_fingerprint ON dead_letters (topic, fingerprint, kafka_partition, kafka_offset) WHERE handled = '';
-- Dead letters that a job handled.
CREATE INDEX dead_letters_job ON dead_letters (job, topic, kafka_partition, kafka_offset) WHERE job <> '';
CREATE INDEX dead_letters_kept ON dead_letters (handled_at) WHERE handled <> '';
CREATE INDEX dead_letters_open_kept ON dead_letters (at) WHERE handled = '';

CREATE TABLE dlq_jobs (
    id               TEXT    PRIMARY KEY,
    source           TEXT    NOT NULL,
    kind             TEXT    NOT NULL,
    filter           TEXT    NOT NULL,
    lane             TEXT    NOT NULL,
    rate             REAL    NOT NULL,
    max              INTEGER NOT NULL,
    note             TEXT    NOT NULL,
    state            TEXT    NOT NULL,
    total            INTEGER NOT NULL,
    done             INTEGER NOT NULL,
    refused          TEXT    NOT NULL,
    kafka_partition  INTEGER NOT NULL,
    kafka_offset     INTEGER NOT NULL,
    chunk_started_at INTEGER NOT NULL,
    holder           TEXT    NOT NULL,
    lease_until      INTEGER NOT NULL,
    error            TEXT    NOT NULL,
    created_at       INTEGER NOT NULL,
    created_by       TEXT    NOT NULL,
    updated_at       INTEGER NOT NULL,
    ended_at         INTEGER NOT NULL
);

CREATE INDEX dlq_jobs_lease ON dlq_jobs (lease_until) WHERE state = 'RUNNING' OR chunk_started_at <> 0;
CREATE UNIQUE INDEX dlq_jobs_replay ON dlq_jobs (source) WHERE kind = 'REPLAY' AND (state = 'RUNNING' OR chunk_started_at <> 0);
CREATE INDEX dlq_jobs_newest ON dlq_jobs (created_at);
CREATE INDEX dlq_jobs_kept ON dlq_jobs (updated_at) WHERE state <> 'RUNNING' AND chunk_started_at = 0;

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
CREATE INDEX api_keys_kept ON api_keys ((CASE WHEN revoked_at <> 0 THEN revoked_at ELSE expires_at END)) WHERE revoked_at <> 0 OR expires_at <> 0;

CREATE TABLE tokens (
    source        TEXT    NOT NULL,
    credential    TEXT    NOT NULL,
    generation    INTEGER NOT NULL DEFAULT 0,
    sealed        BLOB    NOT NULL DEFAULT x'',
    key_id        TEXT    NOT NULL DEFAULT '',
    expires_at    INTEGER NOT NULL DEFAULT 0,
    renew_at      INTEGER NOT NULL DEFAULT 0,
    renewed_at    INTEGER NOT NULL DEFAULT 0,
    holder        TEXT    NOT NULL DEFAULT '',
    claimed_until INTEGER NOT NULL DEFAULT 0,
    failures      INTEGER NOT NULL DEFAULT 0,
    state         TEXT    NOT NULL DEFAULT '',
    error         TEXT    NOT NULL DEFAULT '',
    since         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (source, credential)
) WITHOUT ROWID;

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
    pinned     BOOLEAN NOT NULL DEFAULT false,
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

CREATE TABLE maintenance (
    name       TEXT NOT NULL PRIMARY KEY,
    due_at     INTEGER NOT NULL DEFAULT 0,
    requested  BOOLEAN NOT NULL DEFAULT false,
    running    BOOLEAN NOT NULL DEFAULT false,
    started_at INTEGER NOT NULL DEFAULT 0,
    ended_at   INTEGER NOT NULL DEFAULT 0,
    deleted    INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE outbox (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    source         TEXT    NOT NULL,
    facet          TEXT    NOT NULL,
    key            TEXT    NOT NULL,
    version        INTEGER NOT NULL,
    at             INTEGER NOT NULL,
    before         BLOB    NOT NULL,
    after          BLOB    NOT NULL,
    publish_change BOOLEAN NOT NULL,
    triggers       TEXT    NOT NULL,
    due_at         INTEGER NOT NULL,
    quiet_facet    TEXT    NOT NULL DEFAULT '',
    latest_at      INTEGER NOT NULL DEFAULT 0,
    item           TEXT    NOT NULL DEFAULT '',
    run            TEXT    NOT NULL DEFAULT ''
);

CREATE INDEX outbox_due ON outbox (source, due_at, id);
CREATE UNIQUE INDEX outbox_quiet ON outbox (source, facet, key, quiet_facet) WHERE quiet_facet <> '';

CREATE TABLE credit_accounts (
    client      TEXT    NOT NULL PRIMARY KEY,
    plan        TEXT    NOT NULL,
    balance     INTEGER NOT NULL CHECK (balance >= 0),
    held        INTEGER NOT NULL CHECK (held >= 0),
    renews_at   INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE credit_grants (
    id          TEXT    NOT NULL PRIMARY KEY,
    client      TEXT    NOT NULL,
    amount      INTEGER NOT NULL CHECK (amount > 0),
    remaining   INTEGER NOT NULL CHECK (remaining >= 0 AND remaining <= amount),
    created_at  INTEGER NOT NULL,
    created_by  TEXT    NOT NULL,
    expires_at  INTEGER NOT NULL,
    voided      BOOLEAN NOT NULL DEFAULT false,
    note        TEXT    NOT NULL
) WITHOUT ROWID;

CREATE INDEX credit_grants_open ON credit_grants (client, expires_at) WHERE remaining > 0;
CREATE INDEX credit_grants_kept ON credit_grants (created_at) WHERE remaining = 0;

CREATE TABLE credit_holds (
    id          TEXT    NOT NULL PRIMARY KEY,
    client      TEXT    NOT NULL,
    idempotency TEXT    NOT NULL,
    source      TEXT    NOT NULL,
    facet       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    number      INTEGER NOT NULL,
    amount      INTEGER NOT NULL CHECK (amount > 0),
    state       TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    ended_at    INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE INDEX credit_holds_open ON credit_holds (expires_at, id) WHERE state = 'HELD';
CREATE INDEX credit_holds_client ON credit_holds (client, created_at) WHERE state = 'HELD';
CREATE INDEX credit_holds_idempotency ON credit_holds (idempotency, created_at) WHERE idempotency <> '';
CREATE INDEX credit_holds_kept ON credit_holds (ended_at) WHERE state <> 'HELD';

CREATE TABLE credit_entries (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    client      TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    grant_id    TEXT    NOT NULL,
    hold_id     TEXT    NOT NULL,
    amount      INTEGER NOT NULL,
    held        INTEGER NOT NULL,
    balance     INTEGER NOT NULL
);

CREATE INDEX credit_entries_client ON credit_entries (client, at);
CREATE INDEX credit_entries_hold ON credit_entries (hold_id) WHERE kind = 'hold';
CREATE INDEX credit_entries_kept ON credit_entries (at) WHERE kind <> 'opening';
CREATE UNIQUE INDEX credit_entries_opening ON credit_entries (client) WHERE kind = 'opening';

CREATE TABLE credit_use (
    client      TEXT    NOT NULL,
    hour        INTEGER NOT NULL,
    used        INTEGER NOT NULL CHECK (used > 0),
    PRIMARY KEY (client, hour)
) WITHOUT ROWID;

CREATE INDEX credit_use_hour ON credit_use (hour, client);

CREATE TABLE collections (
    source               TEXT    NOT NULL,
    facet                TEXT    NOT NULL,
    key                  TEXT    NOT NULL,
    version              INTEGER NOT NULL,
    extract_version      INTEGER NOT NULL,
    visibility           TEXT    NOT NULL,
    items                INTEGER NOT NULL CHECK (items >= 0),
    changed              INTEGER NOT NULL,
    changed_at           INTEGER NOT NULL,
    cursor_value         TEXT    NOT NULL,
    etag                 TEXT    NOT NULL,
    complete_at          INTEGER NOT NULL,
    full_at              INTEGER NOT NULL,
    full_walk            INTEGER NOT NULL,
    walk                 INTEGER NOT NULL,
    walk_at              INTEGER NOT NULL,
    walk_date            INTEGER NOT NULL,
    page                 INTEGER NOT NULL,
    position             TEXT    NOT NULL,
    checkpoint           TEXT    NOT NULL,
    walk_full            BOOLEAN NOT NULL,
    greatest             TEXT    NOT NULL,
    walk_etag            TEXT    NOT NULL,
    walk_extract_version INTEGER NOT NULL,
    walk_again           INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (source, facet, key)
) WITHOUT ROWID;

CREATE TABLE items (
    source     TEXT    NOT NULL,
    facet      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    item       TEXT    NOT NULL,
    hash       BLOB    NOT NULL,
    version    INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    deleted    BOOLEAN NOT NULL,
    encoding   TEXT    NOT NULL,
    size       INTEGER NOT NULL,
    payload    BLOB    NOT NULL,
    PRIMARY KEY (source, facet, key, item)
);

CREATE INDEX items_changed ON items (source, facet, key, version, item);
CREATE INDEX items_deleted ON items (source, facet, key, changed_at) WHERE deleted;

CREATE TABLE walk_pages (
    source TEXT    NOT NULL,
    facet  TEXT    NOT NULL,
    key    TEXT    NOT NULL,
    walk   INTEGER NOT NULL,
    page   INTEGER NOT NULL,
    items  BLOB    NOT NULL,
    PRIMARY KEY (source, facet, key, walk, page)
);

CREATE TABLE runs (
    id           TEXT NOT NULL PRIMARY KEY,
    source       TEXT NOT NULL,
    name         TEXT NOT NULL,
    scope        TEXT NOT NULL,
    keys         INTEGER NOT NULL,
    triggered_by TEXT    NOT NULL,
    definition   TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    waiting      BOOLEAN NOT NULL,
    attempt      INTEGER NOT NULL,
    since        INTEGER NOT NULL,
    attempt_at   INTEGER NOT NULL,
    total        INTEGER NOT NULL CHECK (total >= 0),
    open         INTEGER NOT NULL CHECK (open >= 0),
    done         INTEGER NOT NULL CHECK (done >= 0),
    not_found    INTEGER NOT NULL CHECK (not_found >= 0),
    failed       INTEGER NOT NULL CHECK (failed >= 0),
    cancelled    INTEGER NOT NULL CHECK (cancelled >= 0),
    started      INTEGER NOT NULL CHECK (started >= 0),
    last_started INTEGER NOT NULL,
    deadline_at  INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    ended_at     INTEGER NOT NULL,
    error        TEXT    NOT NULL,
    idempotency  TEXT NOT NULL,
    body         BLOB    NOT NULL
) WITHOUT ROWID;

CREATE UNIQUE INDEX runs_active ON runs (source, name, scope, waiting) WHERE state = 'RUNNING';
CREATE UNIQUE INDEX runs_idempotency ON runs (idempotency) WHERE idempotency <> '';
CREATE INDEX runs_newest ON runs (source, id);
CREATE INDEX runs_deadline ON runs (source, deadline_at) WHERE state = 'RUNNING' AND NOT waiting;
CREATE INDEX runs_ended ON runs (ended_at) WHERE state <> 'RUNNING';

CREATE TABLE run_steps (
    run         TEXT NOT NULL,
    no          INTEGER NOT NULL,
    source      TEXT NOT NULL,
    facet       TEXT NOT NULL,
    key         TEXT NOT NULL,
    state       TEXT    NOT NULL,
    due_at      INTEGER NOT NULL,
    requests    INTEGER NOT NULL DEFAULT 0,
    fan_version INTEGER NOT NULL DEFAULT 0,
    fan_item    TEXT NOT NULL DEFAULT '',
    error       TEXT    NOT NULL,
    ended_at    INTEGER NOT NULL,
    PRIMARY KEY (run, no)
) WITHOUT ROWID;
CREATE UNIQUE INDEX run_steps_entity ON run_steps (run, facet, key);
CREATE INDEX run_steps_due ON run_steps (source, due_at) WHERE state = 'OPEN' AND due_at > 0;
CREATE INDEX run_steps_failed ON run_steps (run, no) WHERE state = 'FAILED';

CREATE TABLE run_schedules (
    source TEXT NOT NULL,
    name   TEXT NOT NULL,
    due_at INTEGER NOT NULL,
    PRIMARY KEY (source, name)
) WITHOUT ROWID;

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
