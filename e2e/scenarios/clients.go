package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
)

// These constants are the rates and the numbers of keys of the clients' load. The prefix of a key
// decides how the upstream responds to it (clientFaults).
const (
	clientRate        = 40 // reads of healthy keys per second
	clientConcurrency = 16
	healthyKeys       = 30 // number of healthy keys; each is read about once a second, so that most reads find a fresh snapshot
	// failingKeys is the number of keys for each kind of failure. Each process must count at least
	// two failures of each kind, and Prometheus must scrape the process between these two failures:
	// Prometheus shows no increase for a counter whose first sample is already 1.
	failingKeys = 4
	facet       = "character"
	// dueKeys is the number of entities that are due for prefetch. One entity becomes due each
	// second. The number is so large that some entities are not due yet when the scenario ends.
	dueKeys = 1800
)

// failingSnapshots returns stale snapshots of the keys for which clientFaults lets the upstream
// fail. Readers see them as entities that were fetched successfully before.
func failingSnapshots() (all []harness.Stored) {
	for _, prefix := range []string{"refused-", "page-", "later-", "soon-"} {
		all = append(all, harness.Stored{Facet: facet, Prefix: prefix, Count: failingKeys, Checked: time.Now().Add(-time.Hour)})
	}
	return all
}

// expiredSnapshots returns snapshots that are older than keepFor.
func expiredSnapshots() harness.Stored {
	return harness.Stored{Facet: facet, Prefix: "outdated-", Count: 5, Checked: time.Now().Add(-31 * 24 * time.Hour)}
}

// clientFaults returns the upstream's faults, by the prefix of the key: some keys always fail, some
// fail a few times, and some do not exist.
func clientFaults() []simulator.Fault {
	times := func(n int) *int { return &n }
	return []simulator.Fault{
		{Key: "^gone-", Kind: simulator.NotFound},
		{Key: "^refused-", Kind: simulator.BadParameter},
		{Key: "^page-", Kind: simulator.HTML200},
		{Key: "^later-", Kind: simulator.InternalError, Count: times(6)},
		{Key: "^soon-", Kind: simulator.NotReady, Count: times(2)},
	}
}

// clients sends every kind of client request at a moderate rate until it is stopped.
type clients struct {
	s       *site
	api     string
	client  *http.Client
	cancel  context.CancelFunc
	running sync.WaitGroup
	answers atomic.Int64
	failed  atomic.Int64 // number of responses with 5xx, and of requests without a response
	last    atomic.Pointer[string]
}

func (s *site) startClients(ctx context.Context, api string) *clients {
	c := &clients{s: s, api: api, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clientConcurrency}}}
	ctx, c.cancel = context.WithCancel(ctx)
	jobs := make(chan func(), clientConcurrency)
	for range clientConcurrency {
		c.running.Go(func() {
			for do := range jobs {
				do()
			}
		})
	}
	c.running.Go(func() {
		defer close(jobs)
		tick := time.NewTicker(time.Second / clientRate)
		defer tick.Stop()
		for n := 0; ; n++ {
			for _, do := range c.jobs(ctx, n) {
				select {
				case jobs <- do:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	c.running.Go(func() { c.streamEvents(ctx) })
	return c
}

// stop ends the load and returns when the last request has ended.
func (c *clients) stop() {
	c.cancel()
	c.running.Wait()
}

// jobs returns the requests of the n-th tick: a read, and in each second one request of every
// other kind.
func (c *clients) jobs(ctx context.Context, n int) []func() {
	healthy := func(n int) string { return fmt.Sprint("/v1/", c.s.Source, "/", facet, "/healthy-", n%healthyKeys) }
	get := func(path string) func() { return func() { c.do(ctx, http.MethodGet, path, nil, "") } }
	all := []func(){get(healthy(n))}
	if n%4 == 0 { // a conditional read, with If-None-Match
		all = append(all, func() { c.do(ctx, http.MethodGet, healthy(n), http.Header{"If-None-Match": {"*"}}, "") })
	}
	second, of := n/clientRate, func(kind string, different int) string {
		return fmt.Sprint("/v1/", c.s.Source, "/", facet, "/", kind, "-", n/clientRate%different)
	}
	switch n % clientRate {
	case 1:
		all = append(all, func() { c.do(ctx, http.MethodPost, healthy(second)+"/refresh", nil, "") })
	case 4:
		all = append(all, get(of("gone", 5)))
	case 7: // requests of the keys "refused" and "page" become dead letters: only a few are read, because a real installation has few dead letters
		all = append(all, get(of("refused", failingKeys)), get(of("page", failingKeys)))
	case 10:
		all = append(all, get(of("later", failingKeys)), get(of("soon", failingKeys)))
	case 13:
		all = append(all, get(fmt.Sprint("/v1/", c.s.Source, "/", facet, "?key=healthy-1&key=healthy-2&key=gone-1&key=batch-", second)))
	case 16:
		all = append(all, get(of("awaited", 1000)+"?wait=5s"))
	case 19:
		all = append(all, get("/nowhere"), get("/v1/"+c.s.Source+"/nothing/of-the-kind"))
	case 22:
		all = append(all, func() { c.do(ctx, http.MethodGet, healthy(0), http.Header{"Authorization": {"Bearer nobodys"}}, "") })
	case 25:
		all = append(all, func() { c.prefetch(ctx, second) })
	case 28:
		all = append(all, func() {
			c.do(ctx, http.MethodPost, fmt.Sprint("/hooks/", c.s.Source, "/changed"), http.Header{"X-Key": {fmt.Sprint("healthy-", second%healthyKeys)}}, "{}")
		})
	case 31: // each run has another key: its items are new, and statistics of them are computed
		all = append(all, func() {
			c.do(ctx, http.MethodPost, fmt.Sprint("/v1/runs/", c.s.Source, "/worn"), http.Header{"Content-Type": {"application/json"}}, fmt.Sprintf(`{"keys": ["worn-%d"]}`, second))
		})
	}
	return all
}

// do sends a request and counts its response after reading it to the end.
func (c *clients) do(ctx context.Context, method, path string, header http.Header, body string) {
	limited, cancel := context.WithTimeout(ctx, harness.Timeout)
	defer cancel()
	status, err := c.send(limited, method, path, header, body)
	if ctx.Err() != nil {
		return // the error is not counted: stop has cancelled the request
	}
	c.answers.Add(1)
	if err != nil || status >= http.StatusInternalServerError {
		c.failed.Add(1)
		text := fmt.Sprintf("%s %s: %d, %v", method, path, status, err)
		c.last.Store(&text)
	}
}

func (c *clients) send(ctx context.Context, method, path string, header http.Header, body string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, c.api+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+c.s.Token)
	for name := range header {
		req.Header.Set(name, header.Get(name))
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// streamEvents keeps one event stream (SSE) of an entity open, and reconnects when it ends.
func (c *clients) streamEvents(ctx context.Context) {
	reconnect := time.NewTicker(time.Second)
	defer reconnect.Stop()
	for ctx.Err() == nil {
		_, _ = c.send(ctx, http.MethodGet, fmt.Sprint("/v1/", c.s.Source, "/", facet, "/healthy-1/events"), http.Header{"Accept": {"text/event-stream"}}, "")
		select {
		case <-reconnect.C:
		case <-ctx.Done():
		}
	}
}

// prefetch publishes a LOW request directly to its topic, because no HTTP endpoint enqueues LOW
// requests. Once in the run it also publishes a poison message to the HIGH topic.
func (c *clients) prefetch(ctx context.Context, second int) {
	client, err := kgo.NewClient(kgo.SeedBrokers(c.s.Broker))
	if err != nil {
		return
	}
	defer client.Close()
	r := schemas.UpdateRequest{
		EventID: rand.Text(), Entity: schemas.Entity{Source: c.s.Source, Facet: facet, Key: fmt.Sprint("healthy-", second%healthyKeys)},
		Lane: schemas.Low, Reason: schemas.Prefetch, RequestedAt: time.Now(), CorrelationID: strings.ToLower(rand.Text()),
	}
	value, err := r.Encode()
	if err != nil {
		return
	}
	records := []*kgo.Record{{Topic: schemas.RequestTopic(c.s.Source, schemas.Low), Key: r.RecordKey(), Value: value}}
	if second == 2 {
		records = append(records, &kgo.Record{Topic: schemas.RequestTopic(c.s.Source, schemas.High), Value: []byte("no request")})
	}
	client.ProduceSync(ctx, records...)
}
