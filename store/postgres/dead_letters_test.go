package postgres

import (
	"flag"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store/deadletters"
)

// fillDeadLetters inserts n rows of dead letters into the index. They belong to several sources with 12
// partitions each. Every fourth dead letter is handled.
func fillDeadLetters(t testing.TB, s *Store, n, sources int) {
	t.Helper()
	for _, sql := range []string{
		fmt.Sprintf(`INSERT INTO dead_letters (topic, kafka_partition, kafka_offset, source, facet, key, reason, error, fingerprint, status, attempts, at, correlation_id, handled)
			SELECT 's' || n %% %[2]d || '.update-dlq', n / %[2]d %% 12, n / %[2]d / 12, 's' || n %% %[2]d, 'f', 'key-' || n %% 5000, 'UPSTREAM_5XX', repeat('status 500 ', 20),
				'f' || n %% 40, 500, 4, n, '', CASE WHEN n %% 4 = 0 THEN 'replayed' ELSE '' END FROM generate_series(0, %[1]d - 1) n`, n, sources),
		`INSERT INTO dlq_jobs SELECT n::text, 's0', 'REPLAY', '{}', 'LOW', 0, 0, '', 'DONE', 0, 0, '{}', 0, 0, 0, '', n, '', n, '', n, n FROM generate_series(1, 5000) n`,
		`VACUUM ANALYSE`,
	} {
		if _, err := s.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPlans_DeadLettersUseIndexes checks that each statement that runs regularly, or for a page of
// the console, uses an index.
func TestPlans_DeadLettersUseIndexes(t *testing.T) {
	s := open(t)
	fillDeadLetters(t, s, 40_000, 40)
	f := deadletters.Filter{Source: "s7", Handled: deadletters.Open}
	ofKey, all, alike := f, f, f
	ofKey.Key, all.Handled, alike.Fingerprint = "key-7", "", "f7"
	id := deadletters.ID{Topic: schemas.DeadLetterTopic("s7"), Partition: 3, Offset: 40}
	behind := deadletters.DeadLetter{ID: id, At: time.UnixMicro(30_000)}
	type statement struct {
		sql  string
		args []any
	}
	made := func(sql string, args []any) statement { return statement{sql, args} }
	j := deadletters.Job{ID: "7", Lease: deadletters.JobLease{Holder: "x", Until: time.UnixMicro(7)}}
	advance, err := j.ProgressArgs()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		statement
		index string
	}{
		"list":                      {made(f.SelectNewest(deadletters.DeadLetter{}, 100)), "dead_letters_"},
		"next page":                 {made(f.SelectNewest(behind, 100)), "dead_letters_"},
		"list all":                  {made(all.SelectNewest(behind, 100)), "dead_letters_"},
		"list of a key":             {made(ofKey.SelectNewest(deadletters.DeadLetter{}, 100)), "dead_letters_"},
		"by offset":                 {made(f.SelectByOffset(id, 500)), "dead_letters_"},
		"by offset and fingerprint": {made(alike.SelectByOffset(id, 500)), "dead_letters_fingerprint"},
		"group":                     {made(f.SelectGroups(1000)), "dead_letters_"},
		"prefixes":                  {statement{deadletters.SelectHandledPrefixes, []any{id.Topic, 5, 5}}, "dead_letters_pkey"},
		"forget":                    {statement{deadletters.DeleteBefore, []any{id.Topic, 3, 40, 1000}}, "dead_letters_pkey"},
		"handle":                    {statement{deadletters.UpdateDisposition, id.DispositionArgs(deadletters.Disposition{})}, "dead_letters_pkey"},
		"free job":                  {made(deadletters.SelectUnleasedJob([]string{"s0", "s7"}, time.UnixMicro(1<<50))), "dlq_jobs_lease"},
		"next job":                  {made(deadletters.SelectNextLeaseEnd([]string{"s0", "s7"})), "dlq_jobs_lease"},
		"newest jobs":               {statement{deadletters.SelectJobs, []any{100}}, "dlq_jobs_newest"},
		"job":                       {statement{deadletters.SelectJob, []any{"7"}}, "dlq_jobs_pkey"},
		"lease":                     {statement{deadletters.LeaseJob, j.LeaseArgs(deadletters.JobLease{Holder: "x", Until: time.UnixMicro(9)})}, "dlq_jobs_"},
		"advance":                   {statement{deadletters.UpdateJobProgress, advance}, "dlq_jobs_pkey"},
	} {
		if p := plan(t, s, "COSTS", test.sql, test.args...); strings.Contains(p, "Seq Scan") || !strings.Contains(p, test.index) {
			t.Errorf("%s:\n%s", name, p)
		}
	}
}

var long = flag.Bool("long", false, "run the tests that take minutes")

// TestAMillionDeadLetters measures queries over a million dead letters of one source.
func TestAMillionDeadLetters(t *testing.T) {
	if !*long {
		t.Skip("a million rows take a minute to write: make e2e-long")
	}
	url := servicetest.PostgresCopy(t, &template)
	s, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const n = 1_000_000
	fillDeadLetters(t, s, n, 1)
	f := deadletters.Filter{Source: "s0", Handled: deadletters.Open}
	took := func(what string, limit time.Duration, do func() error) {
		t.Helper()
		began := time.Now()
		if err := do(); err != nil {
			t.Fatal(what, err)
		}
		d := time.Since(began)
		if t.Logf("%s: %v", what, d.Round(time.Millisecond)); d > limit {
			t.Errorf("%s took %v, want at most %v", what, d, limit)
		}
	}
	took("newest page", time.Second, func() error { _, err := s.DeadLetters(t.Context(), f, deadletters.DeadLetter{}, 1000); return err })
	took("page in the middle", time.Second, func() error {
		_, err := s.DeadLetters(t.Context(), f, deadletters.DeadLetter{At: time.UnixMicro(n / 2)}, 1000)
		return err
	})
	took("groups", 5*time.Second, func() error { _, err := s.DeadLetterGroups(t.Context(), f, 1000); return err })
	took("prefixes", 5*time.Second, func() error {
		_, err := s.HandledPrefixes(t.Context(), schemas.DeadLetterTopic("s0"), time.Now(), time.Now())
		return err
	})
	took("walk along all", 3*time.Minute, func() error {
		runtime.GC()
		var before, now runtime.MemStats
		runtime.ReadMemStats(&before)
		seen, peak := 0, uint64(0)
		for at := (deadletters.ID{Partition: -1}); ; {
			page, err := s.DeadLettersByOffset(t.Context(), f, at, 500)
			if err != nil || len(page) == 0 {
				t.Logf("%d dead letters, %d MiB of heap", seen, (max(peak, before.HeapAlloc)-before.HeapAlloc)>>20)
				if seen != n*3/4 || peak > before.HeapAlloc+64<<20 {
					t.Errorf("dead letters: got %d, want %d; peak heap %d bytes", seen, n*3/4, peak)
				}
				return err
			}
			seen, at = seen+len(page), page[len(page)-1].ID
			if seen%50_000 < 500 {
				runtime.ReadMemStats(&now)
				peak = max(peak, now.HeapAlloc)
			}
		}
	})
}
