package main

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/simulator"
)

// timed says whether figures are judged that depend on the machine's speed; they
// are always printed.
func timed() bool { return os.Getenv("FRESHET_TEST_TIMED") != "" }

func characters(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return keys
}

// judge checks what arrived at the upstream against its contract, and returns the
// rate at which it was used up.
func (f *fleet) judge(s simulator.Stats, arrivals int) (sustained float64) {
	f.Helper()
	if s.Sustained != nil {
		sustained = *s.Sustained
	}
	f.Logf("%d arrivals, %.1f a second between the 500th and the last but 500, at most %d in a sliding second, %d refused, %d for one entity at most",
		s.Arrivals, sustained, s.MaxInSlidingSecond, s.Refused, s.MaxPerKeyAndPath)
	if s.MaxInSlidingSecond > 500 || s.Refused > 0 || s.ByStatus[429] > 0 {
		f.Errorf("the contract is broken: %d in a second, %d refused", s.MaxInSlidingSecond, s.Refused)
	}
	if s.Arrivals != arrivals {
		f.Errorf("%d arrivals, want %d", s.Arrivals, arrivals)
	}
	if s.UnknownPathCalls+s.UnknownParameterCalls > 0 {
		f.Errorf("calls that were never configured: %v %v", s.UnknownPaths, s.UnknownParameters)
	}
	return sustained
}

const (
	storedPayloads = "SELECT count(*) FROM snapshot_payload"
	checkedSince   = "SELECT count(*) FROM snapshot_state WHERE last_checked_at >= $1"
	uncheckedSince = "SELECT key, '' FROM snapshot_state WHERE last_checked_at < $1"
	updatedSince   = "SELECT count(*) FROM snapshot_state WHERE last_updated_at >= $1"
	// A payload row that was written again is another version of the row.
	payloadVersions = "SELECT key, xmin::text || ctid::text FROM snapshot_payload"
)

// pairs returns what a query of two columns gives.
func (f *fleet) pairs(sql string, args ...any) map[string]string {
	f.Helper()
	rows, err := f.db.Query(f.Context(), sql, args...)
	if err != nil {
		f.Fatal(err)
	}
	defer rows.Close()
	all := map[string]string{}
	for rows.Next() {
		var key, version string
		if err := rows.Scan(&key, &version); err != nil {
			f.Fatal(err)
		}
		all[key] = version
	}
	return all
}

// changed returns which of the keys have another body at a revision in which so
// many percent have moved on, asked of a simulator of the test's own.
func changed(t *testing.T, keys []string, percent float64) map[string]bool {
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
	moved := map[string]bool{}
	for _, key := range keys {
		if body(key) != before[key] {
			moved[key] = true
		}
	}
	return moved
}

func TestFiveThousandCharactersBecomeFreshWithinTheContract(t *testing.T) {
	f := newFleet(t, false, "--latency", "30ms-1.7s")
	f.worker()
	api := f.query()
	keys := characters("c", 5000)

	// Who was asked to come back may find that it is there.
	if asked := f.ask(api, keys, 100); asked["UPDATING"]+asked["FRESH"] != 5000 {
		t.Errorf("first answers: %v", asked)
	}
	f.until(90*time.Second, "a snapshot of each", func() bool { return f.one(storedPayloads) == 5000 })
	f.until(patience, "the commit of every offset", func() bool { return f.behind() == 0 })
	if fresh := f.ask(api, keys, 100); fresh["FRESH"] != 5000 {
		t.Errorf("afterwards: %v", fresh)
	}
	stats := f.stats()
	if rate := f.judge(stats, 5000); timed() && rate < 440 {
		t.Errorf("%.1f a second, want at least 440", rate)
	}
	if stats.MaxPerKeyAndPath != 1 || stats.DistinctKeys != 5000 || f.letters() != 0 {
		t.Errorf("%d calls for one entity, %d entities, %d dead letters", stats.MaxPerKeyAndPath, stats.DistinctKeys, f.letters())
	}

	// All again as stale, half of them changed.
	f.call(http.MethodPost, "/_control", simulator.Control{ChangePercent: 50}, nil)
	f.call(http.MethodPost, "/_reset", nil, nil)
	before, began := f.pairs(payloadVersions), time.Now()
	stale := f.staleQuery()
	if asked := f.askAs(stale, keys, 100, "*"); asked["STALE"] != 5000 {
		t.Errorf("as stale: %v", asked)
	}
	asked := time.Now()
	f.until(90*time.Second, "a check of each", func() bool {
		checked := f.one(checkedSince, began.UnixMicro())
		if checked < 5000 && time.Since(asked) > 20*time.Second { // whose wish an overloaded machine lost asks again
			f.askAs(stale, slices.Collect(maps.Keys(f.pairs(uncheckedSince, began.UnixMicro()))), 100, "*")
			asked = time.Now()
		}
		return checked == 5000
	})
	f.until(patience, "the commit of every offset", func() bool { return f.behind() == 0 })
	f.judge(f.stats(), 5000) // no rate: 5,000 readings of 100 kB are on this machine too

	want := changed(t, keys, 50)
	if n := len(want); n < 2300 || n > 2700 {
		t.Fatalf("%d of 5,000 changed: not half", n)
	}
	wrong := 0
	for key, version := range f.pairs(payloadVersions) {
		if (version != before[key]) != want[key] {
			wrong++
		}
	}
	if updated := f.one(updatedSince, began.UnixMicro()); wrong > 0 || updated != int64(len(want)) {
		t.Errorf("%d payloads were written wrongly or not; %d entities count as changed, want %d", wrong, updated, len(want))
	}
}

// staleQuery starts a query service to which everything is stale at once.
func (f *fleet) staleQuery() string {
	f.Helper()
	text, err := os.ReadFile(f.config)
	if err != nil {
		f.Fatal(err)
	}
	name := f.config + ".stale"
	if err := os.WriteFile(name, []byte(strings.Replace(string(text), "freshFor: 1h", "freshFor: 1ms", 1)), 0o600); err != nil {
		f.Fatal(err)
	}
	return f.query("FRESHET_CONFIG=" + name)
}

func TestAKilledWorkerLosesNothing(t *testing.T) {
	f := newFleet(t, true, "--latency", "30ms-1.7s")
	f.worker()
	victim := f.worker()
	api := f.query()
	keys := characters("k", 2000)
	f.ask(api, keys, 100)
	f.until(90*time.Second, "half of the snapshots", func() bool { return f.one(storedPayloads) >= 1000 })
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	f.until(90*time.Second, "a snapshot of each", func() bool { return f.one(storedPayloads) == 2000 })
	f.until(patience, "the commit of every offset", func() bool { return f.behind() == 0 })
	if fresh := f.ask(api, keys, 100); fresh["FRESH"] != 2000 {
		t.Errorf("afterwards: %v", fresh)
	}
	s := f.stats()
	t.Logf("%d calls for 2,000 entities, at most %d in a sliding second", s.Arrivals, s.MaxInSlidingSecond)
	if s.MaxInSlidingSecond > 500 || s.Refused > 0 || f.letters() != 0 {
		t.Errorf("%d in a second, %d refused, %d dead letters", s.MaxInSlidingSecond, s.Refused, f.letters())
	}
}

func TestAThousandReadersOfOneMissingKeyCostOneCall(t *testing.T) {
	f := newFleet(t, false, "--latency", "1s")
	f.worker()
	apis := []string{f.query(), f.query(), f.query()}
	done := make(chan map[string]int, len(apis))
	for i, api := range apis {
		readers := make([]string, 333+i%2)
		for n := range readers {
			readers[n] = "the-one"
		}
		go func() { done <- f.ask(api, readers, len(readers)) }()
	}
	for range apis {
		if asked := <-done; asked["UPDATING"] == 0 || asked["UPDATING"]+asked["FRESH"] < 333 {
			t.Errorf("answers %v", asked)
		}
	}
	f.until(patience, "the snapshot", func() bool { return f.one(storedPayloads) == 1 })
	f.until(patience, "the commit", func() bool { return f.behind() == 0 })
	if s := f.stats(); s.Arrivals != 1 {
		t.Errorf("%d calls for a thousand readers", s.Arrivals)
	}
}

func get(t *testing.T, h http.Handler, target string) string {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
	return rec.Body.String()
}
