package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/e2e/harness"
)

// listServer is an upstream with many lists. It serves each list in pages, with a Link header to the
// next page.
type listServer struct {
	mu       sync.Mutex
	lists    map[string][]listed
	random   *rand.Rand
	calls    int
	inFlight int
	next     int // id of the next new item
}

type listed struct {
	ID   int    `json:"id"`
	Text string `json:"text"`
}

const listPage = 10

// newListServer starts an upstream with one list for each key. A list has 1 to maxPages pages.
func newListServer(t testing.TB, keys []string, maxPages int, seed uint64) (*listServer, string) {
	l := &listServer{lists: map[string][]listed{}, random: rand.New(rand.NewPCG(seed, 0))}
	for _, key := range keys {
		l.add(key, 1+l.random.IntN(maxPages*listPage))
	}
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	return l, server.URL
}

// add adds a list with n items.
func (l *listServer) add(key string, n int) {
	for range n {
		l.lists[key] = append(l.lists[key], l.newItem())
	}
}

func (l *listServer) newItem() listed {
	l.next++
	return listed{l.next, strconv.Itoa(l.random.IntN(1000))}
}

func (l *listServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(r.URL.Path, "/lists/")
	page := 1
	if n, err := strconv.Atoi(r.URL.Query().Get("page")); err == nil {
		page = n
	}
	l.mu.Lock()
	l.calls++
	l.inFlight++
	list := l.lists[key]
	from, to := min((page-1)*listPage, len(list)), min(page*listPage, len(list))
	body, _ := json.Marshal(list[from:to])
	more := to < len(list)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.inFlight--
		l.mu.Unlock()
	}()
	if more {
		w.Header().Set("Link", fmt.Sprintf(`<?page=%d>; rel="next"`, page+1))
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

// mutate makes n changes to the lists, one every millisecond, or until the channel `stop` is closed: it
// adds, deletes and changes items, and changes their order.
func (l *listServer) mutate(keys []string, n int, stop <-chan struct{}) {
	for range n {
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond):
		}
		l.mu.Lock()
		key := keys[l.random.IntN(len(keys))]
		list := l.lists[key]
		switch at := l.random.IntN(len(list) + 1); {
		case l.random.IntN(3) == 0:
			list = slices.Insert(list, at, l.newItem())
		case at < len(list) && len(list) > 1 && l.random.IntN(3) == 0:
			list = slices.Delete(list, at, at+1)
		case at < len(list) && l.random.IntN(2) == 0:
			list[at].Text += "x"
		default:
			l.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		l.lists[key] = list
		l.mu.Unlock()
	}
}

// pages returns the total number of pages of all lists, and the number of calls since the last call of
// pages.
func (l *listServer) pages() (pages, calls int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, list := range l.lists {
		pages += max(1, (len(list)+listPage-1)/listPage)
	}
	calls, l.calls = l.calls, 0
	return pages, calls
}

const listSource = `baseURL: %s
quota: {policies: [{name: burst, limit: 2000, window: 1s}]}
workers: {high: {maxInFlight: 8}, low: {maxInFlight: 8}}
facets:
  list:
    documents: {list: {path: "/lists/{key}", paging: {link: true}}}
    collection: {id: id, deletes: full}
    shrinkGuard: 0.1
    freshFor: 24h
    cooldown: 0s
    publishChanges: true
  stats:
    derived: {over: {list: {}}, measures: {items: {count: true}, last: {max: id}}, every: 1s, all: {every: 2s}}
  texts:
    derived: {over: {list: {}}, measures: {texts: {distinct: text}}, every: 1s, all: {every: 2s}}
`

// TestCollections_EqualTheListsAfterKills walks lists that change while their pages are fetched, and
// kills workers during the walks. Afterwards the stored items must equal the lists.
func TestCollections_EqualTheListsAfterKills(t *testing.T) {
	t.Parallel()
	keys, kills := harness.Keys("k", 20), 1
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, %d lists", seed, len(keys))
	f := newSite(t)
	upstream, url := newListServer(t, keys, 6, seed)
	f.prepareSource(fmt.Sprintf(listSource, url))
	api := f.query()
	workers := []*harness.Process{f.worker(), f.worker()}
	c, err := client.New(api, client.Options{})
	f.check(err)
	walk := func(what string, kills int) {
		began := time.Now().UnixMicro()
		f.refreshAll(c, keys)
		for n := range kills {
			f.until(timeout, "progress before a kill", func() bool {
				return f.one("SELECT count(*) FROM collections WHERE complete_at > $1", began) > int64(n+1)*int64(len(keys))/int64(kills+2)
			})
			f.replaceWorker(workers, n)
		}
		// If a worker is killed while it delivers an outbox event, the event is delivered when the
		// worker's lease has ended.
		f.until(timeout+time.Minute, "the end of the walks of "+what, func() bool {
			return f.one("SELECT count(*) FROM collections WHERE complete_at > $1 AND walk = 0", began) == int64(len(keys))
		})
		f.untilCommitted()
	}
	stop := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() { upstream.mutate(keys, math.MaxInt, stop) })
	started := time.Now()
	walk("lists that change", kills)
	close(stop)
	changing.Wait()
	pages, calls := upstream.pages()
	t.Logf("first walk: %d calls of %d lists with %d pages now, %.1f s", calls, len(keys), pages, time.Since(started).Seconds())
	for n := range 2 { // an item is deleted only after two walks, which need a list that does not change
		killed := kills * (1 - n) // workers are killed only during the first of the two walks
		walk("lists at rest", killed)
		_, calls = upstream.pages()
		t.Logf("walk of the lists at rest: %.1f s", time.Since(started).Seconds())
		f.compareCalls("walk of the lists at rest", calls, pages, killed)
	}
	f.compareItems(c, upstream)
	f.compareStatistics(c, upstream)
	equal(t, "dead letters", f.deadLetters(), 0)
}

// replaceWorker kills the worker n modulo the number of workers, and starts another in its place.
func (f *fleet) replaceWorker(workers []*harness.Process, n int) {
	f.Helper()
	n %= len(workers)
	workers[n].Kill()
	workers[n] = f.worker()
}

// compareCalls fails the test if the upstream received fewer calls than it has pages and entities, or
// more than these and the calls that the kills of workers repeat.
func (f *fleet) compareCalls(what string, calls, fewest, kills int) {
	f.Helper()
	bound := fewest + kills*16 // a killed worker has at most 16 calls in flight, which are repeated
	f.Logf("%s: %d calls, at most %d allowed, %d kills", what, calls, bound, kills)
	if calls < fewest || calls > bound {
		f.Errorf("%s: calls: got %d, want %d to %d", what, calls, fewest, bound)
	}
}

// compareStatistics waits until the computed statistics equal two recounts: one of the stored items
// with SQL, and one of the items of the upstream. It does so for each list, and for all lists together
// (_all). The computations were requested because items have changed.
func (f *fleet) compareStatistics(c *client.Client, upstream *listServer) {
	f.Helper()
	const byKey = "SELECT count(*) FROM items WHERE source = $1 AND facet = 'list' AND key = $2 AND NOT deleted"
	const lastOfKey = "SELECT max(item::bigint) FROM items WHERE source = $1 AND facet = 'list' AND key = $2 AND NOT deleted"
	everyText := map[string]bool{}
	f.until(timeout, "statistics of each list and of all lists, without a read", func() bool {
		return f.one("SELECT count(*) FROM snapshot_state WHERE source = $1 AND facet IN ('stats', 'texts') AND encoding <> ''", f.Source) == int64(2*len(upstream.lists)+2)
	})
	want := func(facet, key, total string) {
		f.until(timeout, fmt.Sprintf("%s of %s that end with %s", facet, key, total), func() bool {
			r, err := c.Get(f.Context(), client.Entity{Source: f.Source, Facet: facet, Key: key})
			return err == nil && strings.HasSuffix(string(r.Snapshot), `"total":`+total+"}")
		})
	}
	for key, list := range upstream.lists {
		texts := map[string]bool{}
		for _, i := range list {
			texts[i.Text], everyText[i.Text] = true, true
		}
		want("stats", key, fmt.Sprintf(`{"items":%d,"last":%d}`, f.one(byKey, f.Source, key), f.one(lastOfKey, f.Source, key)))
		want("texts", key, fmt.Sprintf(`{"texts":%d}`, len(texts)))
	}
	want("stats", "_all", fmt.Sprintf(`{"items":%d,"last":%d}`,
		f.one("SELECT count(*) FROM items WHERE source = $1 AND NOT deleted", f.Source), f.one("SELECT max(item::bigint) FROM items WHERE source = $1 AND NOT deleted", f.Source)))
	want("texts", "_all", fmt.Sprintf(`{"texts":%d}`, len(everyText)))
}

func (f *fleet) refreshAll(c *client.Client, keys []string) {
	f.Helper()
	for some := range slices.Chunk(keys, 100) {
		answer, err := c.Send(f.Context(), http.MethodPost, "/v1/"+f.Source+"/list/refresh", map[string][]string{"keys": some})
		f.check(err)
		equal(f.TB, "status of the refreshes", answer.Code, http.StatusAccepted)
	}
}

// compareItems fails the test unless the items of each collection equal the list of the upstream.
func (f *fleet) compareItems(c *client.Client, upstream *listServer) {
	f.Helper()
	for key, list := range upstream.lists {
		want, got := map[string]string{}, map[string]string{}
		for _, i := range list {
			want[strconv.Itoa(i.ID)] = i.Text
		}
		for i, err := range c.AllItems(f.Context(), client.Entity{Source: f.Source, Facet: "list", Key: key}, client.ItemRange{Limit: 50}) {
			f.check(err)
			var content listed
			if i.Deleted {
				continue
			}
			f.check(json.Unmarshal(i.Content, &content))
			got[i.ID] = content.Text
		}
		if len(got) != len(want) {
			f.Errorf("%s: got %d items, want %d", key, len(got), len(want))
		}
		for id, text := range want {
			if got[id] != text {
				f.Errorf("%s, item %s: got %q, want %q", key, id, got[id], text)
			}
		}
	}
}
