package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/console"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/sqlite"
)

// consoleFixture holds the console's dependencies on embedded services.
type consoleFixture struct {
	*testing.T
	parts
	server    *query.Server
	deps      console.Deps
	stopRedis func()
}

func newConsoleFixture(t *testing.T, change func(*parts)) *consoleFixture {
	t.Helper()
	config, err := loadConfig("", nil, builtInSources)
	if err != nil {
		t.Fatal(err)
	}
	topics := []kfake.Opt{kfake.NumBrokers(1)}
	for _, topic := range schemas.Topics(builtInSource) {
		topics = append(topics, kfake.SeedTopics(topic.Partitions, topic.Name))
	}
	kafka, err := kfake.NewCluster(topics...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	f := &consoleFixture{T: t}
	rdb, m := servicetest.MiniRedis(t)
	f.stopRedis = m.Close
	p := parts{config: config, store: db, rdb: rdb, kafka: []kgo.Opt{kgo.SeedBrokers(kafka.ListenAddrs()...), kgo.DisableClientMetrics()}, secret: noSecret, log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&p)
	}
	p.registry, p.reg = newRegistry(p.config.Metrics.Namespace)
	ctx, cancel := context.WithCancel(context.Background())
	got, done := make(chan parts, 1), make(chan error, 1)
	go func() {
		done <- p.run(ctx, func(ctx context.Context, p parts) error {
			got <- p
			<-ctx.Done()
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	f.parts = <-got
	f.wire()
	return f
}

// wire builds the console's dependencies as queryRole.serve does, but without a listener.
func (f *consoleFixture) wire() {
	f.Helper()
	sources, err := f.sources()
	if err != nil {
		f.Fatal(err)
	}
	role := queryRole{f.parts}
	guard, meters, err := role.newGuard(f.Context(), "127.0.0.1:1")
	if err != nil {
		f.Fatal(err)
	}
	h := newQueryHealth(f.parts, guard, func(context.Context) error { return errors.New("nothing is remembered") })
	dead := role.deadLetters(sources)
	refresh := func(ctx context.Context, client access.Client, all []schemas.Entity, facet source.Facet) []query.EnqueueResult {
		return f.server.Refresh(ctx, client, all, facet)
	}
	pages, _ := role.console(sources, guard, meters, h, dead, refresh, newLimiterStates(f.parts))
	f.server, err = query.New(query.Config{Memory: 1 << 20}, query.Deps{
		Store: newQueryStore(f.parts), Sources: map[string]query.Source{builtInSource: sources[builtInSource]}, Enqueuer: highEnqueuer{Producer: f.producer, waits: newWaits(f.lag, nil, nil, f.log)}, SettleSubscriber: settles{f.parts, nil, nil},
		WaitEstimator: newWaits(f.lag, nil, newLimiterStates(f.parts).estimate, f.log), Authenticator: guard, ClientLimiter: meters, Ops: http.NotFoundHandler(), Admin: http.NotFoundHandler(),
		Console: pages, Log: f.log, Metrics: f.reg,
	})
	if err != nil {
		f.Fatal(err)
	}
	f.deps = role.consoleDeps(sources, guard, meters, &overview{f.parts, h, status.NewReads(f.reg, []string{builtInSource}), newHistory(f.parts, newLimiterStates(f.parts))}, dead, refresh)
}

func testEntity(key string) schemas.Entity {
	return schemas.Entity{Source: builtInSource, Facet: "character", Key: key}
}

// write stores a snapshot whose last check was the duration `age` ago.
func (f *consoleFixture) write(key string, version int64, age time.Duration, visibility string) {
	f.Helper()
	text := []byte(`{"name":"` + key + `"}`)
	results, err := f.store.Write(f.Context(), []store.Write{{
		Entity: testEntity(key), Kind: store.Content, Version: version, CheckedAt: time.Now().Add(-age), Hash: store.Hash{byte(version)}, Visibility: visibility,
		Payload: func() (store.Payload, error) { return store.Encode(text), nil },
	}})
	if err != nil || results[0] != store.Changed {
		f.Fatalf("write: got %v, %v, want %v", results, err, store.Changed)
	}
}

// send sends a request from a loopback address.
func (f *consoleFixture) send(method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	f.server.ServeHTTP(w, httptest.NewRequestWithContext(f.Context(), method, "http://127.0.0.1"+path, http.NoBody))
	return w
}

func TestConsoleReads_CountsByFreshness(t *testing.T) {
	for _, namespace := range []string{"freshet", ""} {
		f := newConsoleFixture(t, func(p *parts) { p.config.Metrics.Namespace = namespace })
		if got := f.deps.Overview.Reads(); !reflect.DeepEqual(got, []status.ReadStats{{Source: builtInSource}}) {
			t.Errorf("before any read: got %+v, want no reads of %s", got, builtInSource)
		}
		f.write("fresh", 1, 10*time.Minute, "")
		f.write("stale", 2, 5*time.Hour, "")
		for range 18 {
			f.send(http.MethodGet, "/v1/nexon/character/fresh")
		}
		f.send(http.MethodGet, "/v1/nexon/character/stale")
		f.send(http.MethodGet, "/v1/nexon/character/stale")
		f.send(http.MethodGet, "/v1/nexon/character/new")
		servicetest.WaitFor(t, eventTimeout, "the count", func() bool { return f.deps.Overview.Reads()[0].Updating == 1 })
		got := f.deps.Overview.Reads()[0]
		about := func(got, want time.Duration) bool { return got > want*9/10 && got < want*11/10 }
		if got.Fresh != 18 || got.Stale != 2 || got.NotFound != 0 || !about(got.AgeP50, 10*time.Minute) || !about(got.AgeP95, 5*time.Hour) {
			t.Errorf("namespace %q: got %+v, want 18 fresh, 2 stale, 0 not found, ages of about 10m and 5h", namespace, got)
		}
	}
}

func TestConsoleOverview_NamesFailedDependency(t *testing.T) {
	f := newConsoleFixture(t, nil)
	down := func() (names []string) {
		all := f.deps.Overview.Dependencies(t.Context())
		if !slices.IsSortedFunc(all, func(a, b console.Dependency) int { return strings.Compare(a.Name, b.Name) }) || len(all) != 3 {
			t.Fatalf("dependencies: got %+v, want 3, sorted by name", all)
		}
		for _, d := range all {
			if d.Error != "" {
				names = append(names, d.Name)
			}
		}
		return names
	}
	if got := down(); len(got) > 0 {
		t.Errorf("failed dependencies: got %v, want none", got)
	}
	f.stopRedis()
	servicetest.WaitFor(t, eventTimeout, "that Redis is down", func() bool { return slices.Equal(down(), []string{"redis"}) })
}

func TestConsoleOverview_ShowsLanes(t *testing.T) {
	f := newConsoleFixture(t, nil)
	for _, key := range characters("k", 7) {
		if r := f.producer.EnqueueAndWait(t.Context(), producer.Request{Entity: testEntity(key), Lane: schemas.High, Reason: schemas.CacheMiss}); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	want := []console.LaneLag{{Lane: schemas.High, Records: 7, RecordsKnown: true}, {Lane: schemas.Low, RecordsKnown: true}}
	servicetest.WaitFor(t, eventTimeout, "the sample of records on which nobody works", func() bool {
		got := f.deps.Overview.Lanes(builtInSource)
		lain := got[0].StalledFor
		got[0].StalledFor = 0
		return reflect.DeepEqual(got, want) && lain > 0
	})
	if got := f.deps.Overview.Lanes("other"); !reflect.DeepEqual(got, []console.LaneLag{{Lane: schemas.High}, {Lane: schemas.Low}}) {
		t.Errorf("unknown source: got %+v, want empty lanes HIGH and LOW", got)
	}
}

func TestConsoleLimits_ReadAndChange(t *testing.T) {
	f := newConsoleFixture(t, nil)
	v, err := f.deps.Limits.View(t.Context(), builtInSource)
	if err != nil || v.Source != builtInSource || v.State != limiter.StateUnused {
		t.Errorf("got %+v, %v, want source %s, unused", v, err, builtInSource)
	}
	if _, err := f.deps.Limits.View(t.Context(), "other"); problemOf(err) != http.StatusNotFound {
		t.Errorf("another source: got %v, want status 404", err)
	}
	if s, err := f.deps.Limits.Stop(t.Context(), settings.ChangeRequest{Source: builtInSource, Actor: "key:1"}); err != nil || !s.Stopped {
		t.Errorf("stop: got %+v, %v, want stopped", s, err)
	}
	if all, err := f.deps.Limits.Audit(t.Context(), 10); err != nil || len(all) != 1 || all[0].Actor != "key:1" {
		t.Errorf("audit: got %+v, %v, want 1 entry of key:1", all, err)
	}
}

// hanging is a store whose reads of settings never return.
type hanging struct{ *sqlite.Store }

func (hanging) Setting(ctx context.Context, _ string) (store.Setting, error) {
	<-ctx.Done()
	return store.Setting{}, ctx.Err()
}

// buggy is a store whose reads of statuses panic.
type buggy struct{ *sqlite.Store }

func (buggy) Statuses(context.Context, []schemas.Entity) ([]store.Status, error) { panic("a bug") }

func TestEntityReader_RecoversPanic(t *testing.T) {
	f := newConsoleFixture(t, func(p *parts) { p.store = buggy{p.store.(*sqlite.Store)} })
	if _, err := f.deps.Entities.Entity(t.Context(), testEntity("a"), anybody); err == nil || !strings.Contains(err.Error(), "panic") {
		t.Errorf("got %v, want an error that contains %q", err, "panic")
	}
}

func TestLimiterNow_LeavesTimeForRedis(t *testing.T) {
	f := newConsoleFixture(t, func(p *parts) { p.store = hanging{p.store.(*sqlite.Store)} })
	ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
	defer cancel()
	if v, err := f.deps.Limits.View(ctx, builtInSource); err != nil || v.State != limiter.StateUnused {
		t.Errorf("got %+v, %v, want unused", v, err)
	}
}

func problemOf(err error) int {
	if p, ok := errors.AsType[*problem.HTTPError](err); ok {
		return p.Status
	}
	return 0
}

func TestConsole_FollowsConfiguredMode(t *testing.T) {
	for _, word := range []string{consoleOn, consoleReadOnly, consoleOff} {
		f := newConsoleFixture(t, func(p *parts) { p.config.Query.Console = word })
		for _, path := range []string{"/console", "/console/lookup?source=nexon&facet=character&key=a", "/console/dlq", "/console/settings"} {
			w := f.send(http.MethodGet, path)
			switch {
			case word == consoleOff && (w.Code != http.StatusNotFound || w.Header().Get("Content-Type") != problem.ContentType):
				t.Errorf("%s, %s: got %d %q %s, want 404 %q", word, path, w.Code, w.Header().Get("Content-Type"), w.Body, problem.ContentType)
			case word != consoleOff && (w.Code != http.StatusOK || !strings.Contains(w.Body.String(), builtInSource)):
				t.Errorf("%s, %s: got %d %s, want 200, a text that contains %q", word, path, w.Code, w.Body, builtInSource)
			}
		}
		if f.deps.ReadOnly != (word == consoleReadOnly) {
			t.Errorf("%s: read-only: got %v, want %v", word, f.deps.ReadOnly, word == consoleReadOnly)
		}
		if !slices.Equal(f.deps.Sources, []string{builtInSource}) || !reflect.DeepEqual(f.deps.Facets, map[string][]string{builtInSource: {"character", "character-by-ocid", "id"}}) || f.deps.Guard.AuthRequired() {
			t.Errorf("got %+v, want source %s with facet character, no authentication", f.deps, builtInSource)
		}
	}
}

func TestConsole_CrossSiteLinkShowsLandingPage(t *testing.T) {
	f := newConsoleFixture(t, nil)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/console/settings", http.NoBody)
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	if f.server.ServeHTTP(w, r); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), `<a href="/console/settings">Continue to the page</a>`) {
		t.Errorf("got %d %s, want 403, a text that contains %s", w.Code, w.Body, `<a href="/console/settings">Continue to the page</a>`)
	}
}
