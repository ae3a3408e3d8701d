package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/postgres"
)

// sources is an installation with several sources. Each source has its own upstream in the test
// process, so that many failures can be tested at the same time.
type sources struct {
	*fleet
	api       string
	metrics   string // URL of the metrics of the worker that was started last
	store     *postgres.Store
	kafka     *kgo.Client
	redis     redis.UniversalClient
	upstreams map[string]*simulator.Simulator // upstream of each source, by the name of the source
	names     map[string]string               // generated names of the sources, by the name of the test
}

// newSources starts an installation with one source for each name in edits. The function under that
// name changes the source's configuration; it may be nil. partitions is the number of partitions of
// each topic.
func newSources(t *testing.T, partitions int32, workers int, edits map[string]func(config string) string) *sources {
	t.Helper()
	s := &sources{fleet: newSite(t), upstreams: map[string]*simulator.Simulator{}, names: map[string]string{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		upstream := s.upstreams[name]
		if upstream == nil {
			http.NotFound(w, r)
			return
		}
		http.StripPrefix("/"+name, upstream).ServeHTTP(w, r)
	}))
	s.OnClose(server.Close)
	s.Sources, s.MaxPartitions = map[string]string{}, partitions
	for test, edit := range edits {
		name := servicetest.Name(test)
		s.names[test] = name
		s.upstreams[name] = simulator.New(simulator.Config{
			Limits:  []simulator.Limit{{Limit: 500, Window: time.Second}},
			Latency: simulator.Range{Min: 5 * time.Millisecond, Max: 50 * time.Millisecond},
		})
		s.OnClose(s.upstreams[name].Close)
		config := strings.NewReplacer(
			"https://open.api.nexon.com", server.URL+"/"+name,
			"/character/item-equipment?", "/character/basic?", // fetch the small document "basic" instead
		).Replace(harness.Preset("https://open.api.nexon.com", map[string]string{"character": "item-equipment"}))
		if edit != nil {
			config = edit(config)
		}
		s.Sources[name] = config
	}
	s.check(s.CreateTables(t.Context()))
	s.connect()
	var err error
	s.kafka, err = s.ConnectKafka()
	s.check(err)
	s.OnClose(s.kafka.Close)
	s.redis = redis.NewClient(&redis.Options{Addr: s.Redis.Address})
	s.OnClose(func() { _ = s.redis.Close() })
	s.store, err = postgres.Open(t.Context(), s.Database)
	s.check(err)
	s.OnClose(s.store.Close)
	s.api = s.query()
	s.startWorkers(workers)
	return s
}

// startWorkers starts workers and waits until each consumer group has a member.
func (s *sources) startWorkers(n int) {
	s.Helper()
	for range n {
		port, err := s.FreePort(s.Context())
		s.check(err)
		address := net.JoinHostPort("127.0.0.1", port)
		_, err = s.StartTarget(s.Context(), "worker", "worker", address)
		s.check(err)
		s.metrics = "http://" + address + "/metrics"
	}
	var groups []string
	for _, name := range s.names {
		groups = append(groups, schemas.Group(name, schemas.High), schemas.Group(name, schemas.Low))
	}
	s.until(timeout, "a worker in every group", func() bool {
		all, err := s.admin.DescribeGroups(s.Context(), groups...)
		for _, g := range all {
			if g.Err != nil || g.State != "Stable" {
				return false
			}
		}
		return err == nil && len(all) == len(groups)
	})
}

// testSource is one source of the installation, with the keys that its test has requested.
type testSource struct {
	*testing.T
	*sources
	source   string
	upstream *simulator.Simulator
	keys     []string
}

func (s *sources) of(t *testing.T, test string) *testSource {
	return &testSource{T: t, sources: s, source: s.names[test], upstream: s.upstreams[s.names[test]]}
}

func (c *testSource) entity(key string) schemas.Entity {
	return schemas.Entity{Source: c.source, Facet: "character", Key: key}
}

// must ends the test if err is not nil.
func (c *testSource) must(err error) {
	c.T.Helper()
	if err != nil {
		c.T.Fatal(err)
	}
}

// within waits until the function `holds` returns true. If the limit passes first, it fails the
// test.
func (c *testSource) within(limit time.Duration, what string, holds func() bool) {
	c.T.Helper()
	c.must(harness.Until(c.T.Context(), limit, what, func() (bool, error) { return holds(), nil }))
}

// fail replaces the faults of the upstream. Without arguments every call succeeds again.
func (c *testSource) fail(faults ...simulator.Fault) {
	c.T.Helper()
	c.must(c.upstream.Control(simulator.Control{Faults: append([]simulator.Fault{}, faults...)}))
}

// answer contains some fields of the response to a read.
type answer struct {
	Freshness string               `json:"freshness"`
	Refresh   harness.RefreshState `json:"refresh"`
}

func (c *testSource) get(key string) (a answer, err error) {
	req, err := http.NewRequestWithContext(c.T.Context(), http.MethodGet, c.api+"/v1/"+c.source+"/character/"+key, http.NoBody)
	if err != nil {
		return a, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	return a, err
}

// request reads new keys, each repeatedly until its entity is queued, fresh or held. It adds them
// to c.keys.
func (c *testSource) request(keys ...string) {
	c.T.Helper()
	c.keys = append(c.keys, keys...)
	work := make(chan string, len(keys))
	for _, key := range keys {
		work <- key
	}
	close(work)
	errs := make(chan error)
	readers := min(20, len(keys))
	for range readers {
		go func() {
			var failed error
			for key := range work {
				failed = errors.Join(failed, c.queued(key))
			}
			errs <- failed
		}()
	}
	for range readers {
		if err := <-errs; err != nil {
			c.T.Error(err)
		}
	}
}

// queued reads a key repeatedly until its entity is queued, fresh or held. One read may not be
// enough: after timeouts, the query service's circuit breaker of Redis rejects requests for up to 2
// s.
func (c *testSource) queued(key string) error {
	deadline := time.Now().Add(2 * timeout)
	for {
		a, err := c.get(key)
		if a.Refresh.Queued || a.Freshness == "FRESH" || strings.HasPrefix(a.Refresh.Reason, "HELD_") {
			return nil
		}
		if time.Now().After(deadline) || c.T.Context().Err() != nil {
			return fmt.Errorf("%s is not queued within %v: %+v, %w", key, 2*timeout, a, cmp.Or(err, harness.ErrUnavailable))
		}
	}
}

// trickle requests new keys until the given time. perSecond is the number of keys per second.
func (c *testSource) trickle(prefix string, perSecond int, until time.Time) {
	c.T.Helper()
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for i := 0; time.Now().Before(until); i++ {
		c.request(prefix + strconv.Itoa(i))
		<-tick.C
	}
}

// untilChecked waits until the database has a check time for every key in c.keys. It returns the
// duration from the time `since` until then. It does not read the keys through the API, because a read
// would request the keys again.
func (c *testSource) untilChecked(limit time.Duration, since time.Time) time.Duration {
	c.T.Helper()
	left := c.keys
	err := harness.Until(c.T.Context(), limit, "a check of each entity", func() (bool, error) {
		const batch = 500
		for len(left) > 0 {
			some := left[:min(len(left), batch)]
			of := make([]schemas.Entity, len(some))
			for i, key := range some {
				of[i] = c.entity(key)
			}
			states, err := c.store.States(c.T.Context(), of)
			if err != nil {
				return false, err
			}
			var missing []string
			for i, state := range states {
				if state.CheckedAt.IsZero() {
					missing = append(missing, some[i])
				}
			}
			left = append(missing, left[len(some):]...)
			if len(missing) > 0 {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		c.T.Fatalf("%d of %d entities are not checked, among them %s: %v", len(left), len(c.keys), left[0], err)
	}
	return time.Since(since)
}

// status returns the recorded failure of an entity.
func (c *testSource) status(key string) store.Status {
	c.T.Helper()
	all, err := c.store.Statuses(c.T.Context(), []schemas.Entity{c.entity(key)})
	c.must(err)
	return all[0]
}

// retryNow makes a scheduled retry due immediately.
func (c *testSource) retryNow(s store.Status) {
	c.T.Helper()
	s.Until = time.Now().Add(-time.Second)
	c.must(c.store.WriteFailure(c.T.Context(), s, nil))
	c.must(c.redis.Publish(c.T.Context(), "retries:"+c.source, strconv.FormatInt(s.Until.UnixMilli(), 10)).Err())
}

// deadLetters returns the number of records on the source's dead-letter topic. It returns -1 while
// Kafka creates the topic.
func (c *testSource) deadLetters() int {
	c.T.Helper()
	n, err := c.SourceDeadLetters(c.T.Context(), c.source)
	if err != nil {
		c.T.Log(err)
		return -1
	}
	return n
}

// indexed returns the source's open dead letters from the index in the database.
func (c *testSource) indexed() []deadletters.DeadLetter {
	c.T.Helper()
	all, err := c.store.DeadLetters(c.T.Context(), deadletters.Filter{Source: c.source, Handled: deadletters.Open}, deadletters.DeadLetter{}, 1000)
	c.must(err)
	return all
}

// lag returns the number of records in both lanes whose offsets are not committed. It returns -1
// while Kafka's group coordinator moves to another broker.
func (c *testSource) lag() int64 {
	n, err := c.SourceLag(c.T.Context(), c.source, schemas.High, schemas.Low)
	if err != nil {
		c.T.Log(err)
		return -1
	}
	return n
}

// expectEnd checks the state at the end of a test. Every offset must be committed. Each key in c.keys
// must have no recorded failure, and must be FRESH or NOT_FOUND. The topic and the index must have the
// given number of dead letters.
func (c *testSource) expectEnd(deadLetters int) {
	c.T.Helper()
	c.within(timeout, "the commit of every offset", func() bool { return c.lag() == 0 })
	equal(c.T, "dead letters on the topic", c.deadLetters(), deadLetters)
	equal(c.T, "dead letters in the index", len(c.indexed()), deadLetters)
	for _, key := range c.keys {
		if s := c.status(key); s.State != "" {
			c.T.Errorf("%s: got the state %s after %d rounds (%s), want none", key, s.State, s.Rounds, s.Error)
		}
		if a, err := c.get(key); err != nil || (a.Freshness != "FRESH" && a.Freshness != "NOT_FOUND") {
			c.T.Errorf("%s: got %s, %v, want FRESH or NOT_FOUND", key, a.Freshness, err)
		}
	}
}

// metric returns the sum of the worker's series of a metric with the given labels.
func (c *testSource) metric(name string, labels ...string) (sum float64) {
	c.T.Helper()
	req, err := http.NewRequestWithContext(c.T.Context(), http.MethodGet, c.metrics, http.NoBody)
	c.must(err)
	resp, err := c.client.Do(req)
	c.must(err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	c.must(err)
lines:
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("freshet_"+name+"{")) {
			continue
		}
		for _, label := range append(labels, `source="`+c.source+`"`) {
			if !bytes.Contains(line, []byte(label)) {
				continue lines
			}
		}
		n, err := strconv.ParseFloat(string(bytes.TrimSpace(line[bytes.LastIndexByte(line, ' '):])), 64)
		c.must(err)
		sum += n
	}
	return sum
}

// only returns the value of the only record of a topic. It fails the test if the topic has no record
// or several records.
func (c *testSource) only(topic string) []byte {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), timeout)
	defer cancel()
	all, err := c.ReadTopic(ctx, topic)
	c.must(err)
	if len(all) != 1 {
		c.T.Fatalf("records of %s: got %d, want 1", topic, len(all))
	}
	return all[0].Value
}
