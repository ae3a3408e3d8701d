package postgres

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
)

// sent records the statements that are sent to the database. A batch is recorded as the text
// "batch", followed by the statements of the batch.
type sent struct{ statements []string }

func (s *sent) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.statements = append(s.statements, data.SQL)
	return ctx
}
func (s *sent) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *sent) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	s.statements = append(s.statements, "batch")
	return ctx
}

func (s *sent) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	s.statements = append(s.statements, data.SQL)
}
func (s *sent) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// traced returns another store of the same database that records its statements.
func traced(t *testing.T, s *Store) (*Store, *sent) {
	t.Helper()
	config := s.pool.Config()
	log := &sent{}
	config.MaxConns, config.ConnConfig.Tracer = 1, log
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return newStore(pool, s.prepare), log
}

func TestWrite_SendsNoOutboxStatementsIfEmpty(t *testing.T) {
	s, log := traced(t, open(t))
	withEvents := func(writes []store.Write) []store.Write {
		for i := range writes {
			writes[i].Outbox.PublishChange = true
		}
		return writes
	}
	plain := []string{s.beginOptions().BeginQuery, touch, upsert, deleteStatuses, "commit"}
	for _, step := range []struct {
		name   string
		writes []store.Write
		want   []string
	}{
		{"the first", benchWrites(3, 1, 1), plain},
		{"a change", benchWrites(3, 2, 2), plain},
		{"unchanged, with events", withEvents(benchWrites(3, 3, 2)), []string{s.beginOptions().BeginQuery, touch, deleteStatuses, "commit"}},
		{"refused, with events", withEvents(benchWrites(3, 1, 3)), []string{s.beginOptions().BeginQuery, touch, "batch", lockStates, selectHashes, upsert, "commit"}},
		{"a change, with events", withEvents(benchWrites(3, 4, 3)), []string{
			s.beginOptions().BeginQuery, touch, "batch", lockStates, selectHashes, upsert, insertOutboxEvents, deleteStatuses, "commit",
		}},
	} {
		log.statements = nil
		if _, err := s.Write(t.Context(), step.writes); err != nil {
			t.Fatal(step.name, err)
		}
		if !slices.Equal(log.statements, step.want) {
			t.Errorf("%s sent %q, want %q", step.name, log.statements, step.want)
		}
	}
}

// TestOutbox_BeforeIsTheCommittedHash makes a write wait for another transaction that stores
// content of the same entity. The field Before of the write's outbox event must then be the hash of
// that content. The test covers an existing and a new entity.
func TestOutbox_BeforeIsTheCommittedHash(t *testing.T) {
	for name, known := range map[string]bool{"known": true, "new": false} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			if known {
				if _, err := s.Write(t.Context(), benchWrites(1, 1, 1)); err != nil {
					t.Fatal(err)
				}
			}
			other, mine := benchWrites(1, 2, 2)[0], benchWrites(1, 3, 3)[0]
			mine.Outbox.PublishChange = true
			tx, err := s.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(t.Context()) }()
			b := shared.NewBatch([]store.Write{other})
			if err := upsertChanged(t.Context(), s.prepared(tx), b); err != nil {
				t.Fatal(err)
			}
			written := make(chan error)
			go func() {
				_, err := s.Write(t.Context(), []store.Write{mine})
				written <- err
			}()
			waitForLock(t, s)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-written; err != nil {
				t.Fatal(err)
			}
			events, err := s.ClaimOutboxEvents(t.Context(), "s", time.UnixMicro(9), time.Minute, 9)
			if err != nil || len(events) != 1 || events[0].Before != other.Hash || events[0].After != mine.Hash {
				t.Errorf("outbox event: got %+v, %v, want Before %x and After %x", events, err, other.Hash[:3], mine.Hash[:3])
			}
		})
	}
}

// TestOutbox_RollsBackWithItsTransaction writes a key that PostgreSQL can't store. So the last
// statement of the write fails, after the outbox events were inserted. No outbox event may remain.
func TestOutbox_RollsBackWithItsTransaction(t *testing.T) {
	s := open(t)
	writes := benchWrites(3, 1, 1)
	for i := range writes {
		writes[i].Outbox.PublishChange = true
	}
	gone := store.Write{Entity: schemas.Entity{Source: "s", Facet: "f", Key: "\x00"}, Kind: store.KindNotFound, Version: 1}
	if _, err := s.Write(t.Context(), append(writes, gone)); err == nil {
		t.Fatal("a key with a NUL was written")
	}
	if at, err := s.NextOutboxTime(t.Context(), "s"); !at.IsZero() || err != nil {
		t.Errorf("next outbox time: got %v, %v", at, err)
	}
	if _, err := s.Write(t.Context(), writes); err != nil {
		t.Fatal(err)
	}
	var n, placeholders int
	if err := s.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM snapshot_state WHERE version < 0)`).
		Scan(&n, &placeholders); err != nil || n != 3 || placeholders != 0 {
		t.Errorf("after the rollback: %d outbox events and %d locked states, %v", n, placeholders, err)
	}
}
