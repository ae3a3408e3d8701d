package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/retries"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// namesUpstream is an upstream that knows characters by ocid, and the ocid of each name.
type namesUpstream struct {
	mu    sync.Mutex
	ocids map[string]string // ocid (id of the character) by name
	gone  map[string]bool   // ocids that the upstream no longer knows
	// number of calls, by endpoint and param value: "id a" is a call for the id (ocid) of the name a,
	// and "basic o1" is a call for the character with the id o1
	calls  map[string]int
	idDown bool
	// idBlocked delays the answers about names until it is closed; nil means no delay.
	idBlocked chan struct{}
	// onCharacter is called before a character is returned.
	onCharacter func(ocid string)
}

func (u *namesUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, ocid := r.URL.Query().Get("character_name"), r.URL.Query().Get("ocid")
	if u.idBlocked != nil && name != "" {
		<-u.idBlocked
	}
	u.mu.Lock()
	what := "id " + name
	if name == "" {
		what = "basic " + ocid
	}
	u.calls[what]++
	answer, status := map[string]string{"ocid": u.ocids[name]}, http.StatusOK
	hook := u.onCharacter
	switch {
	case name != "" && u.idDown:
		status = http.StatusBadGateway
	case name != "" && u.ocids[name] == "", name == "" && u.gone[ocid]:
		status = http.StatusNotFound
	case name == "":
		answer = map[string]string{"character": ocid}
	}
	u.mu.Unlock()
	if name == "" && hook != nil {
		hook(ocid)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

// change changes the upstream while it serves.
func (u *namesUpstream) change(do func(*namesUpstream)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	do(u)
}

func (u *namesUpstream) count(what string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.calls[what]
}

// aliasRig is a test setup (rig) with the facets "id" and "character". The facet "character" takes its
// param ocid from the facet "id". Its retries are enqueued when they are due.
type aliasRig struct {
	*rig
	names *namesUpstream
}

func newAliasRig(t *testing.T, change func(id, character *source.Facet)) *aliasRig {
	t.Helper()
	return newAliasRigOn(newRig(t), change)
}

func newAliasRigOn(on *rig, change func(id, character *source.Facet)) *aliasRig {
	on.Helper()
	t := on.T
	r := &aliasRig{rig: on, names: &namesUpstream{ocids: map[string]string{}, gone: map[string]bool{}, calls: map[string]int{}}}
	server := httptest.NewServer(r.names)
	t.Cleanup(server.Close)
	id, character := source.DefaultFacet(), source.DefaultFacet()
	id.KeyPattern, character.KeyPattern = ".+", ".+"
	id.NotFoundFor, character.NotFoundFor = 10*time.Minute, time.Hour
	id.Documents = map[string]source.Document{"id": {Path: "/id?character_name={key}"}}
	character.Documents = map[string]source.Document{"basic": {Path: "/basic?ocid={ocid}"}}
	character.Params = map[string]source.Param{"ocid": {From: "id", Path: "id.ocid"}}
	if change != nil {
		change(&id, &character)
	}
	r.config.BaseURL = server.URL
	r.config.Facets = map[string]source.Facet{"id": id, "character": character}
	r.source = r.newSource(r.config)
	r.realRetries = retries.New("nexon", r.db, retryEnqueuer{r.producer}, r.rdb, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	r.run(r.realRetries.Run)
	return r
}

// retryEnqueuer enqueues retries as package app does.
type retryEnqueuer struct{ *producer.Producer }

func (d retryEnqueuer) Enqueue(ctx context.Context, due []store.Status) (left []store.Status) {
	requests := make([]producer.Request, len(due))
	for i, s := range due {
		requests[i] = producer.Request{Entity: s.Entity, Params: s.Params, Lane: s.Lane, Reason: schemas.Retry, CorrelationID: s.CorrelationID, Depth: s.Depth}
	}
	for i, result := range d.EnqueueAllAndWait(ctx, requests) {
		if !result.Queued() {
			left = append(left, due[i])
		}
	}
	return left
}

// content returns the stored content of a character, "not found", or "" if nothing is stored.
func (r *aliasRig) content(key string) string {
	r.Helper()
	s, stored := r.snapshot(key)
	if !stored {
		return ""
	}
	if s.NotFound {
		return "notfound"
	}
	text, err := s.Decode(nil)
	if err != nil {
		r.Fatal(err)
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(text), `{"basic":{"character":"`), `"}}`)
}

func (r *aliasRig) untilContent(key, want string) {
	r.Helper()
	r.until(key+" is "+want, func() bool { return r.content(key) == want })
}

func (r *aliasRig) wantCalls(want map[string]int) {
	r.Helper()
	r.names.mu.Lock()
	defer r.names.mu.Unlock()
	if fmt.Sprint(r.names.calls) != fmt.Sprint(want) {
		r.Errorf("calls: got %v, want %v", r.names.calls, want)
	}
}

func TestAlias_FirstReadMakesTwoCalls(t *testing.T) {
	r := newAliasRig(t, nil)
	r.names.ocids["a"] = "o1"
	r.work(schemas.High)
	first := r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilContent("a", "o1")
	r.untilCommitted(schemas.High)
	r.wantCalls(map[string]int{"id a": 1, "basic o1": 1})
	if s := r.status("a"); s.State != "" {
		t.Errorf("status after the content was stored: got %+v, want none", s)
	}
	if s, _ := r.snapshot("a"); s.Version <= first.Number {
		t.Errorf("version: got %d, want more than the request's %d", s.Version, first.Number)
	}
	r.enqueue("a", schemas.High, schemas.UserRequest)
	r.until("a second call of the character", func() bool { return r.names.count("basic o1") == 2 })
	r.untilCommitted(schemas.High)
	r.wantCalls(map[string]int{"id a": 1, "basic o1": 2})
}

func TestAlias_WaitIsDurableAndHeld(t *testing.T) {
	r := newAliasRig(t, nil)
	r.names.ocids["a"] = "o1"
	r.names.idBlocked = make(chan struct{})
	unblock := sync.OnceFunc(func() { close(r.names.idBlocked) })
	t.Cleanup(unblock) // the server can only be closed when it has answered all calls
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.until("the hold", func() bool {
		got := r.producer.Enqueue(t.Context(), requestFor("a"))
		return got.Outcome == producer.Held && got.HoldReason == schemas.HoldAlias
	})
	r.until("the status ALIAS", func() bool { return r.status("a").Reason == schemas.HoldAlias })
	s := r.status("a")
	if s.State != store.Retrying || s.Lane != schemas.High || s.CorrelationID != "corr-a" || !strings.Contains(s.Error, "waits for facet id") {
		t.Errorf("status: got %+v", s)
	}
	if n := r.names.count("basic o1"); n != 0 {
		t.Errorf("calls of the character without its alias: got %d, want 0", n)
	}
	unblock()
	r.untilContent("a", "o1")
}

func TestAlias_NotFoundLastsAsLongAsAlias(t *testing.T) {
	r := newAliasRig(t, nil)
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilContent("a", "notfound")
	r.untilCommitted(schemas.High)
	r.wantCalls(map[string]int{"id a": 1})
	s, _ := r.snapshot("a")
	alias, err := r.db.Get(t.Context(), schemas.Entity{Source: "nexon", Facet: "id", Key: "a"})
	if err != nil || !s.AliasNotFound || !s.CheckedAt.Equal(alias.CheckedAt) {
		t.Errorf("not-found result: got %+v (%v), want the check time of the alias, %v", s.State, err, alias.CheckedAt)
	}
	character, _ := r.source.Facet("character")
	lifetimes := store.Lifetimes{NotFoundFor: character.NotFoundFor, AliasNotFoundFor: character.AliasNotFoundFor()}
	if _, due := store.FreshnessOf(&s.State, lifetimes, s.CheckedAt.Add(11*time.Minute)); due == "" {
		t.Error("11 minutes after the check of the alias: got no update request, want one")
	}
	r.names.change(func(u *namesUpstream) { u.ocids["a"] = "o1" })
	r.enqueue("a", schemas.High, schemas.UserRequest) // an explicit refresh requests the alias again
	r.untilContent("a", "o1")
}

func TestAlias_DeadAliasIsCheckedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		next, want string
		calls      map[string]int
	}{
		"changed":   {"o2", "o2", map[string]int{"id a": 2, "basic o1": 2, "basic o2": 1}},
		"unchanged": {"o1", "notfound", map[string]int{"id a": 2, "basic o1": 2}},
		"deleted":   {"", "notfound", map[string]int{"id a": 2, "basic o1": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newAliasRig(t, nil)
			r.names.ocids["a"] = "o1"
			r.work(schemas.Low)
			r.enqueue("a", schemas.Low, schemas.Prefetch)
			r.untilContent("a", "o1")
			r.untilCommitted(schemas.Low)
			r.names.change(func(u *namesUpstream) { u.ocids["a"], u.gone["o1"] = c.next, true })
			r.enqueue("a", schemas.Low, schemas.Trigger)
			r.untilContent("a", c.want)
			r.untilCommitted(schemas.Low)
			r.wantCalls(c.calls)
		})
	}
}

func TestAlias_ClassHandleChecksTheAlias(t *testing.T) {
	r := newAliasRig(t, nil)
	r.config.Rules = []source.Rule{{Status: 404, Class: source.Handle}}
	r.source = r.newSource(r.config)
	r.names.ocids["a"], r.names.gone["o1"] = "o1", true
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilContent("a", "notfound")
	r.untilCommitted(schemas.High)
	r.wantCalls(map[string]int{"id a": 1, "basic o1": 1}) // the alias was checked a moment ago, so it is not checked again
}

func TestAlias_ExpiredAliasIsCheckedFirst(t *testing.T) {
	r := newAliasRig(t, func(id, _ *source.Facet) { id.FreshFor = time.Nanosecond })
	r.names.ocids["a"] = "o1"
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilContent("a", "o1")
	r.untilCommitted(schemas.High)
	r.names.change(func(u *namesUpstream) { u.ocids["a"] = "o2" })
	r.enqueue("a", schemas.High, schemas.Stale)
	r.untilContent("a", "o2")
	r.untilCommitted(schemas.High)
	r.wantCalls(map[string]int{"id a": 2, "basic o1": 1, "basic o2": 1})
}

func TestAlias_StoredAliasServesWhileAliasIsDown(t *testing.T) {
	r := newAliasRig(t, func(id, _ *source.Facet) { id.FreshFor = time.Nanosecond })
	r.names.ocids["a"], r.names.ocids["good"] = "o1", "o2"
	r.work(schemas.High)
	for _, key := range []string{"a", "good"} {
		r.enqueue(key, schemas.High, schemas.CacheMiss)
	}
	r.untilContent("a", "o1")
	r.untilContent("good", "o2")
	r.untilCommitted(schemas.High)
	r.names.change(func(u *namesUpstream) { u.idDown = true })
	r.enqueue("a", schemas.High, schemas.Stale)
	r.until("a refresh with the stored alias", func() bool { return r.names.count("basic o1") == 2 })
}

func TestAlias_ChangeDuringFetchStoresNothing(t *testing.T) {
	r := newAliasRig(t, nil)
	r.names.ocids["a"] = "o1"
	id := schemas.Entity{Source: "nexon", Facet: "id", Key: "a"}
	var once sync.Once
	r.names.onCharacter = func(string) {
		once.Do(func() {
			r.names.change(func(u *namesUpstream) { u.ocids["a"] = "o2" })
			_, err := r.db.Write(context.Background(), []store.Write{{
				Entity: id, Version: time.Now().Add(time.Second).UnixMilli(), CheckedAt: time.Now(), Hash: store.Hash{2}, ExtractVersion: 1,
				Payload: func() (store.Payload, error) { return store.Encode([]byte(`{"id":{"ocid":"o2"}}`)), nil },
			}})
			if err != nil {
				t.Error(err)
			}
			if got := r.content("a"); got != "" {
				t.Errorf("content before the fetch ended: got %q", got)
			}
		})
	}
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilContent("a", "o2")
	r.untilCommitted(schemas.High)
	r.wantCalls(map[string]int{"id a": 1, "basic o1": 1, "basic o2": 1})
}

func TestAlias_ValueMissingIsDeadLetter(t *testing.T) {
	r := newAliasRig(t, func(_, c *source.Facet) {
		c.Params = map[string]source.Param{"ocid": {From: "id", Path: "id.puuid"}}
	})
	r.names.ocids["a"] = "o1"
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.until("a dead letter", func() bool { return len(r.deadLetters()) == 1 })
	if d := r.deadLetters()[0]; d.Reason != schemas.InvalidRequest || !strings.Contains(d.Error, "no text at id.puuid") {
		t.Errorf("dead letter: got %s, %s", d.Reason, d.Error)
	}
}

func TestAlias_RequestParamsNeedNoAlias(t *testing.T) {
	r := newAliasRig(t, nil)
	r.work(schemas.High)
	result := r.producer.Enqueue(t.Context(), producer.Request{
		Entity: entity("a"), Lane: schemas.High, Reason: schemas.CacheMiss, Params: map[string]string{"ocid": "own"},
	})
	if !result.Queued() {
		t.Fatalf("request: got %+v", result)
	}
	r.untilContent("a", "own")
	r.wantCalls(map[string]int{"basic own": 1})
}

func TestAlias_ManyNamesInBothLanes(t *testing.T) {
	r := newAliasRig(t, nil)
	keys := append(keysOf("high-", 40), keysOf("low-", 40)...)
	want := map[string]int{}
	for _, key := range keys {
		r.names.ocids[key] = "o-" + key
		want["id "+key], want["basic o-"+key] = 1, 1
	}
	r.work(schemas.High)
	r.work(schemas.Low, func(c *consumer.Config) { c.WorkerName = "low" })
	r.enqueueAll(keys[:40], schemas.High, schemas.CacheMiss)
	r.enqueueAll(keys[40:], schemas.Low, schemas.Prefetch)
	for _, key := range keys {
		r.untilContent(key, "o-"+key)
	}
	r.untilCommitted(schemas.High)
	r.untilCommitted(schemas.Low)
	r.wantCalls(want)
}
