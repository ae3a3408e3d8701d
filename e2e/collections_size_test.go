package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/e2e/harness"
)

// bigListServer serves one list of n items of about 1 KB in pages of 100.
func bigListServer(t testing.TB, n int) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, err := strconv.Atoi(r.URL.Query().Get("page"))
		if err != nil {
			page = 1
		}
		var body bytes.Buffer
		body.WriteByte('[')
		for i := (page - 1) * 100; i < min(page*100, n); i++ {
			if body.Len() > 1 {
				body.WriteByte(',')
			}
			sum := sha256.Sum256(strconv.AppendInt(nil, int64(i), 10))
			fmt.Fprintf(&body, `{"id":%d,"title":"%x","body":"%s"}`, i, sum, strings.Repeat(fmt.Sprintf("%x ", sum[:8]), 50))
		}
		body.WriteByte(']')
		if page*100 < n {
			w.Header().Set("Link", fmt.Sprintf(`<?page=%d>; rel="next"`, page+1))
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body.Bytes())
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestCollections_HundredThousandItems walks one list of 100,000 items twice, and reads its items. It
// checks the memory of the worker and the bytes that the second walk writes to PostgreSQL's write-ahead
// log. It also prints the speed of the reads, which it does not check because it depends on the
// machine.
func TestCollections_HundredThousandItems(t *testing.T) {
	longOnly(t)
	const n = 100_000
	f := newSite(t)
	f.prepareSource(fmt.Sprintf(listSource, bigListServer(t, n)))
	api, worker := f.query(), f.worker()
	c, err := client.New(api, client.Options{})
	f.check(err)
	idle, err := harness.PeakMemory(worker.Process.Pid)
	f.check(err)
	wal := func() int64 { return f.one("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint") }
	var written [2]int64
	for round := range written {
		began, before := time.Now(), wal()
		f.refreshAll(c, []string{"big"})
		f.until(10*time.Minute, "the end of the walk", func() bool {
			return f.one("SELECT count(*) FROM collections WHERE complete_at > $1 AND walk = 0", began.UnixMicro()) == 1
		})
		f.untilCommitted()
		written[round] = wal() - before
		t.Logf("walk %d of %d pages: %.1f s, %.1f MB of WAL", round+1, n/100, time.Since(began).Seconds(), float64(written[round])/(1<<20))
	}
	equal(t, "items", f.one("SELECT items FROM collections"), n)
	if share := float64(written[1]) / float64(written[0]); share > 0.05 {
		t.Errorf("WAL of the second walk: got %.1f %% of the first walk's, want at most 5 %%", 100*share)
	}
	peak, err := harness.PeakMemory(worker.Process.Pid)
	f.check(err)
	t.Logf("worker: %d MB idle, %d MB at its peak", idle>>20, peak>>20)
	if above := peak - idle; above > 60<<20 {
		t.Errorf("memory of the worker above idle: got %d MB, want at most 60", above>>20)
	}
	f.readBigList(api, n)
}

// readBigList reads the pages of the list of bigListServer, and then all its items as one stream. It
// prints the speed.
func (f *fleet) readBigList(api string, n int) {
	f.Helper()
	url := api + "/v1/" + f.Source + "/list/big/items"
	get := func(path, accept string, read func(io.Reader)) {
		f.Helper()
		req, err := http.NewRequestWithContext(f.Context(), http.MethodGet, url+path, http.NoBody)
		f.check(err)
		req.Header.Set("Accept", accept)
		resp, err := f.client.Do(req)
		f.check(err)
		defer func() { _ = resp.Body.Close() }()
		equal(f.TB, "status of the items", resp.StatusCode, http.StatusOK)
		read(resp.Body)
	}
	versions := f.pairs("SELECT item, version::text FROM items WHERE item IN ('1', '25000', '50000', '75000', '99000')")
	var took []time.Duration
	for range 200 {
		for _, version := range versions {
			began := time.Now()
			get("?limit=100&after="+version+".MQ", "application/json", func(r io.Reader) { _, _ = io.Copy(io.Discard, r) })
			took = append(took, time.Since(began))
		}
	}
	slices.Sort(took)
	f.Logf("a page of 100 items over HTTP: p50 %s, p95 %s, of %d reads", took[len(took)/2], took[len(took)*95/100], len(took))
	for range 3 {
		lines, began := 0, time.Now()
		get("", "application/x-ndjson", func(r io.Reader) {
			all := bufio.NewScanner(r)
			for all.Scan() {
				lines++
			}
			f.check(all.Err())
		})
		f.Logf("all items as NDJSON: %.0f items/s", float64(lines)/time.Since(began).Seconds())
		atLeast(f.TB, "lines of the stream", lines, n)
	}
}
