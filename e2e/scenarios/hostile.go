package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/simulator"
)

const (
	honestClients = 20
	madeUpKeys    = 2000
	refusedKeys   = 200
	// probePause is the maximum time for which the source's circuit breaker is allowed to stay
	// open or half-open: one pause of 5 s before a probe, and the probe's call.
	probePause = 6 * time.Second
)

// refusals are the ways in which the upstream fails for the keys of the second hostile client, used
// in turn.
var refusals = []simulator.Fault{
	{Kind: simulator.BadKey},
	{Kind: simulator.TooManyRequests},
	{Kind: simulator.HTML200},
	{Kind: simulator.BadJSON},
	{Kind: simulator.Oversize, Bytes: 16 << 20},
}

// hostile judges that two hostile clients do not harm 20 honest clients. Each honest client reads one
// new key a second. The first hostile client reads 2,000 keys for which the upstream returns 400. The
// second hostile client reads 200 keys for which the upstream returns 401, 429, an HTML page,
// truncated JSON or 16 MB.
func hostile(ctx context.Context, s *site, o options) error {
	s.Token = rand.Text() + rand.Text()
	s.Edits = []string{"retry: [1m, 2m, 4m]", "retry: [1s, 2s]"}
	if err := s.Prepare(ctx, onlySmall, "--latency", "30ms-300ms"); err != nil {
		return err
	}
	faults := []simulator.Fault{{Key: "^bad-400-", Kind: simulator.BadParameter}}
	for i, f := range refusals {
		f.Key = fmt.Sprintf("^bad-refused-%d-", i)
		faults = append(faults, f)
	}
	if err := s.Control(ctx, simulator.Control{Faults: faults}); err != nil {
		return err
	}
	for _, name := range []string{"worker-1", "worker-2"} {
		if _, err := s.Worker(ctx, name); err != nil {
			return err
		}
	}
	api, err := s.Query(ctx, "query-0", "")
	if err != nil {
		return err
	}
	h := &hostileRun{s: s, api: api, accepted: map[string]bool{}, states: map[string]int{}}
	clients := make([]*http.Client, honestClients+2)
	for i := range clients {
		if clients[i], err = h.client(ctx, fmt.Sprint("client-", i)); err != nil {
			return err
		}
	}
	running, stop := context.WithTimeout(ctx, 2*time.Duration(o.seconds)*time.Second)
	defer stop()
	var all sync.WaitGroup
	for i := range honestClients {
		all.Go(func() { h.honest(running, clients[i], fmt.Sprintf("honest-%d-", i)) })
	}
	refused := make([]string, refusedKeys)
	for i := range refused {
		refused[i] = fmt.Sprintf("bad-refused-%d-%d", i%len(refusals), i)
	}
	all.Go(func() { h.flood(running, clients[honestClients], harness.Keys("bad-400-", madeUpKeys)) })
	all.Go(func() { h.flood(running, clients[honestClients+1], refused) })
	all.Go(func() { h.watchBreaker(running) })
	all.Wait()
	return h.judge(ctx, o.brief)
}

// hostileRun records the responses to the hostile and the honest clients.
type hostileRun struct {
	s   *site
	api string

	mu       sync.Mutex
	took     []time.Duration // times from the first read of a new key by an honest client until the key was FRESH
	failed   int             // number of reads of honest clients after which the key was still not FRESH
	last     string          // description of the last read after which the key was still not FRESH
	accepted map[string]bool // the hostile keys for which an update request was accepted
	open     time.Duration   // longest time for which the source's breaker was not closed
	states   map[string]int
}

// client creates an API key and returns a client that sends it.
func (h *hostileRun) client(ctx context.Context, name string) (*http.Client, error) {
	token, err := h.s.CreateKey(ctx, h.api, name, "read")
	return &http.Client{Transport: harness.Bearer{Token: token}, Timeout: harness.Timeout}, err
}

func (h *hostileRun) reader(client *http.Client) harness.Reader {
	return harness.Reader{API: h.api + "/v1/" + h.s.Source, Facet: small, Client: client}
}

// honest reads a new key each second and waits until it is FRESH.
func (h *hostileRun) honest(ctx context.Context, client *http.Client, prefix string) {
	r := h.reader(client)
	each := time.NewTicker(time.Second)
	defer each.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		begun := time.Now()
		got, err := r.Read(ctx, fmt.Sprint(prefix, n), "?wait=10s")
		if ctx.Err() != nil {
			return
		}
		h.mu.Lock()
		if err == nil && got.Freshness == "FRESH" {
			h.took = append(h.took, time.Since(begun))
		} else {
			h.failed++
			h.last = fmt.Sprintf("%d %s %v", got.Status, got.Freshness, err)
		}
		h.mu.Unlock()
		select {
		case <-each.C:
		case <-ctx.Done():
		}
	}
}

// flood reads keys in batches of 100, again and again, until an update request was accepted for
// each key.
func (h *hostileRun) flood(ctx context.Context, client *http.Client, keys []string) {
	r := h.reader(client)
	for ctx.Err() == nil && len(keys) > 0 {
		var open []string
		for i := 0; i < len(keys); i += 100 {
			batch := keys[i:min(i+100, len(keys))]
			text, _, err := r.Do(ctx, http.MethodGet, r.API+"/"+r.Facet+"?"+url.Values{"key": batch}.Encode(), "")
			var got struct {
				Items []struct {
					Key     string
					Refresh harness.RefreshState
				}
			}
			if err != nil || json.Unmarshal(text, &got) != nil {
				open = append(open, batch...)
				continue
			}
			h.mu.Lock()
			for _, item := range got.Items {
				if item.Refresh.Queued {
					h.accepted[item.Key] = true
				}
			}
			for _, key := range batch {
				if !h.accepted[key] {
					open = append(open, key)
				}
			}
			h.mu.Unlock()
		}
		keys = open
		_ = harness.Pause(ctx, time.Second/2)
	}
}

// watchBreaker samples the state of the limiter four times a second.
func (h *hostileRun) watchBreaker(ctx context.Context) {
	client := &http.Client{Transport: harness.Bearer{Token: h.s.Token}, Timeout: harness.Timeout}
	r := h.reader(client)
	var since time.Time
	for harness.Pause(ctx, time.Second/4) == nil {
		text, _, err := r.Do(ctx, http.MethodGet, h.api+"/admin/v1/limiter/"+h.s.Source, "")
		var view struct{ State string }
		if err != nil || json.Unmarshal(text, &view) != nil {
			continue
		}
		h.mu.Lock()
		h.states[view.State]++
		if view.State == "flowing" {
			since = time.Time{}
		} else if since.IsZero() {
			since = time.Now()
		}
		if !since.IsZero() {
			h.open = max(h.open, time.Since(since))
		}
		h.mu.Unlock()
	}
}

// endedRows counts the hostile keys whose request has ended, with a recorded failure or with a
// stored not-found result.
const endedRows = `SELECT count(*) FROM (SELECT key FROM update_status WHERE starts_with(key, 'bad-')
	UNION SELECT key FROM snapshot_state WHERE starts_with(key, 'bad-')) AS ended`

// judge adds a table with the figures of the run to the results. If `brief` is true, it reports the
// latency without judging it.
func (h *hostileRun) judge(ctx context.Context, brief bool) error {
	ended := 0
	err := harness.Until(ctx, 10*time.Minute, "a final state of every accepted hostile key", func() (bool, error) {
		var err error
		ended, err = h.s.Number(ctx, endedRows)
		return ended >= len(h.accepted), err
	})
	committed := h.s.UntilCommitted(ctx, 4*harness.Timeout)
	t := &table{}
	t.judge("new keys of honest clients that were not FRESH within 10 s", fmt.Sprintf("%d of %d %s", h.failed, h.failed+len(h.took), h.last), "0", h.failed == 0 && len(h.took) > 0)
	if brief {
		t.report("  time until FRESH, p95", "%s", formatDuration(p95(h.took)))
	} else {
		t.judgeBelow("  time until FRESH, p95", p95(h.took), 3*time.Second)
	}
	t.judgeBelow("longest time until the source's breaker was closed", h.open, probePause)
	t.report("states of the limiter, samples", "%v", h.states)
	t.judge("hostile keys accepted, with a final state", fmt.Sprintf("%d, %d", len(h.accepted), ended), "equal", err == nil && ended >= len(h.accepted) && len(h.accepted) > refusedKeys)
	t.judge("every offset committed", errorOrYes(err, committed), "yes", err == nil && committed == nil)
	h.s.addResult("hostile", t)
	return nil
}
