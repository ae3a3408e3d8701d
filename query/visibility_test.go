package query

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
	"github.com/freshet/freshet/store/sqlite"
)

// realStore is a database with the methods that workers use.
type realStore interface {
	Store
	Write(ctx context.Context, writes []store.Write) ([]store.Result, error)
}

// storeWithItems is the database in the form in which package app passes it to the query service.
type storeWithItems struct {
	database
	items *collection.Collections
}

type database interface {
	Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error)
	GetAll(ctx context.Context, of []schemas.Entity) ([]store.Snapshot, error)
	EntityParams(ctx context.Context, of []schemas.Entity) ([]map[string]string, error)
	Write(ctx context.Context, writes []store.Write) ([]store.Result, error)
}

func (s storeWithItems) Items(ctx context.Context, e schemas.Entity, r collection.Range) ([]collection.Item, error) {
	return s.items.Items(ctx, e, r)
}

// realStores returns a new database of each supported kind.
var realStores = map[string]func(t *testing.T) realStore{
	"embedded": func(t *testing.T) realStore {
		s, err := sqlite.Open(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return storeWithItems{s, collection.New(s)}
	},
	"PostgreSQL": func(t *testing.T) realStore {
		url := servicetest.Postgres(t)
		if _, err := postgres.Migrate(t.Context(), url); err != nil {
			t.Fatal(err)
		}
		s, err := postgres.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return storeWithItems{s, collection.New(s)}
	},
}

// countingStore counts the reads of the store of a test.
type countingStore struct {
	Store
	*rig
}

func (l countingStore) Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error) {
	l.readStore()
	return l.Store.Get(ctx, e)
}

func (l countingStore) GetAll(ctx context.Context, of []schemas.Entity) ([]store.Snapshot, error) {
	l.readStore()
	return l.Store.GetAll(ctx, of)
}

func (l countingStore) EntityParams(ctx context.Context, of []schemas.Entity) ([]map[string]string, error) {
	return l.rig.EntityParams(ctx, of)
}

func (l countingStore) Items(ctx context.Context, e schemas.Entity, r collection.Range) ([]collection.Item, error) {
	l.readStore()
	return l.Store.Items(ctx, e, r)
}

func (r *rig) readStore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.storeReadCount++
}

// visibilityByPrefix derives the visibility of a key from its prefix.
func visibilityByPrefix(key string) string {
	visibility, _, limited := strings.Cut(key, ".")
	if !limited {
		return ""
	}
	return visibility
}

// limitedRig returns a service with a real store and the configured visibilities.
func limitedRig(t *testing.T, st realStore, limits func(string) string) *rig {
	return newRig(t, func(r *rig) { r.store, r.limits, r.reads = countingStore{st, r}, limits, recordEveryRead{} })
}

// recordEveryRead is a ReadRecorder for all facets.
type recordEveryRead struct{}

func (recordEveryRead) Counts(string, string) bool                                { return true }
func (recordEveryRead) RecordReads(context.Context, []ReadCount, time.Time) error { return nil }

// write stores the result of a fetch that was made before the time `age`, with a visibility. If
// notFound is true, it stores a not-found result.
func write(t *testing.T, st realStore, e schemas.Entity, visibility string, version int64, age time.Duration, notFound bool) {
	t.Helper()
	w := store.Write{
		Entity: e, Version: version, CheckedAt: time.Now().Add(-age), Hash: sha256.Sum256([]byte(content)), Visibility: visibility,
		Payload: func() (store.Payload, error) { return encoded, nil },
	}
	if notFound {
		w.Kind = store.KindNotFound
	}
	if results, err := st.Write(t.Context(), []store.Write{w}); err != nil || !results[0].Stored() {
		t.Fatal(results, err)
	}
}

func clientWithScopes(scopes ...access.Scope) access.Client {
	return access.Client{Name: "key:1", Scopes: append([]access.Scope{access.Read, access.Refresh}, scopes...)}
}

// attempts are all kinds of requests that could reveal something about an entity.
var attempts = []struct {
	method, path string
	headers      []string
}{
	{"GET", "/v1/nexon/shared/%s", nil},
	{"GET", "/v1/nexon/shared/%s", []string{"Accept-Encoding", "zstd"}},
	{"GET", "/v1/nexon/shared/%s", []string{"Accept-Encoding", "gzip"}},
	{"HEAD", "/v1/nexon/shared/%s", nil},
	{"GET", "/v1/nexon/shared/%s", []string{"If-None-Match", "*"}},
	{"GET", "/v1/nexon/shared/%s", []string{"If-None-Match", fmt.Sprintf(`W/"%.12x-0"`, sha256.Sum256([]byte(content)))}},
	{"GET", "/v1/nexon/shared/%s", []string{"If-Modified-Since", "Fri, 31 Dec 2100 23:59:59 GMT"}},
	{"GET", "/v1/nexon/shared/%s?wait=20s", nil},
	{"GET", "/v1/nexon/shared/%s", []string{"Prefer", "wait=20"}},
	{"GET", "/v1/nexon/shared/%s/events", nil},
	{"GET", "/v1/nexon/shared/%s/events", []string{"Last-Event-Id", "5.x.notFound"}},
	{"HEAD", "/v1/nexon/shared/%s/events", nil},
	{"POST", "/v1/nexon/shared/%s/refresh", nil},
	{"POST", "/v1/nexon/shared/%s/refresh?wait=20s", nil},
	{"GET", "/v1/nexon/shared?key=%s", nil},
	{"GET", "/v1/nexon/shared?key=%s", []string{"Accept-Encoding", "gzip"}},
	{"HEAD", "/v1/nexon/shared?key=%s", nil},
}

// attempt returns all parts of the response that could reveal something about the key.
func (r *rig) attempt(i int, key string) string {
	r.Helper()
	a := attempts[i]
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second) // ends the request if it is served as an event stream
	defer cancel()
	req := httptest.NewRequestWithContext(ctx, a.method, fmt.Sprintf(a.path, key), nil)
	req.Header.Set("X-Correlation-Id", "one")
	for h := 0; h < len(a.headers); h += 2 {
		req.Header.Set(a.headers[h], a.headers[h+1])
	}
	rec := httptest.NewRecorder()
	r.server.ServeHTTP(rec, req)
	got := r.checked(req, rec)
	got.Header.Del("Content-Length") // Content-Length is removed before the comparison, because in a batch it depends on the length of the key
	return strings.ReplaceAll(fmt.Sprintln(got.StatusCode, got.Header, got.text), key, "KEY")
}

func TestVisibility_LimitsReads(t *testing.T) {
	shared := func(key string) schemas.Entity { return schemas.Entity{Source: "nexon", Facet: "shared", Key: key} }
	clients := map[string]access.Client{
		"nobody": clientWithScopes(), "partner": clientWithScopes("see:partner"), "staff": clientWithScopes("see:staff"), "both": clientWithScopes("see:partner", "see:staff"),
		"admin": {Name: "admin", Scopes: []access.Scope{access.Admin}},
	}
	// The prefix of a key is the visibility that a fetch would have now. `within` is the visibility
	// of the stored snapshot.
	rows := map[string]struct {
		within   string
		age      time.Duration
		notFound bool
	}{
		"open": {}, "partner.a": {within: "partner"}, "partner.stale": {within: "partner", age: 2 * time.Hour}, "staff.a": {within: "staff"},
		"partner.gone": {within: "partner", notFound: true}, "partner.long-gone": {within: "partner", age: 9000 * time.Hour, notFound: true},
		"partner.was-open": {}, "was-partner": {within: "partner"}, "was-partner-stale": {within: "partner", age: 2 * time.Hour},
		"staff.was-partner": {within: "partner"}, "was-staff-gone": {within: "staff", notFound: true},
	}
	for name, open := range realStores {
		t.Run(name, func(t *testing.T) {
			st := open(t)
			for key, row := range rows {
				write(t, st, shared(key), row.within, 5, row.age, row.notFound)
			}
			for who, c := range clients {
				for key, row := range rows {
					r := limitedRig(t, st, visibilityByPrefix)
					if c.Sees(row.within) && c.Sees(visibilityByPrefix(key)) {
						r.client = c
						a := r.do(http.MethodGet, "/v1/nexon/shared/"+key)
						cache := a.Header.Get("Cache-Control")
						if served := a.text != "" && string(a.body.Snapshot) == content; served == row.notFound || (served && strings.HasPrefix(cache, "public") != (key == "open")) {
							t.Errorf("%s and %s: got %d %s %s, want content: %v, and public only for open",
								who, key, a.StatusCode, cache, a.text, !row.notFound)
						}
						continue
					}
					var answers []string
					for i := range attempts {
						r.client = c
						answers = append(answers, r.attempt(i, key))
					}
					if visibilityByPrefix(key) != "" && !c.Sees(visibilityByPrefix(key)) && r.storeReads() > 0 {
						t.Errorf("%s and %s: got %d store reads, want none for an invisible key", who, key, r.storeReads())
					}
					r.client = clients["admin"] // this read by an admin caches the entity, which must not make it visible to other clients
					r.do(http.MethodGet, "/v1/nexon/shared/"+key)
					r.mu.Lock()
					r.requests, r.limiterCalls = nil, nil
					r.mu.Unlock()
					r.server.readCounter.take()
					r.client = c
					began := time.Now()
					for i := range attempts {
						none := r.attempt(i, "third.none")
						if second := r.attempt(i, key); answers[i] != none || second != none || (!strings.Contains(none, "404") && attempts[i].method != http.MethodHead) {
							t.Errorf("%s and %s, %v: got\n%safter another client's read\n%swant the answer for a missing key\n%s",
								who, key, attempts[i], answers[i], second, none)
						}
					}
					if took := time.Since(began); took > 15*time.Second {
						t.Errorf("wait of %s for %s: got %v, want at most 15s", who, key, took)
					}
					if recorded := r.server.readCounter.take(); len(r.enqueued()) > 0 || len(recorded) > 0 {
						t.Errorf("%s, %s: got the update requests %v and the reads %v, want none", who, key, r.enqueued(), recorded)
					}
					for _, what := range r.limiterCalls {
						if kind, _, _ := strings.Cut(what, " "); kind == "begin" || kind == "keys" {
							t.Errorf("%s and %s: got the limiter calls %q, want no begin and no keys", who, key, r.limiterCalls)
						}
					}
					r.waitUntilNoWaiters()
				}
			}
		})
	}
}

func TestVisibility_LimitsBatches(t *testing.T) {
	for name, open := range realStores {
		t.Run(name, func(t *testing.T) {
			st := open(t)
			for _, key := range []string{"open", "partner.a", "staff.a"} {
				write(t, st, entity(key), visibilityByPrefix(key), 5, time.Minute, false)
			}
			write(t, st, entity("was-partner"), "partner", 5, 2*time.Hour, false)
			const path = "/v1/nexon/character?key=staff.a&key=open&key=partner.a&key=new&key=was-partner&key=partner.new&key=partner.a"
			for who, want := range map[string]string{
				"":        "[404 200 404 202 404 404 404]",
				"partner": "[404 200 200 202 200 202 200]",
				"staff":   "[200 200 404 202 404 404 404]",
			} {
				r := limitedRig(t, st, visibilityByPrefix)
				if r.client = clientWithScopes(); who != "" {
					r.client = clientWithScopes(access.See(who))
				}
				a := r.do(http.MethodGet, path)
				var got []int
				requests := 0
				for _, item := range a.body.Items {
					got = append(got, item.Status)
					if item.Refresh.Queued {
						requests++
					}
					if (string(item.Snapshot) == content) != (item.Status == 200) || (item.Status == 404) != (item.Freshness == store.NotFound) || (item.Status != 200) != (item.LastCheckedAt == nil) {
						t.Errorf("%q: got the item %+v, want content and times only with 200, and NOT_FOUND only with 404", who, item)
					}
				}
				if n := testutil.ToFloat64(r.server.metrics.reads.WithLabelValues("nexon", "character", string(store.NotFound))); n != 0 {
					t.Errorf("%q: reads of missing keys: got %v, want 0", who, n)
				}
				if fmt.Sprint(got) != want || len(r.enqueued()) != requests || strings.Contains(a.Header.Get("Cache-Control"), "public") {
					t.Errorf("%q: got %v and %d update requests, want %s", who, got, len(r.enqueued()), want)
				}
			}
		})
	}
}

func TestVisibility_ChangeNeverOpensStoredEntities(t *testing.T) {
	for name, open := range realStores {
		t.Run(name, func(t *testing.T) {
			st := open(t)
			write(t, st, entity("a"), "", 5, 0, false)
			nowLimited := limitedRig(t, st, func(string) string { return "partner" })
			nowLimited.client = clientWithScopes()
			if a := nowLimited.get("a"); a.StatusCode != 404 {
				t.Errorf("limited by now: got %d %s, want 404", a.StatusCode, a.text)
			}
			if nowLimited.client = clientWithScopes("see:partner"); nowLimited.get("a").StatusCode != 200 {
				t.Error("a partner can't see a public entity")
			}
			write(t, st, entity("a"), "partner", 6, 0, false)
			nowOpen := limitedRig(t, st, nil)
			for range 2 {
				nowOpen.client = clientWithScopes()
				if a := nowOpen.get("a"); a.StatusCode != 404 {
					t.Errorf("fetched for partners: got %d %s, want 404", a.StatusCode, a.text)
				}
				if nowOpen.client = clientWithScopes("see:partner"); nowOpen.get("a").StatusCode != 200 {
					t.Error("a partner can't see an entity of visibility partner")
				}
			}
			write(t, st, entity("a"), "", 7, 0, false)
			nowOpen.settle("a", 7)
			nowOpen.client = clientWithScopes()
			if a := nowOpen.get("a"); a.StatusCode != 200 || string(a.body.Snapshot) != content {
				t.Errorf("fetched anew: got %d %s, want 200", a.StatusCode, a.text)
			}
		})
	}
}

func TestVisibility_LimitsWaitsAndStreams(t *testing.T) {
	partner := func(s *store.Snapshot) { s.Visibility, s.Version = "partner", 9 }
	r := newRig(t)
	r.client = clientWithScopes()
	r.putSnapshot("followed", time.Minute)
	f := r.follow("followed", "")
	if e := <-f.events; e.name != eventChanged {
		t.Fatalf("got %+v, want the event changed", e)
	}
	r.putSnapshot("followed", 0, partner)
	select {
	case e, more := <-f.events:
		if more {
			t.Errorf("event about an invisible entity: got %+v, want none", e)
		}
	case <-time.After(testTimeout):
		t.Error("the stream goes on")
	}
	for _, path := range []string{"GET /v1/nexon/character/waited?wait=20s", "POST /v1/nexon/character/waited/refresh?wait=20s"} {
		r.putSnapshot("waited", 2*time.Hour)
		before := len(r.enqueued())
		method, path, _ := strings.Cut(path, " ")
		answered := make(chan answer, 1)
		go func() { answered <- r.do(method, path) }()
		servicetest.WaitFor(t, testTimeout, "an enqueued request", func() bool { return len(r.enqueued()) > before })
		r.putSnapshot("waited", 0, partner)
		if a := <-answered; a.StatusCode != 404 || a.body.LastCheckedAt != nil {
			t.Errorf("%s: got %d %s, want 404", path, a.StatusCode, a.text)
		}
	}
	r.waitUntilNoWaiters()
}

func TestVisibility_LimitsFallbacks(t *testing.T) {
	r := newRig(t)
	s := r.putSnapshot("a", 2*time.Hour, func(s *store.Snapshot) { s.Entity.Facet, s.Visibility = "shared", "partner" })
	r.client = clientWithScopes("see:partner")
	r.do(http.MethodGet, "/v1/nexon/shared/a")
	r.server.onSettled(schemas.Settled{Entity: s.Entity, Number: 8})
	r.mu.Lock()
	r.storeErr = context.DeadlineExceeded
	r.requests = nil
	r.mu.Unlock()
	if a := r.do(http.MethodGet, "/v1/nexon/shared/a"); a.StatusCode != 200 {
		t.Errorf("got %d %s, want 200", a.StatusCode, a.text)
	}
	r.client = clientWithScopes()
	for i, a := range attempts {
		if got := r.attempt(i, "a"); !strings.Contains(got, "404") && a.method != http.MethodHead {
			t.Errorf("%v: got %s, want 404", a, got)
		}
	}
	if len(r.enqueued()) > 0 {
		t.Errorf("update requests: got %v, want none", r.enqueued())
	}
}
