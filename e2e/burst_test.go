package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	burstKeys    = 5_000
	burstReaders = 1_000
)

// burst is the result of a burst of reads of new keys.
type burst struct {
	statuses map[int]int
	refusals map[string]int // number of reads rejected with 503, by the reason or code in the response
	took     []time.Duration
	all      time.Duration
}

// readBurst reads each of burstKeys new keys once, over burstReaders connections. base is the URL
// of the facet.
func readBurst(t *testing.T, base string) burst {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: burstReaders}, Timeout: timeout}
	defer client.CloseIdleConnections()
	b := burst{statuses: map[int]int{}, refusals: map[string]int{}}
	keys := make(chan string, burstKeys)
	for i := range burstKeys {
		keys <- fmt.Sprintf("burst-%d-%d", time.Now().UnixNano(), i)
	}
	close(keys)
	var mu sync.Mutex
	var all sync.WaitGroup
	began := time.Now()
	for range burstReaders {
		all.Go(func() {
			for key := range keys {
				at := time.Now()
				status, text, err := readOnce(t.Context(), client, base+key)
				took := time.Since(at)
				mu.Lock()
				if err != nil {
					t.Errorf("%s: %v", key, err)
				}
				b.statuses[status]++
				b.took = append(b.took, took)
				if status == http.StatusServiceUnavailable {
					b.refusals[reasonOf(text)]++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	b.all = time.Since(began)
	slices.Sort(b.took)
	return b
}

func readOnce(ctx context.Context, client *http.Client, url string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, text, err
}

// reasonOf returns the reason or the code in the body of a rejected read.
func reasonOf(problem []byte) string {
	for _, member := range []string{`"reason":"`, `"code":"`} {
		if _, rest, found := bytes.Cut(problem, []byte(member)); found {
			reason, _, _ := strings.Cut(string(rest), `"`)
			return reason
		}
	}
	return string(problem)
}

// report logs the results of the burst. It fails the test if any read was rejected.
func (b burst) report(t *testing.T) {
	t.Helper()
	at := func(part float64) time.Duration {
		return b.took[int(part*float64(len(b.took)-1))].Round(time.Millisecond)
	}
	t.Logf("%d new keys over %d connections in %v: statuses %v, reasons of 503 %v; p50 %v, p99 %v, longest %v",
		burstKeys, burstReaders, b.all.Round(time.Millisecond), b.statuses, b.refusals, at(.5), at(.99), at(1))
	if got := burstKeys - b.statuses[http.StatusOK] - b.statuses[http.StatusAccepted]; got > 0 {
		t.Errorf("rejected reads: got %d, want none", got)
	}
}

// A new key has no stored snapshot, so the response to its first read waits until the update
// request is enqueued. While Kafka, Redis and the database respond, all reads of 5,000 new keys by
// 1,000 readers must be accepted.
func TestBurst_NewKeysAreAccepted(t *testing.T) {
	f := newFleet(t)
	api := f.query()
	f.worker()
	readBurst(t, api+"/v1/"+f.Source+"/character/").report(t)
}

// In `freshet dev` the embedded Kafka, Redis and database run in the process that answers the
// reads. All reads of new keys must be accepted by this process too.
func TestBurst_OfDevIsAccepted(t *testing.T) {
	f := newSite(t)
	p, err := f.Start(t.Context(), "dev", `Query API +http://([0-9.:]+)`, nil, "dev", "--no-demo", "--listen", "127.0.0.1:0")
	f.check(err)
	readBurst(t, p.URL()+"/v1/nexon/character/").report(t)
}
