package postgres

import (
	"errors"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
)

// fillLetters fills the index with n letters of so many sources, on 12 partitions each, one
// in four of them handled.
func fillLetters(t testing.TB, s *Store, n, sources int) {
	t.Helper()
	for _, sql := range []string{
		fmt.Sprintf(`INSERT INTO dead_letters (topic, kafka_partition, kafka_offset, source, facet, key, reason, error, fingerprint, status, attempts, at, correlation_id, handled)
			SELECT 's' || n %% %[2]d || '.update-dlq', n / %[2]d %% 12, n / %[2]d / 12, 's' || n %% %[2]d, 'f', 'key-' || n %% 5000, 'UPSTREAM_5XX', repeat('status 500 ', 20),
				'f' || n %% 40, 500, 4, n, '', CASE WHEN n %% 4 = 0 THEN 'replayed' ELSE '' END FROM generate_series(0, %[1]d - 1) n`, n, sources),
		`INSERT INTO letter_jobs SELECT n::text, 's0', 'REPLAY', '{}', 'LOW', 0, 0, '', 'DONE', 0, 0, '{}', 0, 0, 0, '', n, '', n, '', n, n FROM generate_series(1, 5000) n`,
		`VACUUM ANALYSE`,
	} {
		if _, err := s.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNothingAboutLettersReadsAWholeTable looks at how each statement is carried out that
// is asked for pages, or regularly.
func TestNothingAboutLettersReadsAWholeTable(t *testing.T) {
	s := open(t)
	fillLetters(t, s, 40_000, 40)
	f := store.LetterFilter{Source: "s7", Handled: store.OpenLetters}
	ofKey, all, alike := f, f, f
	ofKey.Key, all.Handled, alike.Fingerprint = "key-7", "", "f7"
	id := store.LetterID{Topic: schemas.DeadLetterTopic("s7"), Partition: 3, Offset: 40}
	behind := store.Letter{LetterID: id, At: time.UnixMicro(30_000)}
	type statement struct {
		sql  string
		args []any
	}
	made := func(sql string, args []any) statement { return statement{sql, args} }
	j := store.LetterJob{ID: "7", Holder: "x", Lease: time.UnixMicro(7)}
	advance, err := j.AdvanceArgs()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		statement
		index string
	}{
		"list":          {made(f.SelectLetters(store.Letter{}, 100)), "dead_letters_"},
		"next page":     {made(f.SelectLetters(behind, 100)), "dead_letters_"},
		"list all":      {made(all.SelectLetters(behind, 100)), "dead_letters_"},
		"list of a key": {made(ofKey.SelectLetters(store.Letter{}, 100)), "dead_letters_"},
		"walk":          {made(f.WalkLetters(id, 500)), "dead_letters_"},
		"walk alike":    {made(alike.WalkLetters(id, 500)), "dead_letters_alike"},
		"group":         {made(f.GroupLetters(1000)), "dead_letters_"},
		"prefixes":      {statement{store.SelectPrefixes, []any{id.Topic, 5, 5}}, "dead_letters_pkey"},
		"forget":        {statement{store.ForgetLetters, []any{id.Topic, 3, 40, 1000}}, "dead_letters_pkey"},
		"handle":        {statement{store.HandleLetter, id.HandleArgs(store.Handling{})}, "dead_letters_pkey"},
		"free job":      {made(store.SelectFreeJob([]string{"s0", "s7"}, time.UnixMicro(1<<50))), "letter_jobs_live"},
		"next job":      {made(store.SelectNextJob([]string{"s0", "s7"})), "letter_jobs_live"},
		"newest jobs":   {statement{store.SelectJobs, []any{100}}, "letter_jobs_newest"},
		"job":           {statement{store.SelectJob, []any{"7"}}, "letter_jobs_pkey"},
		"hold":          {statement{store.HoldJob, j.HoldArgs("x", time.UnixMicro(9))}, "letter_jobs_"},
		"advance":       {statement{store.AdvanceJob, advance}, "letter_jobs_pkey"},
	} {
		if p := plan(t, s, "COSTS", test.sql, test.args...); strings.Contains(p, "Seq Scan") || !strings.Contains(p, test.index) {
			t.Errorf("%s:\n%s", name, p)
		}
	}
}

// TestLettersAreMigratedBesideAWorkerThatWritesAFailure: it takes the status before the letter,
// and whoever took them the other way round would wait for it in a circle.
func TestLettersAreMigratedBesideAWorkerThatWritesAFailure(t *testing.T) {
	url := servicetest.Postgres(t)
	err := withProvider(url, func(p *goose.Provider) error {
		_, err := p.UpTo(t.Context(), 7)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `DELETE FROM update_status`); err != nil {
		t.Fatal(err)
	}
	migrated := make(chan error, 1)
	go func() {
		_, err := Migrate(t.Context(), url)
		migrated <- err
	}()
	for waits := 0; waits == 0; {
		err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'update_status'::regclass`).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = tx.Exec(t.Context(), `DELETE FROM dead_letters`)
	if err := errors.Join(err, tx.Commit(t.Context()), <-migrated); err != nil {
		t.Error(err)
	}
}

var long = flag.Bool("long", false, "run the tests that take minutes")

// TestAMillionLetters measures queries over a million dead letters of one source.
func TestAMillionLetters(t *testing.T) {
	if !*long {
		t.Skip("a million rows take a minute to write: make e2e-long")
	}
	url := servicetest.Postgres(t)
	if _, err := Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const n = 1_000_000
	fillLetters(t, s, n, 1)
	f := store.LetterFilter{Source: "s0", Handled: store.OpenLetters}
	took := func(what string, most time.Duration, do func() error) {
		t.Helper()
		began := time.Now()
		if err := do(); err != nil {
			t.Fatal(what, err)
		}
		d := time.Since(began)
		if t.Logf("%s: %v", what, d.Round(time.Millisecond)); d > most {
			t.Errorf("%s took %v, no more than %v is bearable", what, d, most)
		}
	}
	took("newest page", time.Second, func() error { _, err := s.Letters(t.Context(), f, store.Letter{}, 1000); return err })
	took("page in the middle", time.Second, func() error {
		_, err := s.Letters(t.Context(), f, store.Letter{At: time.UnixMicro(n / 2)}, 1000)
		return err
	})
	took("groups", 5*time.Second, func() error { _, err := s.GroupLetters(t.Context(), f, 1000); return err })
	took("prefixes", 5*time.Second, func() error {
		_, err := s.LetterPrefixes(t.Context(), schemas.DeadLetterTopic("s0"), time.Now(), time.Now())
		return err
	})
	took("walk along all", 3*time.Minute, func() error {
		runtime.GC()
		var before, now runtime.MemStats
		runtime.ReadMemStats(&before)
		seen, most := 0, uint64(0)
		for at := (store.LetterID{Partition: -1}); ; {
			page, err := s.WalkLetters(t.Context(), f, at, 500)
			if err != nil || len(page) == 0 {
				t.Logf("%d letters, %d MiB of heap besides", seen, (max(most, before.HeapAlloc)-before.HeapAlloc)>>20)
				if seen != n*3/4 || most > before.HeapAlloc+64<<20 {
					t.Errorf("%d letters with %d bytes", seen, most)
				}
				return err
			}
			seen, at = seen+len(page), page[len(page)-1].LetterID
			if seen%50_000 < 500 {
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc)
			}
		}
	})
}
