package e2e

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

const (
	storedPayloads = "SELECT count(*) FROM snapshot_payload"
	checkedSince   = "SELECT count(*) FROM snapshot_state WHERE last_checked_at >= $1"
	uncheckedSince = "SELECT key, '' FROM snapshot_state WHERE last_checked_at < $1"
	updatedSince   = "SELECT count(*) FROM snapshot_state WHERE last_updated_at >= $1"
	// payloadVersions selects the columns xmin and ctid of each payload row. PostgreSQL changes at
	// least one of them with every write of the row.
	payloadVersions = "SELECT key, xmin::text || ctid::text FROM snapshot_payload"
)

// minSustained is the number of calls per second that one worker must reach. The quota allows 450.
const minSustained = 440

// judgeContract checks that the calls that the upstream received stay within its quota, and that the
// upstream received the expected number of calls.
func (f *fleet) judgeContract(s simulator.Stats, arrivals int) {
	f.Helper()
	sustained := 0.0
	if s.Sustained != nil {
		sustained = *s.Sustained
	}
	f.Logf("%d arrivals, %.1f a second between the 500th and the last but 500, at most %d in a sliding second, at most %d for one entity",
		s.Arrivals, sustained, s.MaxInSlidingSecond, s.MaxPerKeyAndPath)
	atMost(f, "calls in a sliding second", s.MaxInSlidingSecond, 500)
	equal(f, "refused calls", s.Refused, 0)
	equal(f, "answers with 429", s.ByStatus[http.StatusTooManyRequests], 0)
	equal(f, "calls", s.Arrivals, arrivals)
	equal(f, "calls of paths that are not configured", s.UnknownPathCalls, 0)
	equal(f, "calls with parameters that are not configured", s.UnknownParameterCalls, 0)
}

// pairs runs a query that returns two columns. The map that it returns has the values of the first
// column as keys, and the values of the second column as values.
func (f *fleet) pairs(sql string, args ...any) map[string]string {
	f.Helper()
	rows, err := f.db.Query(f.Context(), sql, args...)
	f.check(err)
	defer rows.Close()
	all := map[string]string{}
	for rows.Next() {
		var key, value string
		f.check(rows.Scan(&key, &value))
		all[key] = value
	}
	f.check(rows.Err())
	return all
}

// changedKeys returns the keys whose document differs after a change of the given percentage of all
// documents. It uses a second simulator with the same seed.
func changedKeys(t *testing.T, keys []string, percent float64) map[string]bool {
	t.Helper()
	s := simulator.New(simulator.Config{Seed: 1})
	defer s.Close()
	body := func(key string) string { return get(t, s, "/maplestory/v1/character/item-equipment?ocid="+key) }
	before := make(map[string]string, len(keys))
	for _, key := range keys {
		before[key] = body(key)
	}
	if err := s.Control(simulator.Control{ChangePercent: percent}); err != nil {
		t.Fatal(err)
	}
	changed := map[string]bool{}
	for _, key := range keys {
		if body(key) != before[key] {
			changed[key] = true
		}
	}
	return changed
}

// get returns the body of a handler's response.
func get(t *testing.T, h http.Handler, target string) string {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
	return rec.Body.String()
}

// refreshedKeys is the number of entities in a test. The quota allows this number of calls in
// about ten seconds.
const refreshedKeys = 5000

func TestRefresh_FetchesEachMissingEntityOnce(t *testing.T) {
	parallelUnlessQuiet(t)
	f := newFleet(t, "--latency", "30ms-1.7s")
	f.worker()
	api, keys := f.query(), harness.Keys("c", refreshedKeys)

	first := f.read(api, keys, 100) // not all responses are UPDATING: a read that is repeated after a 503 may already find the snapshot
	equal(t, "first answers that are UPDATING or FRESH", first["UPDATING"]+first["FRESH"], refreshedKeys)
	f.untilStored(90*time.Second, refreshedKeys)
	f.untilCommitted()
	equal(t, "answers that are FRESH afterwards", f.read(api, keys, 100)["FRESH"], refreshedKeys)

	stats := f.stats()
	f.judgeContract(stats, refreshedKeys)
	equal(t, "entities", stats.DistinctKeys, refreshedKeys)
	equal(t, "calls for one entity", stats.MaxPerKeyAndPath, 1)
	equal(t, "dead letters", f.deadLetters(), 0)
	if *quietMachine && stats.Sustained != nil {
		atLeast(t, "calls a second", *stats.Sustained, minSustained)
	}
}

// All entities are stale, and the upstream has changed the documents of half of them. The worker
// must write the payloads of the changed documents only.
func TestRefresh_WritesOnlyChangedPayloads(t *testing.T) {
	parallelUnlessQuiet(t)
	f := newFleet(t, "--latency", "30ms-300ms")
	f.worker()
	const n = refreshedKeys / 2
	api, keys := f.query(), harness.Keys("c", n)
	f.read(api, keys, 100)
	f.untilStored(90*time.Second, n)
	f.untilCommitted()

	f.control(simulator.Control{ChangePercent: 50})
	f.check(f.Reset(t.Context()))
	before, began := f.pairs(payloadVersions), time.Now()
	stale, err := f.Query(t.Context(), "query-of-stale", "1ms")
	f.check(err)
	equal(t, "answers that are STALE", f.readTagged(stale, keys, 100, "*")["STALE"], n)
	requested := time.Now()
	f.until(90*time.Second, "a check of each entity", func() bool {
		checked := f.one(checkedSince, began.UnixMicro())
		if checked < n && time.Since(requested) > 20*time.Second { // read again if keys are not checked after 20 s: on a busy machine a request that Kafka has not acknowledged may be lost
			f.readTagged(stale, slices.Collect(maps.Keys(f.pairs(uncheckedSince, began.UnixMicro()))), 100, "*")
			requested = time.Now()
		}
		return checked == n
	})
	f.untilCommitted()
	f.judgeContract(f.stats(), n)

	want := changedKeys(t, keys, 50)
	if got := len(want); got < n*45/100 || got > n*55/100 {
		t.Fatalf("changed documents of the simulator: got %d, want about half of %d", got, n)
	}
	wrong := 0
	for key, version := range f.pairs(payloadVersions) {
		if (version != before[key]) != want[key] {
			wrong++
		}
	}
	equal(t, "payloads written without a change, or not written after one", wrong, 0)
	equal(t, "entities that count as changed", f.one(updatedSince, began.UnixMicro()), int64(len(want)))
}
