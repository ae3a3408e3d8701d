package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/text/unicode/norm"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source/nexon"
)

// newNames returns an installation whose characters are requested by name: facet character takes the
// ocid from facet id. edits are replacements in the configuration of the source, in pairs.
func newNames(t testing.TB, latency string, edits ...string) *fleet {
	t.Helper()
	f := newFleet(t, "--latency", latency)
	f.Sources = map[string]string{f.Source: strings.NewReplacer(append(edits,
		"https://open.api.nexon.com", f.Upstream, "/character/item-equipment?", "/character/basic?")...).Replace(string(nexon.Config))}
	return f
}

// storedOf returns the number of snapshots and not-found results of a facet.
func (f *fleet) storedOf(facet string) int64 {
	f.Helper()
	return f.one("SELECT count(*) FROM snapshot_state WHERE facet = $1", facet)
}

func TestNames_FetchAliasAndDocumentOnce(t *testing.T) {
	t.Parallel()
	f := newNames(t, "30ms-1.7s")
	f.worker()
	api, names := f.query(), harness.Keys("n", refreshedKeys)
	f.read(api, names, 100)
	f.untilStored(3*time.Minute, 2*refreshedKeys)
	f.untilCommitted()
	equal(t, "answers that are FRESH afterwards", f.read(api, names, 100)["FRESH"], refreshedKeys)
	stats := f.stats()
	f.judgeContract(stats, 2*refreshedKeys)
	equal(t, "calls for one name or one ocid", stats.MaxPerKeyAndPath, 1)
	equal(t, "names and ocids", stats.DistinctKeys, 2*refreshedKeys)
	equal(t, "statuses of entities that wait", f.one("SELECT count(*) FROM update_status"), 0)
	equal(t, "dead letters", f.deadLetters(), 0)
}

func TestNames_ManyReadersOfANewNameMakeTwoCalls(t *testing.T) {
	t.Parallel()
	f := newNames(t, "200ms-400ms")
	f.worker()
	f.worker()
	readers, err := f.Readers(t.Context(), 3, "character", "")
	f.check(err)
	const n = 1000
	var all sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]int{}
	for i := range n {
		all.Go(func() {
			a, err := readers[i%len(readers)].Read(t.Context(), url.PathEscape("새 이름"), "?wait=30s")
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			answers[a.Freshness]++
		})
	}
	all.Wait()
	stats := f.stats()
	t.Logf("%d readers of one new name: %v, %d calls: %v", n, answers, stats.Arrivals, stats.ByPath)
	equal(t, "answers that are FRESH", answers["FRESH"], n)
	equal(t, "calls", stats.Arrivals, 2)
}

// Each spelling of a hostile name is the same entity at every entrance, or a clear error.
func TestNames_HostileNamesAreOneEntityOrRejected(t *testing.T) {
	t.Parallel()
	f := newNames(t, "5ms-10ms")
	f.worker()
	api := f.query()
	reader := f.reader(api)
	names := []string{
		"a&b", "a=b&ocid=c", "100%", "a%2Fb", "a/b", "a b", " a", "a ", "a+b", "😀👩‍👩‍👧", "가나다", "é", "שלום", "\u202Eabc", "a?b#c", "a;b", `a"b\c`, "'--", "{ocid}", "..a",
	}
	entities := map[string]bool{}
	read := func(name string) int {
		t.Helper()
		a, err := reader.Read(t.Context(), url.PathEscape(name), "?wait=20s")
		f.check(err)
		return a.Status
	}
	for _, name := range names {
		entities[name] = true
		for _, spelling := range []string{name, norm.NFD.String(name)} {
			equal(t, fmt.Sprintf("status of %+q", spelling), read(spelling), http.StatusOK)
		}
	}
	invalid := []string{strings.Repeat("x", 200), strings.Repeat("가", 200), "a\nb", "a\x00b", "..", "a/../b", "\xff"}
	for _, name := range invalid {
		equal(t, fmt.Sprintf("status of %+.20q", name), read(name), http.StatusBadRequest)
	}
	f.useOtherEntrances(api, names, invalid)
	equal(t, "stored characters", f.storedOf("character"), int64(len(entities)))
	equal(t, "stored ids", f.storedOf("id"), int64(len(entities)))
	for name := range entities {
		equal(t, fmt.Sprintf("rows of %+q", name), f.one("SELECT count(*) FROM snapshot_state WHERE facet = 'character' AND key = $1", name), 1)
	}
	stats := f.stats()
	equal(t, "calls with parameters that are not configured", stats.UnknownParameterCalls, 0)
	equal(t, "calls of paths that are not configured", stats.UnknownPathCalls, 0)
	equal(t, "calls", stats.Arrivals, 3*len(entities)) // three calls for each entity: of its id, of the character, and of the refresh of the character
	equal(t, "registered characters", f.one("SELECT count(*) FROM entities WHERE facet = 'character'"), int64(len(entities)))
}

// useOtherEntrances uses names in Unicode form NFD in batches, commands, an import and the console. Each
// name has a snapshot, and gets one refresh. The invalid names are rejected.
func (f *fleet) useOtherEntrances(api string, names, invalid []string) {
	f.Helper()
	get := func(path string, query url.Values) (text string, status int) {
		f.Helper()
		body, status, err := f.reader(api).Do(f.Context(), http.MethodGet, api+path+"?"+query.Encode(), "")
		f.check(err)
		return string(body), status
	}
	var spelled, arguments, rows []string
	for _, name := range names {
		nfd := norm.NFD.String(name)
		spelled, arguments = append(spelled, nfd), append(arguments, f.Source+"/character/"+nfd)
		row, err := json.Marshal(map[string]string{"key": nfd})
		f.check(err)
		rows = append(rows, string(row))
	}
	batch, status := get("/v1/"+f.Source+"/character", url.Values{"key": spelled})
	equal(f.TB, "status of a batch", status, http.StatusOK)
	equal(f.TB, "FRESH items of a batch", strings.Count(batch, `"freshness":"FRESH"`), len(names))
	batch, _ = get("/v1/"+f.Source+"/character", url.Values{"key": invalid})
	equal(f.TB, "items of a batch with the reason BAD_KEY", strings.Count(batch, "BAD_KEY"), len(invalid))

	f.must(append([]string{"snapshot", "refresh", "--addr", api}, arguments...)...)
	f.untilCommitted()
	target := []string{"--source", f.Source, "--facet", "character", "--addr", api}
	file := filepath.Join(f.TempDir(), "names.jsonl")
	f.check(os.WriteFile(file, []byte(strings.Join(rows, "\n")+"\n"), 0o600))
	f.must(append([]string{"entities", "import", file}, target...)...)
	f.must(slices.Concat([]string{"entities", "pin", "--tier", "hot"}, target, []string{"--"}, spelled)...)
	equal(f.TB, "pinned characters", f.one("SELECT count(*) FROM entities WHERE facet = 'character' AND pinned"), int64(len(names)))
	for i, name := range spelled {
		page, status := get("/console/lookup", url.Values{"source": {f.Source}, "facet": {"character"}, "key": {name}})
		if status != http.StatusOK || !strings.Contains(page, "{ocid} = ") {
			f.Errorf("console page of %+q: got status %d, want 200 and the value of {ocid}", name, status)
		}
		if i%7 == 0 { // only every seventh name, because each command starts a process
			f.must("snapshot", "get", "--addr", api, "--", arguments[i])
		}
	}
	for _, name := range invalid {
		if _, status := get("/console/lookup", url.Values{"source": {f.Source}, "facet": {"character"}, "key": {name}}); status != http.StatusBadRequest {
			f.Errorf("console page of %+.20q: got status %d, want 400", name, status)
		}
	}
	f.check(os.WriteFile(file, []byte(`{"key":"a/../b"}`+"\n"), 0o600))
	for _, args := range [][]string{append([]string{"entities", "import", file}, target...), {"snapshot", "get", "--addr", api, f.Source + "/character/a/../b"}} {
		if text, err := f.Command(f.Context(), args...); err == nil || !strings.Contains(text, `the key may not have the part ".."`) {
			f.Errorf("%v: got %v, %s, want an error about the part ..", args, err, text)
		}
	}
}

// The endpoint of the aliases is down for the time of the flag -outage. Known characters are refreshed
// meanwhile. Characters with a new name wait, and are fetched after the outage.
func TestNames_AliasEndpointDown(t *testing.T) {
	t.Parallel()
	f := newNames(t, "5ms-20ms", "freshFor: 1h", "freshFor: 1s", "freshFor: 168h", "freshFor: 2s", "retry: [1m, 2m, 4m]", "retry: [5s, 10s, 20s, 30s, 60s, 60s, 60s, 60s, 60s, 60s]")
	f.worker()
	readers, err := f.Readers(t.Context(), 1, "character", "")
	f.check(err)
	known, added := harness.Keys("known", 20), harness.Keys("new", 20)
	freshness := func(name, query string) string {
		t.Helper()
		a, err := readers[0].Read(t.Context(), name, query)
		f.check(err)
		return a.Freshness
	}
	for _, name := range known {
		equal(t, "first read of "+name, freshness(name, "?wait=30s"), "FRESH")
	}
	f.control(simulator.Control{Faults: []simulator.Fault{{Path: "/id$", Kind: simulator.InternalError}}})
	began := time.Now()
	for _, name := range added {
		freshness(name, "")
	}
	rounds := 0
	for ; time.Since(began) < *outageLength; rounds++ {
		since := time.Now()
		for _, name := range known {
			freshness(name, "")
		}
		f.until(timeout, "a refresh of each known character", func() bool {
			for _, name := range known {
				freshness(name, "") // a stale snapshot is refreshed by its reads
			}
			return f.one("SELECT count(*) FROM snapshot_state WHERE facet = 'character' AND NOT not_found AND last_checked_at >= $1", since.UnixMicro()) >= int64(len(known))
		})
	}
	equal(t, "characters of new names during the outage", f.one("SELECT count(*) FROM snapshot_state WHERE facet = 'character' AND starts_with(key, 'new')"), 0)
	equal(t, "entities that wait for their alias", f.one("SELECT count(*) FROM update_status WHERE facet = 'character' AND starts_with(key, 'new') AND reason = 'ALIAS'"), int64(len(added)))
	f.control(simulator.Control{Faults: []simulator.Fault{}})
	took := time.Now()
	f.until(5*time.Minute, "a character of each new name", func() bool {
		return f.one("SELECT count(*) FROM snapshot_state WHERE facet = 'character' AND starts_with(key, 'new') AND NOT not_found") == int64(len(added))
	})
	t.Logf("outage of %v: known characters were refreshed %d times, the new ones were stored %v after it", *outageLength, rounds, time.Since(took).Round(time.Second))
	equal(t, "dead letters", f.deadLetters(), 0)
}

// A name moves to another character while nobody reads it. The change of the alias refreshes the
// character.
func TestNames_RenameRefreshesTheCharacter(t *testing.T) {
	t.Parallel()
	f := newNames(t, "5ms-20ms")
	f.worker()
	_, err := f.Scheduler(t.Context(), "scheduler")
	f.check(err)
	readers, err := f.Readers(t.Context(), 1, "character", "")
	f.check(err)
	before, err := readers[0].Read(t.Context(), "somebody", "?wait=30s")
	f.check(err)
	f.control(simulator.Control{Renames: map[string]string{"somebody": "another"}})
	ids := readers[0]
	ids.Facet = "id"
	status, err := ids.Refresh(t.Context(), "somebody")
	f.check(err)
	equal(t, "status of the refresh of the id", status, http.StatusAccepted)
	f.until(timeout, "the other character", func() bool {
		after, err := readers[0].Read(t.Context(), "somebody", "")
		f.check(err)
		return after.Status == http.StatusOK && string(after.Snapshot) != string(before.Snapshot)
	})
	equal(t, "calls", f.stats().Arrivals, 4)
}
