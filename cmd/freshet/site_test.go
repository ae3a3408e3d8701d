package main

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
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source/nexon"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
	"github.com/freshet/freshet/store/sqlite"
	"github.com/freshet/freshet/topics"
)

// site is the product with several sources, each of which has an upstream of its
// own, so that many failures can be watched at the same time. It is a process for
// each role on the real services; where these are not to be had, all of it runs in
// this process, as `freshet dev`.
type site struct {
	api     string
	metrics string // where the workers' metrics are
	store   interface {
		States(ctx context.Context, of []schemas.Entity) ([]store.State, error)
		Statuses(ctx context.Context, of []schemas.Entity) ([]store.Status, error)
		Letters(ctx context.Context, filter store.LetterFilter, behind store.Letter, limit int) ([]store.Letter, error)
		Fail(ctx context.Context, s store.Status, letter *store.Letter) error
	}
	kafka     *kgo.Client
	admin     *kadm.Client
	redis     redis.UniversalClient
	client    *http.Client
	upstreams map[string]*simulator.Simulator // by source
	names     map[string]string               // of the sources, by what each is for
}

// onReal says whether a site is built on the real services.
func onReal() bool {
	return os.Getenv("FRESHET_TEST_REQUIRE") != "" || os.Getenv("FRESHET_TEST_KAFKA") != ""
}

// newSite starts a site with a source for each purpose, whose configuration an edit
// may change, and so many worker processes (embedded: one).
func newSite(t *testing.T, partitions int32, workers int, purposes map[string]func(config string) string) *site {
	t.Helper()
	s := &site{
		client:    &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}, Timeout: patience},
		upstreams: map[string]*simulator.Simulator{}, names: map[string]string{},
	}
	t.Cleanup(s.client.CloseIdleConnections)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		upstream := s.upstreams[name]
		if upstream == nil {
			http.NotFound(w, r)
			return
		}
		http.StripPrefix("/"+name, upstream).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)

	var sources strings.Builder
	sources.WriteString("sources:\n")
	for purpose, edit := range purposes {
		name := servicetest.Name(purpose)
		s.names[purpose] = name
		s.upstreams[name] = simulator.New(simulator.Config{
			Limits:  []simulator.Limit{{Limit: 500, Window: time.Second}},
			Latency: simulator.Range{Min: 5 * time.Millisecond, Max: 50 * time.Millisecond},
		})
		t.Cleanup(s.upstreams[name].Close)
		config := strings.NewReplacer(
			"https://open.api.nexon.com", server.URL+"/"+name,
			"/character/item-equipment?", "/character/basic?", // what is judged here is not the size
		).Replace(string(nexon.Config))
		if edit != nil {
			config = edit(config)
		}
		fmt.Fprintf(&sources, "  %s:\n    %s\n", name, strings.ReplaceAll(config, "\n", "\n    "))
	}
	if onReal() {
		s.startReal(t, partitions, workers, sources.String())
	} else {
		s.startEmbedded(t, server.URL, sources.String())
	}
	t.Cleanup(s.kafka.Close)
	t.Cleanup(func() { _ = s.redis.Close() })
	s.admin = kadm.NewClient(s.kafka)
	within(t, patience, "a worker in every group", func() bool {
		var groups []string
		for _, name := range s.names {
			groups = append(groups, schemas.Group(name, schemas.High), schemas.Group(name, schemas.Low))
		}
		all, err := s.admin.DescribeGroups(t.Context(), groups...)
		for _, g := range all {
			if g.Err != nil || g.State != "Stable" {
				return false
			}
		}
		return err == nil && len(all) == len(groups)
	})
	return s
}

func (s *site) connect(t *testing.T, redisAddress string, brokers ...string) {
	t.Helper()
	var err error
	if s.kafka, err = kgo.NewClient(kgo.SeedBrokers(brokers...)); err != nil {
		t.Fatal(err)
	}
	s.redis = redis.NewClient(&redis.Options{Addr: redisAddress})
}

func (s *site) startReal(t *testing.T, partitions int32, workers int, sources string) {
	t.Helper()
	f := &fleet{TB: t, database: servicetest.Postgres(t), client: s.client}
	brokers, redisAddress := servicetest.Kafka(t), servicetest.RedisAddress(t)
	var err error
	if f.binary, err = build(); err != nil {
		t.Fatal(err)
	}
	f.config = filepath.Join(t.TempDir(), "freshet.yaml")
	text := fmt.Sprintf("kafka: {brokers: [%q]}\nredis: {mode: single, addresses: [%q]}\n%s", strings.Join(brokers, `", "`), redisAddress, sources)
	if err := os.WriteFile(f.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.env = []string{"NEXON_API_KEY=a-key", "FRESHET_DATABASE_URL=" + f.database, "FRESHET_CONFIG=" + f.config}
	f.must("migrate", "up")
	s.connect(t, redisAddress, brokers...)
	admin := kadm.NewClient(s.kafka)
	for _, name := range s.names {
		for _, topic := range schemas.Topics(name) {
			// Fewer partitions than in production: there are many sources.
			if _, err := admin.CreateTopic(t.Context(), min(partitions, topic.Partitions), 1, nil, topic.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() {
		client, err := kgo.NewClient(kgo.SeedBrokers(brokers...)) // the site's is closed by then
		if err != nil {
			t.Error(err)
			return
		}
		defer client.Close()
		for _, name := range s.names {
			for _, topic := range schemas.Topics(name) {
				_, _ = kadm.NewClient(client).DeleteTopic(context.Background(), topic.Name)
			}
		}
	})
	db, err := postgres.Open(t.Context(), f.database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	s.store = db
	s.api = f.query()
	for range workers {
		ops := freeAddress(t)
		s.metrics = "http://" + ops + "/metrics"
		f.start("worker is up", "worker", "--ops-listen", ops)
	}
}

// freeAddress returns one on which nobody listens at the moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func (s *site) startEmbedded(t *testing.T, upstream, sources string) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "freshet.yaml")
	if err := os.WriteFile(config, []byte(sources), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDev(t, "--no-demo", "--config", config, "--upstream", upstream, "--data-dir", dir)
	at := func(what string) string {
		return regexp.MustCompile(what + ` +([0-9.:]+)`).FindStringSubmatch(d.text)[1]
	}
	s.api, s.metrics = d.api, d.api+"/metrics"
	s.connect(t, at("Redis"), at("Kafka"))
	db, err := sqlite.Open(t.Context(), filepath.Join(dir, "snapshots.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s.store = db
}

// ill is one source of a site, and what a test has asked of it.
type ill struct {
	*testing.T
	*site
	source   string
	upstream *simulator.Simulator
	keys     []string // asked for so far
}

func (s *site) of(t *testing.T, purpose string) *ill {
	return &ill{T: t, site: s, source: s.names[purpose], upstream: s.upstreams[s.names[purpose]]}
}

func (c *ill) entity(key string) schemas.Entity {
	return schemas.Entity{Source: c.source, Facet: "character", Key: key}
}

// ailing has the upstream misbehave like that; without any fault it is well.
func (c *ill) ailing(faults ...simulator.Fault) {
	c.Helper()
	if err := c.upstream.Control(simulator.Control{Faults: append([]simulator.Fault{}, faults...)}); err != nil {
		c.Fatal(err)
	}
}

type answer struct {
	Freshness       string `json:"freshness"`
	UpdateQueued    bool   `json:"updateQueued"`
	NotQueuedReason string `json:"notQueuedReason"`
}

func (c *ill) read(key string) (a answer, err error) {
	req, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.api+"/v1/"+c.source+"/character/"+key, http.NoBody)
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

// ask reads the keys until each is promised, fresh, or held.
func (c *ill) ask(keys ...string) {
	c.Helper()
	c.keys = append(c.keys, keys...)
	c.visit(keys...)
}

// visit is ask for keys that were asked for before.
func (c *ill) visit(keys ...string) {
	c.Helper()
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
				failed = errors.Join(failed, c.promised(key))
			}
			errs <- failed
		}()
	}
	for range readers {
		if err := <-errs; err != nil {
			c.Error(err)
		}
	}
}

func (c *ill) promised(key string) error {
	deadline := time.Now().Add(2 * patience) // after a timeout the readers' breaker rests for 30 s
	for {
		a, err := c.read(key)
		if a.UpdateQueued || a.Freshness == "FRESH" || strings.HasPrefix(a.NotQueuedReason, "HELD_") {
			return nil
		}
		if time.Now().After(deadline) || c.Context().Err() != nil {
			return fmt.Errorf("%s is not promised within %v: %+v, %w", key, 2*patience, a, cmp.Or(err, errUnavailable))
		}
	}
}

// trickle asks for new keys, so many a second, until then.
func (c *ill) trickle(prefix string, perSecond int, until time.Time) {
	c.Helper()
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for i := 0; time.Now().Before(until); i++ {
		c.ask(prefix + strconv.Itoa(i))
		<-tick.C
	}
}

// untilFresh waits until the upstream was asked about every key, which the store
// tells: to read them would be to ask for them again. It returns how long that took.
func (c *ill) untilFresh(limit time.Duration, since time.Time) time.Duration {
	c.Helper()
	deadline := since.Add(limit)
	left := c.keys
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		var missing []string
		const most = 500
		for from := 0; from < len(left); from += most {
			some := left[from:min(len(left), from+most)]
			of := make([]schemas.Entity, len(some))
			for i, key := range some {
				of[i] = c.entity(key)
			}
			states, err := c.store.States(c.Context(), of)
			if err != nil {
				c.Fatal(err)
			}
			for i, state := range states {
				if state.CheckedAt.IsZero() {
					missing = append(missing, some[i])
				}
			}
			if len(missing) > 0 { // the others are for another look
				missing = append(missing, left[min(len(left), from+most):]...)
				break
			}
		}
		if left = missing; len(left) == 0 {
			return time.Since(since)
		}
		if time.Now().After(deadline) {
			c.Fatalf("%d of %d entities are not fresh %v after the end, among them %s", len(left), len(c.keys), limit, left[0])
		}
		<-look.C
	}
}

// status returns what is written down of an entity's failures.
func (c *ill) status(key string) store.Status {
	c.Helper()
	all, err := c.store.Statuses(c.Context(), []schemas.Entity{c.entity(key)})
	if err != nil {
		c.Fatal(err)
	}
	return all[0]
}

// due has a scheduled retry come due now, as if its time had passed.
func (c *ill) due(s store.Status) {
	c.Helper()
	s.Until = time.Now().Add(-time.Second)
	if err := c.store.Fail(c.Context(), s, nil); err != nil {
		c.Fatal(err)
	}
	if err := c.redis.Publish(c.Context(), "retries:"+c.source, strconv.FormatInt(s.Until.UnixMilli(), 10)).Err(); err != nil {
		c.Fatal(err)
	}
}

// letters returns how many records are on the dead-letter topic.
func (c *ill) letters() (n int) {
	c.Helper()
	ends, err := c.admin.ListEndOffsets(c.Context(), schemas.DeadLetterTopic(c.source))
	if err = errors.Join(err, ends.Error()); err != nil {
		c.Log(err) // a topic that has just been made; the next look tells
		return -1
	}
	ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	return n
}

// behind returns how many records are not committed, in both lanes.
func (c *ill) behind() int64 {
	lags, err := topics.Measure(c.Context(), c.admin, c.source)
	if err != nil {
		c.Log(err) // a coordinator that moves; the next look tells
		return -1
	}
	return lags[0].Records + lags[1].Records
}

// aftermath judges what is left when everything is over: every offset committed,
// no failure written down, and so many letters, on the topic and in the index.
func (c *ill) aftermath(letters int) {
	c.Helper()
	within(c, patience, "the commit of every offset", func() bool { return c.behind() == 0 })
	index, err := c.store.Letters(c.Context(), store.LetterFilter{Source: c.source, Handled: store.OpenLetters}, store.Letter{}, 1000)
	if err != nil {
		c.Fatal(err)
	}
	if n := c.letters(); n != letters || len(index) != letters {
		c.Errorf("%d dead letters, %d in the index; want %d", n, len(index), letters)
	}
	for _, key := range c.keys {
		if s := c.status(key); s.State != "" {
			c.Errorf("%s ends as %s after %d rounds: %s", key, s.State, s.Rounds, s.Error)
		}
		if a, err := c.read(key); err != nil || (a.Freshness != "FRESH" && a.Freshness != "NOT_FOUND") {
			c.Errorf("%s is %s, %v", key, a.Freshness, err)
		}
	}
}

// metric returns the sum of the workers' metric with these labels.
func (c *ill) metric(name string, labels ...string) (sum float64) {
	c.Helper()
	req, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.metrics, http.NoBody)
	if err != nil {
		c.Fatal(err)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		c.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.Fatal(err)
	}
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
		if err != nil {
			c.Fatal(err)
		}
		sum += n
	}
	return sum
}
