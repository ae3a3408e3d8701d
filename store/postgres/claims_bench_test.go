package postgres

import (
	"encoding/json"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
)

// tickBatch is how many entities one tick claims: as many as a source with 250 calls per second
// fetches in one second.
const tickBatch = 250

// ticks is a schedule of n entities. Their due times are one millisecond apart and before the time
// "now", so all entities are due. Each claim of an entity moves its due time by n milliseconds, so
// that the entity is due after all other entities.
type ticks struct {
	s   *Store
	n   int
	now time.Time
}

func (k *ticks) move(c prefetched.Candidate) prefetched.Decision {
	return prefetched.Decision{Due: c.Due.Add(time.Duration(k.n) * time.Millisecond), Tier: c.Tier, History: c.History, Enqueue: true}
}

// tick claims the next tickBatch entities and finishes the claim. It returns the duration of
// ClaimEntities.
func (k *ticks) tick(t testing.TB) time.Duration {
	t.Helper()
	start := time.Now()
	c, err := k.s.ClaimEntities(t.Context(), "s", k.now, tickBatch, time.Minute, nil, k.move)
	took := time.Since(start)
	if err != nil || len(c.Requests) != tickBatch {
		t.Fatal(len(c.Requests), err)
	}
	if err := k.s.FinishClaim(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	return took
}

// buffers runs the statements of a tick and returns the number of database pages that each
// statement touched.
func (k *ticks) buffers(t testing.TB) (pages map[string]int) {
	t.Helper()
	pages = map[string]int{}
	err := pgx.BeginTxFunc(t.Context(), k.s.pool, indexOnly, func(tx pgx.Tx) error {
		explain := func(name, sql string, args ...any) error {
			var text []byte
			if err := tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&text); err != nil {
				return err
			}
			var plans []struct {
				Plan struct {
					Hit  int `json:"Shared Hit Blocks"`
					Read int `json:"Shared Read Blocks"`
				}
			}
			if err := json.Unmarshal(text, &plans); err != nil {
				return err
			}
			pages[name] = plans[0].Plan.Hit + plans[0].Plan.Read
			pages["all"] += pages[name]
			return nil
		}
		var due []prefetched.Candidate
		if err := explain("lock", claimDueEntities, "s", k.now.UnixMicro(), tickBatch); err != nil {
			return err
		}
		rows, err := tx.Query(t.Context(), claimDueEntities, "s", k.now.UnixMicro(), tickBatch)
		if err != nil {
			return err
		}
		for rows.Next() {
			var c prefetched.Candidate
			if err := c.ScanEntity(rows.Scan); err != nil {
				return err
			}
			due = append(due, c)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		var cols entities
		for _, c := range due {
			cols.add(c.Entity)
		}
		if err := explain("states", selectStates, cols.sources, cols.facets, cols.keys); err != nil {
			return err
		}
		if err := explain("statuses", selectStatuses, cols.sources, cols.facets, cols.keys); err != nil {
			return err
		}
		var c prefetched.Claim
		return explain("move", updateEntities, c.Decide(due, k.move).Columns("s")...)
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// TestTick_CostIsIndependentOfTableSize compares the database pages that a tick (a claim of
// tickBatch due entities) touches in a small and in a large table. In the large table a tick may
// touch at most twice as many pages, also after 40 ticks. The test can't require equal numbers: a
// tick also reads dead rows of earlier ticks, and how many of them PostgreSQL has removed depends on
// other activity of the server.
func TestTick_CostIsIndependentOfTableSize(t *testing.T) {
	if testing.Short() {
		t.Skip("fills large tables")
	}
	pages := func(n int) (first, later int) {
		s := open(t)
		fillEntities(t, s, n)
		k := &ticks{s, n, time.UnixMicro(1 << 50)}
		first = k.buffers(t)["all"]
		for range 40 {
			k.tick(t)
		}
		return first, k.buffers(t)["all"]
	}
	few, fewLater := pages(10_000)
	many, manyLater := pages(100_000)
	t.Logf("pages of a tick of %d: of 10,000 entities %d, after 40 ticks %d; of 100,000 %d, after 40 ticks %d",
		tickBatch, few, fewLater, many, manyLater)
	if many > 2*few || manyLater > 2*fewLater {
		t.Error("a tick touches more pages in the larger table")
	}
}

var maxEntities = flag.Int("entities", 1_000_000, "number of entities in the larger table of the schedule's benchmarks")

// entityCounts returns the numbers of entities in the tables that the benchmarks compare.
func entityCounts() []int { return []int{10_000, *maxEntities} }

// BenchmarkTick measures ticks. One tick claims tickBatch due entities and finishes the claim. The
// benchmark also counts the database pages that one tick touches, before and after all these ticks.
func BenchmarkTick(b *testing.B) {
	for _, n := range entityCounts() {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := open(b)
			fillEntities(b, s, n)
			k := &ticks{s, n, time.UnixMicro(1 << 50)}
			first := k.buffers(b)
			b.Log("at first", first)
			var took time.Duration
			made := 0
			for b.Loop() {
				took += k.tick(b)
				made++
			}
			b.ReportMetric(float64(took.Microseconds())/1000/float64(made), "ms/tick")
			b.ReportMetric(float64(first["all"]), "pages")
			last := k.buffers(b)
			b.Log("after", made, "ticks", last)
			b.ReportMetric(float64(last["all"]), "pages-at-last")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkTickBesideALongTransaction measures ticks (claims of tickBatch due entities) while another
// transaction is open. Because of that transaction PostgreSQL can't remove or mark dead rows.
func BenchmarkTickBesideALongTransaction(b *testing.B) {
	s := open(b)
	fillEntities(b, s, 200_000)
	tx, err := s.pool.BeginTx(b.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = tx.Rollback(b.Context()) }()
	if _, err := tx.Exec(b.Context(), "SELECT count(*) FROM schedule_state"); err != nil {
		b.Fatal(err)
	}
	k := &ticks{s, 200_000, time.UnixMicro(1 << 50)}
	var took time.Duration
	made := 0
	for b.Loop() {
		took += k.tick(b)
		made++
	}
	b.ReportMetric(float64(took.Microseconds())/1000/float64(made), "ms/tick")
	b.Log("after", made, "ticks", k.buffers(b))
	b.ReportMetric(0, "ns/op")
}

// BenchmarkImport measures the registration of unknown entities, with the store's statement
// (unnest) and, for comparison, by COPY into a temporary table. The benchmark "unnest, half known"
// registers each entity twice; the second registration finds the entity stored already.
func BenchmarkImport(b *testing.B) {
	const batch = 5000
	all := func(round int) []prefetched.RegisteredEntity {
		rs := make([]prefetched.RegisteredEntity, batch)
		for i := range rs {
			rs[i] = prefetched.RegisteredEntity{
				Entity: schemas.Entity{Source: "s", Facet: "f", Key: fmt.Sprintf("%08x-%d", uint32((round*batch+i)*2654435761), round)},
				Params: map[string]string{"ocid": "0123456789abcdef"}, Enabled: true, Due: time.UnixMicro(int64(round*batch + i)),
			}
		}
		return rs
	}
	rate := func(b *testing.B, rounds int, took time.Duration) {
		b.ReportMetric(float64(rounds*batch)/took.Seconds(), "rows/s")
		b.ReportMetric(0, "ns/op")
	}
	run := func(name string, times int, write func(s *Store, rs []prefetched.RegisteredEntity) error) {
		b.Run(name, func(b *testing.B) {
			s := open(b)
			var took time.Duration
			rounds := 0
			for b.Loop() {
				rs := all(rounds)
				for range times {
					start := time.Now()
					if err := write(s, rs); err != nil {
						b.Fatal(err)
					}
					took += time.Since(start)
				}
				rounds++
			}
			rate(b, rounds*times, took)
		})
	}
	unnest := func(s *Store, rs []prefetched.RegisteredEntity) error {
		_, err := s.RegisterEntities(b.Context(), rs)
		return err
	}
	run("unnest", 1, unnest)
	run("unnest, half known", 2, unnest)
	run("copy", 1, func(s *Store, rs []prefetched.RegisteredEntity) error { return copied(b, s, rs) })
}

// copied registers entities by COPY into a temporary table and an INSERT from there, in one
// transaction.
func copied(b *testing.B, s *Store, rs []prefetched.RegisteredEntity) error {
	columns := []string{
		"source", "facet", "key", "params", "tier", "enabled", "due_at",
		"claimed_at", "updated_at", "changes", "watched", "reads", "read_at",
	}
	return pgx.BeginFunc(b.Context(), s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(b.Context(), `CREATE TEMPORARY TABLE imported (LIKE entities) ON COMMIT DROP`); err != nil {
			return err
		}
		rs = prefetched.SortRegisteredEntities(rs)
		_, err := tx.CopyFrom(b.Context(), pgx.Identifier{"imported"}, columns, pgx.CopyFromSlice(len(rs), func(i int) ([]any, error) {
			return rs[i].InsertArgs()
		}))
		if err != nil {
			return err
		}
		_, err = tx.Exec(b.Context(), prefetched.InsertEntity+` SELECT * FROM imported`+prefetched.OnConflictReplace)
		return err
	})
}

// BenchmarkWalk measures how fast DeleteExpired examines snapshots if none of them has expired.
func BenchmarkWalk(b *testing.B) {
	const limit = 5000
	s := open(b)
	fillEntities(b, s, 200_000)
	examined := 0
	start := time.Now()
	for b.Loop() {
		n, done, err := s.DeleteExpired(b.Context(), "s", "f", time.UnixMicro(1), time.UnixMicro(1), limit)
		if n != 0 || err != nil {
			b.Fatal(n, err)
		}
		if !done {
			examined += limit
		}
	}
	b.ReportMetric(float64(examined)/time.Since(start).Seconds(), "rows/s")
	b.ReportMetric(0, "ns/op")
}
