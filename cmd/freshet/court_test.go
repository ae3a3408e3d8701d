package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/sqlite"
	"github.com/freshet/freshet/topics"
)

const courtConfig = `
sources:
  court:
    baseURL: https://court.example
    quota: {policies: [{name: second, limit: 500, window: 1s, target: 450, highReserve: 100}]}
    facets:
      progress:
        documents: {progress: {path: "/progress?case={key}&encCsNo={encCsNo}"}}
        params: {encCsNo: ""}
        publishChanges: true
      general:
        documents: {general: {path: "/general?case={key}&encCsNo={encCsNo}"}}
        params: {encCsNo: ""}
    prefetch:
      facets:
        progress:
          mode: tiers
          tiers: {hot: {every: 6h}, warm: {every: 6h}, cold: {every: 6h}}
          triggers: {general: {backoff: 24h}}
          active: {status: {path: progress.status, block: [종결, 확정]}, params: [encCsNo]}
`

// court is an upstream with court cases whose state the test sets, and a dev process that keeps
// snapshots of these cases.
type court struct {
	*dev
	db    *sqlite.Store
	kafka *kgo.Client
	redis *redis.Client

	mu     sync.Mutex
	status string
	entry  int            // the last progress entry of every case has this number
	calls  map[string]int // number of calls of each entity, by facet/key
	odd    []string       // URIs of calls whose parameter encCsNo differs from the value registered for the case
}

func newCourt(t *testing.T) *court {
	t.Helper()
	c := &court{status: "진행중", calls: map[string]int{}}
	upstream := httptest.NewServer(c)
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	config := filepath.Join(dir, "freshet.yaml")
	if err := os.WriteFile(config, []byte(courtConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	c.dev = startDev(t, "--no-demo", "--config", config, "--upstream", upstream.URL, "--data-dir", dir)
	address := func(what string) string {
		return regexp.MustCompile(what + ` +([0-9.:]+)`).FindStringSubmatch(c.text)[1]
	}
	var err error
	if c.kafka, err = kgo.NewClient(kgo.SeedBrokers(address("Kafka")), kgo.DisableClientMetrics(), kgo.ConsumeTopics(schemas.ChangeTopic("court"))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kafka.Close)
	c.redis = redis.NewClient(&redis.Options{Addr: address("Redis")})
	t.Cleanup(func() { _ = c.redis.Close() })
	if c.db, err = sqlite.Open(t.Context(), filepath.Join(dir, "snapshots.db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.db.Close() })
	return c
}

func (c *court) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := r.URL.Query().Get("case")
	c.calls[r.URL.Path[1:]+"/"+key]++
	if r.URL.Query().Get("encCsNo") != "enc-"+key {
		c.odd = append(c.odd, r.RequestURI)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"status": c.status, "entry": c.entry})
}

// setStatus adds a progress entry to all cases and sets their status.
func (c *court) setStatus(status string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
	c.entry++
}

func (c *court) callCount(facet, key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[facet+"/"+key]
}

func (c *court) waitFor(what string, holds func() bool) {
	c.Helper()
	servicetest.WaitFor(c, eventTimeout, what, holds)
}

func caseOf(facet, key string) schemas.Entity {
	return schemas.Entity{Source: "court", Facet: facet, Key: key}
}

func (c *court) state(facet, key string) store.State {
	c.Helper()
	all, err := c.db.States(c.Context(), []schemas.Entity{caseOf(facet, key)})
	if err != nil {
		c.Fatal(err)
	}
	return all[0]
}

// register registers the facet progress of a case, so that it is prefetched at a due time.
func (c *court) register(key string, due time.Time) {
	c.Helper()
	e := caseOf("progress", key)
	if _, err := c.db.DeleteEntity(c.Context(), e); err != nil { // delete the entity first, because a case that is already registered would keep its old due time
		c.Fatal(err)
	}
	entity := prefetched.RegisteredEntity{Entity: e, Params: map[string]string{"encCsNo": "enc-" + key}, Tier: prefetched.Cold, Enabled: true, Due: due}
	if _, err := c.db.RegisterEntities(c.Context(), []prefetched.RegisteredEntity{entity}); err != nil {
		c.Fatal(err)
	}
}

// makeDue makes a case due now and notifies the scheduler.
func (c *court) makeDue(key string) {
	c.Helper()
	c.register(key, time.Now().Add(-time.Second))
	if err := c.redis.Publish(c.Context(), "schedule:court", fmt.Sprint(time.Now().UnixMilli())).Err(); err != nil {
		c.Fatal(err)
	}
}

// waitUntilSkipped waits until the scheduler has moved the due time of a due case. It then makes
// another case due, and waits until that case is prefetched and all requests are settled. The
// scheduler enqueues all due entities before it reads newly due ones. So if the first case has not
// been fetched by then, the scheduler has skipped it.
func (c *court) waitUntilSkipped(key string) {
	c.Helper()
	c.waitFor("a look at "+key, func() bool {
		all, err := c.db.Entities(c.Context(), prefetched.Filter{Source: "court", Facet: "progress", KeyPrefix: key}, schemas.Entity{}, 1)
		if err != nil {
			c.Fatal(err)
		}
		return len(all) == 1 && all[0].Due.After(time.Now())
	})
	c.makeDue("another")
	c.waitFor("a prefetch of another case", func() bool { return c.callCount("progress", "another") == 1 })
	c.waitUntilIdle()
}

// age moves the check time of a snapshot into the past.
func (c *court) age(facet, key string, by time.Duration) {
	c.Helper()
	s := c.state(facet, key)
	results, err := c.db.Write(c.Context(), []store.Write{{
		Entity: s.Entity, Kind: store.NotModified, Version: s.Version + 1, CheckedAt: time.Now().Add(-by),
		Hash: s.Hash, ExtractVersion: s.ExtractVersion, ETag: s.ETag, LastModified: s.LastModified,
	}})
	if err != nil || results[0] != store.Touched {
		c.Fatalf("write: got %v, %v, want %v", results, err, store.Touched)
	}
}

// waitUntilIdle waits until all requests are settled and all their triggers are delivered.
func (c *court) waitUntilIdle() {
	c.Helper()
	c.waitFor("the end of all that follows", func() bool {
		if c.lag() != 0 { // not idle yet: requests in flight may still write outbox events
			return false
		}
		next, err := c.db.NextOutboxTime(c.Context(), "court")
		if err != nil {
			c.Fatal(err)
		}
		return next.IsZero() && c.lag() == 0 // measure the lag again: meanwhile a relay may have enqueued a request and deleted its outbox event
	})
}

// lag returns the consumer lag in records, or -1 if it is unknown.
func (c *court) lag() int64 {
	b := topics.Measure(c.Context(), kadm.NewClient(c.kafka), "court")["court"]
	if b.LagErr != nil {
		return -1
	}
	return b.Lags[0].Records + b.Lags[1].Records
}

// reopen reads a case for the first time, and waits until its facet general is stored, too. The
// first snapshot of progress is a change, so it triggers a refresh of general.
func (c *court) reopen(key string) {
	c.Helper()
	c.register(key, time.Now().Add(time.Hour))
	if status, text := c.do(http.MethodGet, c.api+"/v1/court/progress/"+key); status != http.StatusAccepted && status != http.StatusOK {
		c.Fatalf("read of %s: got %d %s, want 202 or 200", key, status, text)
	}
	c.waitFor("what is general of "+key, func() bool { return c.state("general", key).HasContent() })
	c.waitUntilIdle()
}

// readChanges consumes n change events of a case.
func (c *court) readChanges(n int, key string) (all []schemas.Change) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), eventTimeout)
	defer cancel()
	for len(all) < n {
		fetches := c.kafka.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			c.Fatalf("changes: got %d, want %d: %v", len(all), n, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			change, err := schemas.DecodeChange(r.Value)
			if err != nil {
				c.Fatal(err)
			}
			if change.Entity == caseOf("progress", key) {
				all = append(all, change)
			} else if change.Entity.Facet != "progress" {
				c.Errorf("change: got one of %s, want only those of facet progress", change.Entity)
			}
		})
	}
	return all
}

func TestTrigger_RefreshesOtherFacetOncePerDay(t *testing.T) {
	c := newCourt(t)
	for key, checked := range map[string]time.Duration{"lately": 23 * time.Hour, "long-ago": 25 * time.Hour} {
		c.reopen(key)
		c.age("progress", key, 7*time.Hour)
		c.age("general", key, checked)
	}
	before := c.state("progress", "lately")
	c.setStatus("진행중")
	for _, key := range []string{"lately", "long-ago"} {
		c.makeDue(key)
		c.waitFor("a prefetch of "+key, func() bool { return c.callCount("progress", key) == 2 })
	}
	c.waitFor("a refresh of what is general", func() bool { return c.callCount("general", "long-ago") == 2 })
	c.waitUntilIdle()
	if n := c.callCount("general", "lately"); n != 1 {
		t.Errorf("calls of general within a day: got %d, want 1", n)
	}

	// If a refresh finds the facet progress unchanged, it triggers no refresh of the facet general.
	c.age("progress", "long-ago", 7*time.Hour)
	c.age("general", "long-ago", 25*time.Hour)
	c.makeDue("long-ago")
	c.waitFor("one more prefetch", func() bool { return c.callCount("progress", "long-ago") == 3 })
	c.waitUntilIdle()
	if n := c.callCount("general", "long-ago"); n != 2 {
		t.Errorf("calls of general without a change: got %d, want 2 in total", n)
	}

	after := c.state("progress", "lately")
	changes := c.readChanges(2, "lately")
	if first := changes[0]; len(first.Before) != 0 || !bytes.Equal(first.After, before.Hash[:]) {
		t.Errorf("first change: got %+v, want no hash before, %x after", first, before.Hash)
	}
	if second := changes[1]; !bytes.Equal(second.Before, before.Hash[:]) || !bytes.Equal(second.After, after.Hash[:]) || second.Version != after.Version {
		t.Errorf("second change: got %+v, want version %d", second, after.Version)
	}
	if len(c.odd) > 0 {
		t.Errorf("calls without the registered reference: got %q, want none", c.odd)
	}
}

func TestActive_SkipsClosedCaseUntilReopened(t *testing.T) {
	c := newCourt(t)
	c.reopen("closing")
	c.setStatus("종결")
	c.age("progress", "closing", 7*time.Hour)
	c.makeDue("closing")
	c.waitFor("the prefetch that finds it closed", func() bool { return c.callCount("progress", "closing") == 2 })
	c.waitUntilIdle()

	c.age("progress", "closing", 7*time.Hour)
	c.makeDue("closing")
	c.waitUntilSkipped("closing")
	if n := c.callCount("progress", "closing"); n != 2 {
		t.Fatalf("calls for a closed case: got %d, want 0", n)
	}

	c.setStatus("진행중") // the cases are in progress again, because of an appeal
	if status, text := c.do(http.MethodPost, c.api+"/v1/court/progress/closing/refresh"); status != http.StatusAccepted {
		t.Fatalf("refresh: got %d %s, want 202", status, text)
	}
	c.waitFor("the refresh", func() bool { return c.callCount("progress", "closing") == 3 })
	c.waitUntilIdle()
	c.age("progress", "closing", 7*time.Hour)
	c.makeDue("closing")
	c.waitFor("a prefetch of the open case", func() bool { return c.callCount("progress", "closing") == 4 })
}
