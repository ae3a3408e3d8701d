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

// What the crowd asks for. Its keys begin with what the upstream does with them.
const (
	crowdRate  = 40 // reads of wellKeys in a second
	crowdHands = 16 // at most at the same time
	wellKeys   = 30 // each is read more than once a second, so that most reads are fresh
	// failingKeys are so many of each kind that the second failure of a process comes
	// after it was seen to have had one: a counter that begins with 1 is no increase.
	failingKeys = 4
	facet       = "character"
	// dueKeys come due one after the other, one a second, for longer than it takes.
	dueKeys = 1800
)

// failing are what the upstream fails for; something older is stored of them, as of
// entities that were well once.
func failing() (all []harness.Stored) {
	for _, prefix := range []string{"refused-", "page-", "later-", "soon-"} {
		all = append(all, harness.Stored{Facet: facet, Prefix: prefix, Count: failingKeys, Checked: time.Now().Add(-time.Hour)})
	}
	return all
}

// outdated are snapshots that are kept for too long already.
func outdated() harness.Stored {
	return harness.Stored{Facet: facet, Prefix: "outdated-", Count: 5, Checked: time.Now().Add(-31 * 24 * time.Hour)}
}

// faults are the upstream's: some keys fail for good, some for a while, some do not exist.
func faults() []simulator.Fault {
	times := func(n int) *int { return &n }
	return []simulator.Fault{
		{Key: "^gone-", Kind: simulator.NotFound},
		{Key: "^refused-", Kind: simulator.BadParameter},
		{Key: "^page-", Kind: simulator.HTML200},
		{Key: "^later-", Kind: simulator.InternalError, Count: times(6)},
		{Key: "^soon-", Kind: simulator.NotReady, Count: times(2)},
	}
}

// crowd does at a modest rate all that clients do, until it is stopped.
type crowd struct {
	s       *site
	api     string
	client  *http.Client
	cancel  context.CancelFunc
	hands   sync.WaitGroup
	answers atomic.Int64
	failed  atomic.Int64 // answered with 5xx, or not at all
	last    atomic.Pointer[string]
}

func (s *site) crowd(ctx context.Context, api string) *crowd {
	c := &crowd{s: s, api: api, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: crowdHands}}}
	ctx, c.cancel = context.WithCancel(ctx)
	jobs := make(chan func(), crowdHands)
	for range crowdHands {
		c.hands.Go(func() {
			for do := range jobs {
				do()
			}
		})
	}
	c.hands.Go(func() {
		defer close(jobs)
		tick := time.NewTicker(time.Second / crowdRate)
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
	c.hands.Go(func() { c.follow(ctx) })
	return c
}

// stop returns when the last has been answered.
func (c *crowd) stop() {
	c.cancel()
	c.hands.Wait()
}

// jobs are those of the n-th moment: a read, and in each second one of everything else.
func (c *crowd) jobs(ctx context.Context, n int) []func() {
	well := func(n int) string { return fmt.Sprint("/v1/", c.s.Source, "/", facet, "/well-", n%wellKeys) }
	get := func(path string) func() { return func() { c.ask(ctx, http.MethodGet, path, nil) } }
	all := []func(){get(well(n))}
	if n%4 == 0 { // known to this reader, who is told only that nothing is new
		all = append(all, func() { c.ask(ctx, http.MethodGet, well(n), http.Header{"If-None-Match": {"*"}}) })
	}
	second, of := n/crowdRate, func(kind string, different int) string {
		return fmt.Sprint("/v1/", c.s.Source, "/", facet, "/", kind, "-", n/crowdRate%different)
	}
	switch n % crowdRate {
	case 1:
		all = append(all, func() { c.ask(ctx, http.MethodPost, well(second)+"/refresh", nil) })
	case 4:
		all = append(all, get(of("gone", 5)))
	case 7: // few, for a dead letter is meant to be seldom
		all = append(all, get(of("refused", failingKeys)), get(of("page", failingKeys)))
	case 10:
		all = append(all, get(of("later", failingKeys)), get(of("soon", failingKeys)))
	case 13:
		all = append(all, get(fmt.Sprint("/v1/", c.s.Source, "/", facet, "?key=well-1&key=well-2&key=gone-1&key=batch-", second)))
	case 16:
		all = append(all, get(of("awaited", 1000)+"?wait=5s"))
	case 19:
		all = append(all, get("/nowhere"), get("/v1/"+c.s.Source+"/nothing/of-the-kind"))
	case 22:
		all = append(all, func() { c.ask(ctx, http.MethodGet, well(0), http.Header{"Authorization": {"Bearer nobodys"}}) })
	case 25:
		all = append(all, func() { c.prefetch(ctx, second) })
	}
	return all
}

// ask sends a request, reads the answer to its end and counts it.
func (c *crowd) ask(ctx context.Context, method, path string, header http.Header) {
	limited, cancel := context.WithTimeout(ctx, harness.Timeout)
	defer cancel()
	status, err := c.send(limited, method, path, header)
	if ctx.Err() != nil {
		return // the crowd leaves
	}
	c.answers.Add(1)
	if err != nil || status >= http.StatusInternalServerError {
		c.failed.Add(1)
		text := fmt.Sprintf("%s %s: %d, %v", method, path, status, err)
		c.last.Store(&text)
	}
}

func (c *crowd) send(ctx context.Context, method, path string, header http.Header) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, c.api+path, http.NoBody)
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

// follow keeps a stream of an entity's events open.
func (c *crowd) follow(ctx context.Context) {
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for ctx.Err() == nil {
		_, _ = c.send(ctx, http.MethodGet, fmt.Sprint("/v1/", c.s.Source, "/", facet, "/well-1/events"), http.Header{"Accept": {"text/event-stream"}})
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// prefetch asks in the LOW lane, as nobody does over HTTP, and now and then sends a
// record that is no request.
func (c *crowd) prefetch(ctx context.Context, second int) {
	client, err := kgo.NewClient(kgo.SeedBrokers(c.s.Broker))
	if err != nil {
		return
	}
	defer client.Close()
	r := schemas.UpdateRequest{
		EventID: rand.Text(), Entity: schemas.Entity{Source: c.s.Source, Facet: facet, Key: fmt.Sprint("well-", second%wellKeys)},
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
