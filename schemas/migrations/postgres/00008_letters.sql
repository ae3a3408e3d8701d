-- +goose Up
-- Whatever reads or writes these tables waits behind who waits for them.
SET LOCAL lock_timeout = '10s';

-- The tables come in the order in which a worker that writes a failure takes them.
-- A retry goes on with the replay that its request came by.
ALTER TABLE update_status
    ADD COLUMN replay  text    NOT NULL DEFAULT '',
    ADD COLUMN replays integer NOT NULL DEFAULT 0;

-- What is listed and grouped of a dead letter without reading it.
ALTER TABLE dead_letters
    ADD COLUMN error       text    NOT NULL DEFAULT '', -- its beginning
    ADD COLUMN fingerprint text    NOT NULL DEFAULT '', -- the same for errors that differ in keys and numbers; empty: from before it was computed
    ADD COLUMN status      integer NOT NULL DEFAULT 0,  -- of the upstream's last answer; 0 if there was none
    ADD COLUMN replays     integer NOT NULL DEFAULT 0,  -- how often what failed had been replayed
    ADD COLUMN job         text    NOT NULL DEFAULT ''; -- that handled it

-- The letters of one entity, and the open ones of one error, in the order in which jobs walk
-- along them.
CREATE INDEX dead_letters_of ON dead_letters (source, key, facet, at) WHERE key <> '';
CREATE INDEX dead_letters_alike ON dead_letters (topic, fingerprint, kafka_partition, kafka_offset) WHERE handled = '';

-- What is being done, or was, about many letters: one process at a time walks along
-- them, partition by partition, and says in the same transaction which it handled and
-- how far it is, so that any other goes on where it died.
CREATE TABLE letter_jobs (
    id              text PRIMARY KEY,
    source          text COLLATE "C" NOT NULL,
    kind            text    NOT NULL, -- REPLAY, PURGE
    filter          json    NOT NULL,
    lane            text    NOT NULL, -- of a replay; empty for a purge
    rate            double precision NOT NULL, -- letters a second; 0: as many as go
    most            bigint  NOT NULL, -- letters; 0: all
    note            text    NOT NULL,
    state           text    NOT NULL, -- RUNNING, STOPPED, DONE
    total           bigint  NOT NULL, -- letters that matched when it was ordered
    done            bigint  NOT NULL,
    refused         json    NOT NULL, -- letters that stay open, by why
    kafka_partition integer NOT NULL, -- of the last letter that was looked at
    kafka_offset    bigint  NOT NULL,
    chunk_at        bigint  NOT NULL, -- when the letters behind it began to be asked for; 0: none is
    holder          text    NOT NULL, -- the process that works on it
    lease           bigint  NOT NULL, -- until when it alone does
    error           text    NOT NULL, -- why it waits
    created_at      bigint  NOT NULL,
    created_by      text    NOT NULL,
    updated_at      bigint  NOT NULL,
    ended_at        bigint  NOT NULL
);
-- Those that somebody must work on: of one that was stopped in a chunk, what it asked for
-- is yet to be found out.
CREATE INDEX letter_jobs_live ON letter_jobs (lease) WHERE state = 'RUNNING' OR chunk_at <> 0;
-- Two replays could choose the same letters, and would both ask for them.
CREATE UNIQUE INDEX letter_jobs_alone ON letter_jobs (source) WHERE kind = 'REPLAY' AND (state = 'RUNNING' OR chunk_at <> 0);
CREATE INDEX letter_jobs_newest ON letter_jobs (created_at);

-- +goose Down
SET LOCAL lock_timeout = '10s';
DROP TABLE letter_jobs;
ALTER TABLE update_status DROP COLUMN replay, DROP COLUMN replays;
DROP INDEX dead_letters_alike;
DROP INDEX dead_letters_of;
ALTER TABLE dead_letters DROP COLUMN error, DROP COLUMN fingerprint, DROP COLUMN status, DROP COLUMN replays, DROP COLUMN job;
