package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// document is the response to a read of a layout, an XML document of a court site.
type document struct {
	status int
	header http.Header
	text   string
}

// layouts is a client that reads layouts (XML documents of a court site) from one query service.
type layouts struct {
	*fleet
	api    string
	client *http.Client
}

func (f *fleet) layouts(api string) layouts {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}, Timeout: timeout}
	f.OnClose(client.CloseIdleConnections)
	return layouts{f, api + "/v1/" + f.Source + "/layout/", client}
}

func (l layouts) get(key string) (document, error) {
	req, err := http.NewRequestWithContext(l.Context(), http.MethodGet, l.api+key, http.NoBody)
	if err != nil {
		return document{}, err
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return document{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return document{resp.StatusCode, resp.Header, string(text)}, err
}

// readAll reads each key `times` times over `readers` connections, and returns the number of responses
// by status and by the reason of a degraded response.
func (l layouts) readAll(keys []string, times, readers int) (statuses map[int]int, reasons map[string]int) {
	l.Helper()
	statuses, reasons = map[int]int{}, map[string]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	var next atomic.Int64
	for range readers {
		all.Go(func() {
			for n := next.Add(1) - 1; n < int64(times*len(keys)); n = next.Add(1) - 1 {
				d, err := l.get(keys[n%int64(len(keys))])
				mu.Lock()
				if err != nil {
					l.Error(err)
				}
				statuses[d.status]++
				reasons[d.header.Get("Freshet-Degraded")]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return statuses, reasons
}

// When 3,000 readers read the same unknown document, the upstream gets one call. When readers read
// several documents, at most three calls are in flight at the same time. The simulated upstream counts
// both.
func TestDocuments_ManyReadersMakeOneCall(t *testing.T) {
	t.Parallel()
	f := newSite(t)
	_, err := f.PrepareCourt(t.Context(), "800ms-1s", "wait: 25s")
	f.check(err)
	f.worker()
	f.worker()
	var services []layouts
	for i := range 3 {
		api, err := f.Query(t.Context(), fmt.Sprint("query-", i), "")
		f.check(err)
		services = append(services, f.layouts(api))
	}
	const readers = 3000
	read := func(readers int, keys ...string) map[string]int {
		answers := map[string]int{}
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range readers {
			all.Go(func() {
				d, err := services[i%3].get(keys[i%len(keys)])
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				answers[fmt.Sprint(d.status, " ", d.header.Get("Content-Type"), " ", strings.Count(d.text, "<w2:layout"))]++
			})
		}
		all.Wait()
		return answers
	}
	const complete = "200 application/xml 1"
	began := time.Now()
	answers := read(readers, harness.DocumentKeys[0])
	took := time.Since(began)
	stats, err := f.CourtStats(t.Context())
	f.check(err)
	t.Logf("%d readers of one missing document on three query services: %v in %v; upstream %+v", readers, answers, took.Round(time.Millisecond), stats)
	equal(t, "complete documents", answers[complete], readers)
	equal(t, "calls", stats.Arrivals, 1)
	answers = read(60, harness.DocumentKeys[1:5]...)
	stats, err = f.CourtStats(t.Context())
	f.check(err)
	t.Logf("60 readers of four more documents: %v; upstream %+v", answers, stats)
	equal(t, "complete documents", answers[complete], 60)
	equal(t, "calls", stats.Arrivals, 5)
	equal(t, "refused calls", stats.Refused, 0)
	atMost(t, "calls in flight", stats.MaxInFlight, 3)
}

// While the database is stopped, every read is served from static files or from memory. A read of a
// static file needs no statement of the database, even while the file is being replaced. While the
// upstream is stopped, a read of an unknown document gets 503 with Retry-After.
func TestDocuments_SurviveOutages(t *testing.T) {
	t.Parallel()
	f := newSite(t)
	dir := t.TempDir()
	static, missing := harness.DocumentKeys[:36], harness.DocumentKeys[36:]
	for _, key := range static {
		f.check(harness.WriteLayout(dir, key, "one"))
	}
	court, err := f.PrepareCourt(t.Context(), "1ms-5ms", fmt.Sprintf("wait: 2s, static: {dir: %q}", dir))
	f.check(err)
	f.connect()
	_, err = f.db.Exec(t.Context(), "CREATE EXTENSION pg_stat_statements")
	f.check(err)
	f.check(f.UseProxies(t.Context()))
	f.worker()
	l := f.layouts(f.query())
	first, err := l.get(missing[0] + "?wait=25s")
	f.check(err)
	equal(t, "first read of a document without a file", first.status, http.StatusOK)

	_, err = f.db.Exec(t.Context(), "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)")
	f.check(err)
	statuses, _ := l.readAll(static, 20, 20)
	equal(t, "reads of static files", statuses[http.StatusOK], 20*len(static))
	equal(t, "statements of static hits", f.one(`SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND query LIKE '%snapshot_%' AND query NOT LIKE '%pg_stat%'`), 0)

	f.DatabaseProxy.Refuse(true)
	f.DatabaseProxy.Cut()
	known := append(missing[:1:1], static...)
	statuses, reasons := l.readAll(known, 20, 20)
	t.Logf("database stopped: %v, degraded %v", statuses, reasons)
	equal(t, "reads while the database is stopped", statuses[http.StatusOK], 20*len(known))
	f.DatabaseProxy.Refuse(false)

	f.replaceWhileRead(l, dir, static[0])

	court.Kill()
	began := time.Now()
	f.until(timeout, "503 for an unknown document", func() bool {
		d, err := l.get(missing[1])
		f.check(err)
		return d.status == http.StatusServiceUnavailable && d.header.Get("Retry-After") == "5" && strings.Contains(d.text, `"wait-expired"`)
	})
	t.Logf("503 with Retry-After 5 after %v", time.Since(began).Round(time.Millisecond))
	statuses, _ = l.readAll(known, 5, 20)
	equal(t, "reads without the upstream", statuses[http.StatusOK], 5*len(known))
}

// replaceWhileRead replaces a file again and again while it is read. Each response must be one whole
// version, and the last version must be served in the end.
func (f *fleet) replaceWhileRead(l layouts, dir, key string) {
	f.Helper()
	versions := []string{harness.Layout("one"), harness.Layout("two"), harness.Layout("three")}
	ctx, stop := context.WithCancel(f.Context())
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				if d, err := l.get(key); err != nil || d.status != http.StatusOK || (d.text != versions[0] && d.text != versions[1] && d.text != versions[2]) {
					f.Errorf("a read during a replacement: got %d, %d bytes, %v, want 200 with one whole version", d.status, len(d.text), err)
					return
				}
			}
		})
	}
	f.check(harness.WriteLayout(dir, key, "two"))
	f.check(os.WriteFile(filepath.Join(dir, "half.tmp"), []byte("<w2:layout"), 0o600))
	f.check(harness.WriteLayout(dir, key, "three"))
	f.until(timeout, "the last version of the file", func() bool {
		d, err := l.get(key)
		f.check(err)
		return d.text == versions[2]
	})
	stop()
	readers.Wait()
}
