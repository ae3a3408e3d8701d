package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/e2e/harness"
)

// userSource has the repositories of each user, and the issues of each repository. The key of the
// issues is the id of the repository.
const userSource = `baseURL: %s
quota: {policies: [{name: burst, limit: 2000, window: 1s}]}
workers: {high: {maxInFlight: 8}, low: {maxInFlight: 8}}
facets:
  repositories:
    documents: {repositories: {path: "/lists/{key}", paging: {link: true}}}
    collection: {id: id}
    freshFor: 24h
  list:
    documents: {list: {path: "/lists/{key}", paging: {link: true}}}
    collection: {id: id, deletes: full}
    freshFor: 24h
    shrinkGuard: 0.1
    publishChanges: true
runs:
  all:
    steps: {repositories: {}, list: {each: repositories, key: "{id}"}}
    parallel: 64
`

// TestRuns_ListsOfAllUsers collects the 50 repositories of each user and the issues of each repository, in
// three runs. The flag -users is the number of users. During the first two runs a worker is killed at the
// interval -kill-every; the lists of issues change during the first run. Each run must end once, and
// afterwards the stored items must equal the lists.
//
// As on GitHub, a few lists are long: one of n has at least n pages, and the longest has 40.
func TestRuns_ListsOfAllUsers(t *testing.T) {
	longOnly(t)
	const each = 50
	users := *users
	seed := uint64(time.Now().UnixNano())
	f := newSite(t)
	keys := harness.Keys("u", users)
	lists, url := newListServer(t, nil, 0, seed)
	var repositories []string
	for _, user := range keys {
		lists.add(user, each)
		for _, repository := range lists.lists[user] {
			repositories = append(repositories, strconv.Itoa(repository.ID))
		}
	}
	for _, key := range repositories {
		pages := int(min(40, 1/(1-lists.random.Float64())))
		lists.add(key, pages*listPage-lists.random.IntN(listPage))
	}
	pages, _ := lists.pages()
	t.Logf("seed %d, %d lists, %d pages", seed, len(lists.lists), pages)
	f.prepareSource(fmt.Sprintf(userSource, url))
	api := f.query()
	workers := []*harness.Process{f.worker(), f.worker()}
	c, err := client.New(api, client.Options{})
	f.check(err)
	want := client.RunSteps{Total: users + users*each, Done: users + users*each}
	collect := func(what string, kill bool) (kills int, id string) {
		started := time.Now()
		run, _, err := c.StartRun(t.Context(), f.Source, "all", client.RunKeys{Keys: keys}, "")
		f.check(err)
		running := func() bool {
			return f.one("SELECT count(*) FROM runs WHERE id = $1 AND state = 'RUNNING'", run.ID) == 1
		}
		for ; kill && running(); kills++ {
			last := time.Now()
			f.until(*killEvery+timeout, "the next kill", func() bool { return time.Since(last) > *killEvery })
			f.replaceWorker(workers, kills)
		}
		ended, err := c.WaitRun(t.Context(), run.ID, nil)
		f.check(err)
		equal(t, what+": state", ended.State, client.RunCompleted)
		equal(t, what+": steps", ended.Steps, want)
		t.Logf("%s: %d kills, %.1f s", what, kills, time.Since(started).Seconds())
		return kills, run.ID
	}
	stop := make(chan struct{})
	var changing sync.WaitGroup
	// More changes would replace nearly all items of a short list between two walks, which shrinkGuard rejects.
	changing.Go(func() { lists.mutate(repositories, 20*len(repositories), stop) })
	_, id := collect("run over lists that change", true)
	ends := map[string]string{id: "COMPLETED"}
	close(stop)
	changing.Wait()
	pages, _ = lists.pages()
	for _, kill := range []bool{true, false} { // an item is deleted only after two walks of a list that does not change
		what := fmt.Sprintf("run over lists at rest, kill %v", kill)
		kills, id := collect(what, kill)
		ends[id] = "COMPLETED"
		_, calls := lists.pages()
		f.compareCalls(what, calls, pages, kills)
	}
	equal(t, "repositories", f.one("SELECT count(*) FROM items WHERE source = $1 AND facet = 'repositories' AND NOT deleted", f.Source), int64(users*each))
	for _, user := range keys {
		delete(lists.lists, user)
	}
	f.compareItems(c, lists)
	t.Log(strings.TrimSpace(f.must("runs", "verify", "--addr", api)))
	f.compareRunEnds(ends)
	equal(t, "dead letters", f.deadLetters(), 0)
}
