package postgres

import (
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const benchBatch = 100

// benchWrites returns a batch of writes with payloads of 4.7 KB.
func benchWrites(n int, version int64, content int) []store.Write {
	payload := make([]byte, 4700)
	for i := range payload {
		payload[i] = byte(i * i * 31 >> 3)
	}
	writes := make([]store.Write, n)
	for i := range writes {
		writes[i] = store.Write{
			Entity: schemas.Entity{Source: "s", Facet: "f", Key: fmt.Sprintf("key-%08d", i)}, Version: version,
			CheckedAt: time.UnixMicro(version), Hash: sha256.Sum256(fmt.Append(nil, i, content)),
			Payload: func() (store.Payload, error) {
				return store.Payload{Encoding: store.Zstd, Bytes: payload, Size: 17_000}, nil
			},
		}
	}
	return writes
}

// versus compares a write by the store (ours) with plain SQL statements that have the same effect
// (bare). It runs both in turn on the same tables and reports the rows per second of each.
func versus(b *testing.B, s *Store, ours func(version int64) error, bare func(ctx context.Context, version int64) error) {
	b.Helper()
	var inStore, inBare time.Duration
	version, rows := int64(10), 0
	for b.Loop() {
		version += 2
		rows += benchBatch
		start := time.Now()
		if err := ours(version); err != nil {
			b.Fatal(err)
		}
		inStore += time.Since(start)
		start = time.Now()
		if err := bare(b.Context(), version+1); err != nil {
			b.Fatal(err)
		}
		inBare += time.Since(start)
	}
	b.ReportMetric(float64(rows)/inStore.Seconds(), "rows/s")
	b.ReportMetric(float64(rows)/inBare.Seconds(), "bare-rows/s")
	b.ReportMetric(inBare.Seconds()/inStore.Seconds(), "×bare")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkTouch(b *testing.B) {
	s := open(b)
	if _, err := s.Write(b.Context(), benchWrites(benchBatch, 1, 0)); err != nil {
		b.Fatal(err)
	}
	var c columns
	for _, w := range benchWrites(benchBatch, 1, 0) {
		c.add(w)
	}
	versus(b, s, func(version int64) error {
		_, err := s.Write(b.Context(), benchWrites(benchBatch, version, 0))
		return err
	}, func(ctx context.Context, version int64) error {
		_, err := s.pool.Exec(ctx, `UPDATE snapshot_state s SET version = $4, last_checked_at = $4
			FROM unnest($1::text[], $2::text[], $3::text[]) AS i (source, facet, key)
			WHERE s.source = i.source AND s.facet = i.facet AND s.key = i.key`, c.sources, c.facets, c.keys, version)
		return err
	})
}

func BenchmarkUpsert(b *testing.B) {
	s := open(b)
	var c columns
	var payloads [][]byte
	for _, w := range benchWrites(benchBatch, 1, 0) {
		p, err := w.Payload()
		if err != nil {
			b.Fatal(err)
		}
		c.add(w)
		payloads = append(payloads, p.Bytes)
	}
	content := 0
	versus(b, s, func(version int64) error {
		content++
		_, err := s.Write(b.Context(), benchWrites(benchBatch, version, content))
		return err
	}, func(ctx context.Context, version int64) error {
		tx, err := s.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		if _, err := tx.Exec(ctx, `INSERT INTO snapshot_state (source, facet, key, version, hash, extract_version, encoding, size,
				last_fetched_at, last_checked_at, last_updated_at, not_found, etag, last_modified)
			SELECT source, facet, key, $5, hash, 0, 'zstd', 17000, $5, $5, $5, false, '', ''
			FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[]) AS i (source, facet, key, hash)
			ON CONFLICT (source, facet, key) DO UPDATE SET version = excluded.version, hash = excluded.hash, last_checked_at = excluded.last_checked_at`,
			c.sources, c.facets, c.keys, c.hashes, version); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO snapshot_payload (source, facet, key, payload)
			SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[])
			ON CONFLICT (source, facet, key) DO UPDATE SET payload = excluded.payload`, c.sources, c.facets, c.keys, payloads); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})
}
