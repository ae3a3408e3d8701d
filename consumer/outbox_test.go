package consumer_test

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// scriptedUpstream answers all requests with the same text and records its calls.
type scriptedUpstream struct {
	mu       sync.Mutex
	text     string // response body; if empty, the response is 404
	calls    []string
	answered map[int]int // number of responses by HTTP status
}

func (p *scriptedUpstream) respondWith(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = text
}

func (p *scriptedUpstream) called() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.calls...)
}

func (p *scriptedUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, r.RequestURI)
	tag := fmt.Sprintf("%q", fmt.Sprint(len(p.text)))
	status := http.StatusOK
	switch {
	case p.text == "":
		status = http.StatusNotFound
	case r.Header.Get("If-None-Match") == tag:
		status = http.StatusNotModified
	}
	p.answered[status]++
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("ETag", tag)
	w.WriteHeader(status)
	if status == http.StatusOK {
		_, _ = w.Write([]byte(p.text))
	}
}

// newUpstream makes the workers of the test call a scriptedUpstream, for a facet with these params and
// this path.
func (r *rig) newUpstream(path string, params map[string]string, changes ...func(*source.Facet)) *scriptedUpstream {
	r.Helper()
	p := &scriptedUpstream{text: `{"n":1,"m":1}`, answered: map[int]int{}}
	server := httptest.NewServer(p)
	r.Cleanup(server.Close)
	r.config.BaseURL = server.URL
	r.config.Rules = []source.Rule{{Status: 404, Class: source.NotFound}}
	r.facet(func(f *source.Facet) {
		f.Documents = map[string]source.Document{"basic": {Path: path}}
		f.Params = source.TextParams(params)
		f.Ignore = nil
		for _, change := range changes {
			change(f)
		}
	})
	return p
}

// outboxEvents returns the stored events, without their IDs, times and versions.
func (r *rig) outboxEvents() (all []store.OutboxEvent) {
	r.Helper()
	all, err := r.db.ClaimOutboxEvents(r.Context(), "nexon", time.Now().Add(time.Hour), 0, 1000)
	if err != nil {
		r.Fatal(err)
	}
	slices.SortFunc(all, func(a, b store.OutboxEvent) int { return cmp.Compare(a.ID, b.ID) })
	for i := range all {
		all[i].ID, all[i].Version, all[i].At = 0, 0, time.Time{}
	}
	return all
}

// checked requests a refresh with these params. It waits until the snapshot is stored, and returns the
// snapshot.
func (r *rig) checked(key string, params map[string]string) store.Snapshot {
	r.Helper()
	return r.checkedFor(schemas.UserRequest, key, params)
}

func (r *rig) checkedFor(reason schemas.Reason, key string, params map[string]string) store.Snapshot {
	r.Helper()
	before, _ := r.snapshot(key)
	w := requestFor(key)
	w.Reason, w.Params = reason, params
	if result := r.producer.Enqueue(r.Context(), w); !result.Queued() {
		r.Fatalf("enqueue: got %+v, want queued", result)
	}
	r.until("a later check of "+key, func() bool { s, _ := r.snapshot(key); return s.Version > before.Version })
	r.untilCommitted(schemas.High)
	s, _ := r.snapshot(key)
	return s
}

func TestOutboxEvents_OneForEachChange(t *testing.T) {
	r := newRig(t)
	p := r.newUpstream("/x?key={key}", nil, func(f *source.Facet) { f.PublishChanges, f.Conditional, f.NotFoundFor = true, true, time.Millisecond })
	stop := r.work(schemas.High)
	first := r.checked("a", nil)
	p.respondWith(`{"n":1,"m":20}`)
	changed := r.checked("a", nil)
	want := []store.OutboxEvent{
		{Entity: entity("a"), After: first.Hash, OutboxEvents: store.OutboxEvents{PublishChange: true}},
		{Entity: entity("a"), Before: first.Hash, After: changed.Hash, OutboxEvents: store.OutboxEvents{PublishChange: true}},
	}
	if got := r.outboxEvents(); !reflect.DeepEqual(got, want) || first.Hash == changed.Hash {
		t.Fatalf("outbox events: got\n%+v, want\n%+v", got, want)
	}
	only := func(what string) {
		t.Helper()
		if got := r.outboxEvents(); len(got) != 2 {
			t.Errorf("further outbox events after %s: got %+v, want none", what, got[2:])
		}
	}
	r.checked("a", nil)
	if p.answered[304] != 1 {
		t.Errorf("answers by status: got %v, want one 304", p.answered)
	}
	only("a 304")
	p.respondWith(`{ "m": 20, "n": 1 }`) // other bytes than the stored content, but the same canonical content
	r.checked("a", nil)
	only("unchanged content")
	if p.answered[304] != 1 {
		t.Errorf("answers by status: got %v, want one 304", p.answered)
	}
	p.respondWith("")
	if s := r.checked("a", nil); !s.NotFound {
		t.Fatalf("snapshot: got %+v, want it not found", s.State)
	}
	only("a not-found result")
	stop()

	r.facet(func(f *source.Facet) { f.Select = []string{"basic.n"} })
	p.respondWith(`{"n":1,"m":3333}`)
	r.work(schemas.High)
	if s := r.checked("a", nil); s.Hash == changed.Hash || s.NotFound {
		t.Errorf("snapshot: got %+v, want changed content", s.State)
	}
	only("what is selected")
	if n := r.changes.n.Load(); n != 2 {
		t.Errorf("announced events: got %d, want 2", n)
	}
}

func TestOutboxEvents_NoneWithoutChangesAndTriggers(t *testing.T) {
	r := newRig(t)
	r.newUpstream("/x?key={key}", nil)
	r.work(schemas.High)
	r.checked("a", nil)
	if got := r.outboxEvents(); len(got) != 0 || r.changes.n.Load() != 0 {
		t.Errorf("outbox events and notifications: got %+v and %d, want none and 0", got, r.changes.n.Load())
	}
}

func triggering(c *consumer.Config) {
	c.Triggers = map[string][]store.Trigger{"character": {{Facet: "general", Backoff: 24 * time.Hour}, {Facet: "hearings"}}}
}

// wantTriggers fails the test unless the last change fires the trigger with these params.
func (r *rig) wantTriggers(params map[string]string) {
	r.Helper()
	want := []store.Trigger{{Facet: "general", Backoff: 24 * time.Hour, Params: params}, {Facet: "hearings"}}
	all := r.outboxEvents()
	if len(all) == 0 || !reflect.DeepEqual(all[len(all)-1].Triggers, want) || all[len(all)-1].PublishChange {
		r.Errorf("outbox events: got %+v, want the triggers %+v", all, want)
	}
}

func TestTrigger_CarriesParamsOfTheChange(t *testing.T) {
	r := newRig(t)
	p := r.newUpstream("/x?n={encCsNo}&p={page}", map[string]string{"encCsNo": "", "page": "1"})
	for facet, params := range map[string]map[string]string{"general": {"encCsNo": "", "page": "1"}, "hearings": {"page": "1"}} {
		f := r.config.Facets["character"]
		f.Params, f.Documents = source.TextParams(params), map[string]source.Document{"basic": {Path: "/x"}}
		r.config.Facets[facet] = f
	}
	r.source = r.newSource(r.config)
	r.register("a", map[string]string{"encCsNo": "registered", "page": "7"})
	r.work(schemas.High, triggering)
	r.checked("a", map[string]string{"encCsNo": "own"})
	r.wantTriggers(map[string]string{"encCsNo": "own"})
	p.respondWith(`{"n":2}`)
	r.checked("a", nil)
	r.wantTriggers(map[string]string{"encCsNo": "registered"})
	r.checked("b", nil)
	r.wantTriggers(nil)
}

// A trigger's params, which come from another facet, are used only where the entity has no
// registered params.
func TestTrigger_RegisteredParamsTakePrecedence(t *testing.T) {
	r := newRig(t)
	p := r.newUpstream("/x?n={encCsNo}&w={wmonid}", map[string]string{"encCsNo": "", "wmonid": ""})
	r.register("a", map[string]string{"encCsNo": "registered"})
	r.work(schemas.High)
	r.checkedFor(schemas.Trigger, "a", map[string]string{"encCsNo": "brought", "wmonid": "brought"})
	r.checkedFor(schemas.Trigger, "b", map[string]string{"encCsNo": "brought"})
	if got, want := p.called(), []string{"/x?n=registered&w=brought", "/x?n=brought&w="}; !reflect.DeepEqual(got, want) {
		t.Errorf("calls: got %q, want %q", got, want)
	}
}

func (r *rig) register(key string, params map[string]string) {
	r.Helper()
	e := prefetched.RegisteredEntity{Entity: entity(key), Params: params, Enabled: true, Due: time.Now().Add(time.Hour)}
	if _, err := r.db.RegisterEntities(r.Context(), []prefetched.RegisteredEntity{e}); err != nil {
		r.Fatal(err)
	}
}

func TestParams_RegisteredFillMissingOnes(t *testing.T) {
	r := newRig(t)
	p := r.newUpstream("/x?n={encCsNo}&w={wmonid}&page={page}", map[string]string{"encCsNo": "", "wmonid": "", "page": "1"})
	r.register("a", map[string]string{"encCsNo": "n", "wmonid": "w"})
	r.register("b", map[string]string{"encCsNo": "n", "wmonid": "w", "page": "2", "unknown": "x"})
	r.work(schemas.High)
	r.checked("a", nil)
	r.checked("a", map[string]string{"encCsNo": "own/1"})
	r.checked("a", map[string]string{"encCsNo": "own", "wmonid": "own"})
	r.checked("b", map[string]string{"wmonid": "own", "page": "3"})
	// Without registered params the call is made with empty values, because only the upstream can
	// decide whether they are valid.
	r.checked("c", nil)
	want := []string{"/x?n=n&w=w&page=1", "/x?n=own%2F1&w=w&page=1", "/x?n=own&w=own&page=1", "/x?n=n&w=own&page=3", "/x?n=&w=&page=1"}
	if got := p.called(); !reflect.DeepEqual(got, want) {
		t.Errorf("calls: got\n%q, want\n%q", got, want)
	}
	if n := len(r.deadLetters()); n != 0 {
		t.Errorf("dead letters: got %d, want 0", n)
	}
}

// The path of the call needs the value of a param. So the call is planned only after the registered
// params are read.
func TestParams_RegisteredFillPath(t *testing.T) {
	r := newRig(t)
	p := r.newUpstream("/x/{encCsNo}/basic", map[string]string{"encCsNo": ""})
	r.register("a", map[string]string{"encCsNo": "n"})
	r.work(schemas.High)
	r.checked("a", nil)
	if got := p.called(); !reflect.DeepEqual(got, []string{"/x/n/basic"}) || len(r.deadLetters()) != 0 {
		t.Errorf("calls and dead letters: got %q and %d, want /x/n/basic and 0", got, len(r.deadLetters()))
	}
}

func TestParams_InvalidBecomeDeadLetterWithAdvice(t *testing.T) {
	r := newRig(t)
	p := r.newUpstream("/x/{encCsNo}/basic", map[string]string{"encCsNo": ""})
	r.register("dots", map[string]string{"encCsNo": ".."})
	r.register("long", map[string]string{"encCsNo": strings.Repeat("n", 9<<10)})
	r.work(schemas.High)
	for key, mention := range map[string]string{
		"a key": "the key does not match the keyPattern",
		"open":  "register the entity with a value for encCsNo",
		"dots":  "register the entity with other params",
		"long":  "register the entity with other params",
	} {
		r.enqueue(key, schemas.High, schemas.CacheMiss)
		var d schemas.DeadLetter
		r.until("the dead letter of "+key, func() bool {
			all := r.deadLetters()
			i := slices.IndexFunc(all, func(d schemas.DeadLetter) bool { return string(d.Key) == "character/"+key })
			if i >= 0 {
				d = all[i]
			}
			return i >= 0
		})
		if d.Reason != schemas.InvalidRequest || !strings.Contains(d.Error, mention) || d.Attempts != 0 {
			t.Errorf("dead letter of %s: got %s after %d attempts: %s, want %s after 0 attempts, and %q in its error",
				key, d.Reason, d.Attempts, d.Error, schemas.InvalidRequest, mention)
		}
	}
	r.untilCommitted(schemas.High)
	if got := p.called(); len(got) != 0 {
		t.Errorf("calls: got %q, want none", got)
	}
	// After the entity is registered with the missing param, a refresh is possible again.
	r.register("open", map[string]string{"encCsNo": "n"})
	r.until("a refresh", func() bool {
		w := requestFor("open")
		w.Reason = schemas.UserRequest
		return r.producer.Enqueue(r.Context(), w).Queued()
	})
	r.untilStored("open")
}

// An entity may be registered again between a failure and its retry. So an operator can replace an
// expired value.
func TestParams_RetryUsesCurrentRegistration(t *testing.T) {
	r := newRig(t)
	p := r.newUpstream("/x?n={encCsNo}&w={wmonid}", map[string]string{"encCsNo": "", "wmonid": ""})
	r.config.Rules = []source.Rule{{Status: 404, Class: source.NotReady}}
	r.source = r.newSource(r.config)
	p.respondWith("")
	r.register("a", map[string]string{"encCsNo": "lapsed"})
	r.work(schemas.High)
	w := requestFor("a")
	w.Params = map[string]string{"wmonid": "own"}
	if result := r.producer.Enqueue(r.Context(), w); result.Outcome != producer.Published {
		t.Fatalf("enqueue: got %+v, want published", result)
	}
	r.until("a retry", func() bool { return r.status("a").State == store.Retrying })
	if got, want := r.status("a").Params, w.Params; !reflect.DeepEqual(got, want) {
		t.Errorf("parameters of the retry: got %v, want %v and what is registered", got, want)
	}
	if got := p.called(); len(got) == 0 || got[0] != "/x?n=lapsed&w=own" {
		t.Errorf("calls: got %q, want /x?n=lapsed&w=own first", got)
	}
}
