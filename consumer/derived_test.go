package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/retries"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/derived"
	"github.com/freshet/freshet/source/items"
	"github.com/freshet/freshet/store"
)

// newDerivedRig returns a test setup (rig) with the derived facet "stats". Its inputs are the
// collections of the facet character, whose keys have the form OWNER-NUMBER. All collections have the
// same list.
func newDerivedRig(t *testing.T, measures map[string]derived.Measure, changes ...func(*source.Config)) *listRig {
	t.Helper()
	r := newListRig(t, items.Collection{ID: "id"}, func(f *source.Facet) { f.KeyPattern = "(?P<owner>[a-z]+)-[0-9]+" })
	stats := source.DefaultFacet()
	stats.Retry = []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond}
	stats.Derived = &derived.Config{
		Over: map[string]derived.Input{"character": {Key: "{owner}", At: "updated_at"}}, Measures: measures,
		By: []derived.Period{derived.Day}, TimeZone: "Asia/Seoul", Every: time.Second, All: &derived.All{Every: time.Second},
	}
	r.config.Facets["stats"] = stats
	for _, change := range changes {
		change(&r.config)
	}
	r.source = r.newSource(r.config)
	r.realRetries = retries.New("nexon", r.db, retryEnqueuer{r.producer}, r.rdb, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	r.run(r.realRetries.Run)
	return r
}

// startWithoutPermits starts workers of both lanes. The test fails if a worker acquires a permit for
// the facet stats.
func (r *listRig) startWithoutPermits() {
	r.Helper()
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		deps := r.deps()
		deps.Outbox, deps.Walks, deps.Items, deps.Permits = r.relay, r.collections, r.collections, permitsExceptStats{deps.Permits, r}
		config := consumer.DefaultConfig(lane)
		config.DrainTimeout = waitTimeout
		w, err := consumer.New(config, r.source, lane, deps)
		if err != nil {
			r.Fatal(err)
		}
		r.run(w.Run)
	}
}

type permitsExceptStats struct {
	consumer.Permits
	r *listRig
}

func (p permitsExceptStats) Acquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	if c.Facet == "stats" {
		p.r.Errorf("permit: got a call for %s, want none for a derived facet", c.Key)
	}
	return p.Permits.Acquire(ctx, lane, c)
}

func statsOf(key string) schemas.Entity {
	return schemas.Entity{Source: "nexon", Facet: "stats", Key: key}
}

// request enqueues an update request for an entity.
func (r *listRig) request(e schemas.Entity, reason schemas.Reason) producer.Result {
	r.Helper()
	return r.producer.Enqueue(r.Context(), producer.Request{Entity: e, Lane: schemas.High, Reason: reason})
}

// walkKeys requests the collections with these keys, and waits until their walks are complete.
func (r *listRig) walkKeys(keys ...string) {
	r.Helper()
	for _, key := range keys {
		before, err := r.collections.State(r.Context(), entity(key))
		if err != nil {
			r.Fatal(err)
		}
		if got := r.request(entity(key), schemas.UserRequest); !got.Queued() {
			r.Fatalf("request for %s: got %+v, want it queued", key, got)
		}
		r.until("the end of the walk of "+key, func() bool {
			s, err := r.collections.State(r.Context(), entity(key))
			return err == nil && s.CompleteAt.After(before.CompleteAt) && !s.Walk.Open()
		})
	}
}

// statistics returns the stored content of the facet stats for a key; empty means that nothing is
// stored.
func (r *listRig) statistics(key string) string {
	r.Helper()
	s, err := r.db.Get(r.Context(), statsOf(key))
	if err != nil || !s.HasContent() || s.NotFound {
		return ""
	}
	content, err := s.Decode(nil)
	if err != nil {
		r.Fatal(err)
	}
	return string(content)
}

// recount counts the stored items of the collections by day (in Seoul), and their different texts. It
// does not call package derived.
func (r *listRig) recount(keys ...string) string {
	r.Helper()
	zone := time.FixedZone("Seoul", 9*60*60)
	type counts struct {
		N     int `json:"n"`
		texts map[string]bool
		Texts int `json:"texts"`
	}
	all := map[string]*counts{}
	n := 0
	for _, key := range keys {
		found, err := r.collections.Items(r.Context(), entity(key), collection.Range{Limit: 1000})
		if err != nil {
			r.Fatal(err)
		}
		for _, i := range found {
			var l listItem
			if err := json.Unmarshal(i.Content, &l); err != nil {
				r.Fatal(err)
			}
			n++
			for _, label := range []string{"total", l.UpdatedAt.In(zone).Format(time.DateOnly)} {
				c := all[label]
				if c == nil {
					c = &counts{texts: map[string]bool{}}
					all[label] = c
				}
				c.N++
				c.texts[l.Text] = true
				c.Texts = len(c.texts)
			}
		}
	}
	total := all["total"]
	delete(all, "total")
	text, err := json.Marshal(map[string]any{
		"day": all, "total": total,
		"inputs": map[string]any{"character": map[string]int{"collections": len(keys), "complete": len(keys), "items": n, "undated": 0}},
	})
	if err != nil {
		r.Fatal(err)
	}
	return string(text)
}

// untilCounted waits until the statistics of a key equal the recount of these collections.
func (r *listRig) untilCounted(key string, collections ...string) {
	r.Helper()
	want := r.recount(collections...)
	r.until("statistics of "+key+" that equal "+want, func() bool { return r.statistics(key) == want })
}

func TestDerived_EqualsRecountAfterChanges(t *testing.T) {
	r := newDerivedRig(t, map[string]derived.Measure{"n": {Count: true}, "texts": {Distinct: "text"}})
	r.startWithoutPermits()
	r.walkKeys("acme-1", "acme-2", "beta-1")
	r.untilCounted("acme", "acme-1", "acme-2")
	r.untilCounted("beta", "beta-1")
	r.untilCounted("_all", "acme-1", "acme-2", "beta-1")
	r.list.set(func(u *listUpstream) {
		u.items = append(listOf(40), listItem{ID: "new", UpdatedAt: epoch.Add(15 * time.Hour), Text: "y"})
		u.items[3].Text = "z"
	})
	r.walkKeys("acme-2")
	r.untilCounted("acme", "acme-1", "acme-2")
	r.untilCounted("_all", "acme-1", "acme-2", "beta-1")
}

// If no measure is distinct, the content of _all is merged from the results of the keys. If the result
// of a key was deleted, the items of the key are read instead.
func TestDerived_AllMergesResults(t *testing.T) {
	r := newDerivedRig(t, map[string]derived.Measure{"n": {Count: true}})
	r.startWithoutPermits()
	r.walkKeys("acme-1", "beta-1")
	want := `"total":{"n":16}}`
	r.until("the first _all", func() bool { return strings.HasSuffix(r.statistics("_all"), want) })
	if err := r.db.Delete(r.Context(), statsOf("acme")); err != nil {
		t.Fatal(err)
	}
	before, err := r.db.Get(r.Context(), statsOf("_all"))
	if err != nil {
		t.Fatal(err)
	}
	r.request(statsOf("_all"), schemas.UserRequest)
	r.until("another computation of _all", func() bool {
		s, err := r.db.Get(r.Context(), statsOf("_all"))
		return err == nil && s.Version > before.Version
	})
	if got := r.statistics("_all"); !strings.HasSuffix(got, want) {
		t.Errorf("_all without the result of acme: got %s, want it to end with %s", got, want)
	}
	r.list.set(func(u *listUpstream) { u.items = listOf(9) })
	r.walkKeys("beta-1")
	r.until("_all after a change", func() bool { return strings.HasSuffix(r.statistics("_all"), `"total":{"n":17}}`) })
}

// A computation that fails is retried after each delay of the setting retry. Then the request becomes
// one dead letter, which can be replayed.
func TestDerived_FailuresEndAsOneDeadLetter(t *testing.T) {
	r := newDerivedRig(t, map[string]derived.Measure{"sum": {Sum: "text"}}, func(c *source.Config) {
		f := c.Facets["stats"]
		derivedOnce := *f.Derived
		derivedOnce.All = nil
		f.Derived = &derivedOnce
		c.Facets["stats"] = f
	})
	r.startWithoutPermits()
	r.walkKeys("acme-1")
	r.until("the dead letter", func() bool { return len(r.deadLetters()) > 0 })
	want := `item i00 of character/acme-1: the value at text is not a number: "x"`
	if l := r.deadLetters(); len(l) != 1 || l[0].Reason != schemas.NotComputed || l[0].Error != want || string(l[0].Key) != "stats/acme" {
		t.Errorf("dead letters: got %+v, want one of stats/acme with %s", l, want)
	}
	failed := func() store.Status {
		t.Helper()
		all, err := r.db.Store.Statuses(t.Context(), []schemas.Entity{statsOf("acme")})
		if err != nil {
			t.Fatal(err)
		}
		return all[0]
	}
	r.until("the status FAILED", func() bool { return failed().State == store.Failed })
	r.list.set(func(u *listUpstream) {
		for i := range u.items {
			u.items[i].Text = fmt.Sprint(i, ".5")
		}
	})
	r.walkKeys("acme-1")
	if got := r.statistics("acme"); got != "" {
		t.Errorf("statistics before the replay: got %s, want none, because the entity is on hold", got)
	}
	if got := r.request(statsOf("acme"), schemas.Replay); !got.Queued() {
		t.Fatalf("replay: got %+v, want it queued", got)
	}
	r.until("the statistics after the replay", func() bool { return strings.HasSuffix(r.statistics("acme"), `"total":{"sum":32}}`) })
	if got := failed().State; got != "" || len(r.deadLetters()) != 1 {
		t.Errorf("after the replay: got status %q and %d dead letters, want none and one", got, len(r.deadLetters()))
	}
}

// An entity without a collection of its key is not found and has a hold. The first page of such a
// collection must cause the computation in spite of the hold.
func TestDerived_NotFoundUntilFirstItem(t *testing.T) {
	r := newDerivedRig(t, map[string]derived.Measure{"n": {Count: true}})
	r.startWithoutPermits()
	r.request(statsOf("acme"), schemas.CacheMiss)
	r.until("the result not found", func() bool {
		s, err := r.db.Get(r.Context(), statsOf("acme"))
		return err == nil && s.NotFound
	})
	r.walkKeys("acme-1")
	r.until("the statistics", func() bool { return strings.HasSuffix(r.statistics("acme"), `"total":{"n":8}}`) })
}

// The computed content must contain only items of collections with the same visibility.
func TestDerived_CountsOnlyItsVisibility(t *testing.T) {
	r := newDerivedRig(t, map[string]derived.Measure{"n": {Count: true}}, func(c *source.Config) {
		c.Auth = source.Auth{Header: "Authorization"}
		c.Credentials = []source.Credential{
			{Name: "private", Keys: ".*-2", Visibility: "team", SecretEnv: "PRIVATE"}, {Name: "public", SecretEnv: "PUBLIC"},
		}
	})
	r.startWithoutPermits()
	r.walkKeys("acme-1", "acme-2", "beta-2")
	r.until("the statistics of acme", func() bool { return strings.HasSuffix(r.statistics("acme"), `"total":{"n":8}}`) })
	r.until("the statistics of all", func() bool { return strings.HasSuffix(r.statistics("_all"), `"total":{"n":8}}`) })
	r.until("the result not found of beta", func() bool {
		s, err := r.db.Get(r.Context(), statsOf("beta"))
		return err == nil && s.NotFound
	})
}
