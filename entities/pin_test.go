package entities

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
)

// entity returns the entity with this key, as the list of the API shows it.
func (r *rig) entity(key string) Entity {
	r.Helper()
	all := r.ok(http.MethodGet, "/entities?prefix="+key, "").Entities
	if len(all) != 1 {
		r.Fatalf("entities with the prefix %s: got %d, want 1", key, len(all))
	}
	return all[0]
}

func TestRegister_PinsAnEntityThatNamesATier(t *testing.T) {
	r := newRig(t)
	r.put("a", `{"key":"hot","tier":"hot"}`, `{"key":"free"}`)
	if e := r.entity("hot"); !e.Pinned || e.Tier != "hot" {
		t.Errorf("with a tier: got %+v, want hot and pinned", e)
	}
	if e := r.entity("free"); e.Pinned || e.Tier != "cold" {
		t.Errorf("without a tier: got %+v, want cold and not pinned", e)
	}
}

func TestRegister_UnpinsAnEntityThatNamesNoTier(t *testing.T) {
	r := newRig(t)
	r.put("a", `{"key":"k","tier":"hot"}`)
	r.put("a", `{"key":"k"}`)
	if e := r.entity("k"); e.Pinned || e.Tier != "hot" {
		t.Errorf("registered again without a tier: got %+v, want hot and not pinned", e)
	}
}

// A registered entity may be due in a week. If it is registered again with a tier, it must become
// due within the interval of that tier.
func TestRegister_MakesAPinnedEntityDueByItsTier(t *testing.T) {
	r := newRig(t)
	e := schemas.Entity{Source: "nexon", Facet: "a", Key: "k"}
	late := prefetched.RegisteredEntity{Entity: e, Tier: prefetched.Cold, Enabled: true, Due: start.Add(168 * time.Hour)}
	if _, err := r.db.RegisterEntities(t.Context(), []prefetched.RegisteredEntity{late}); err != nil {
		t.Fatal(err)
	}
	r.put("a", `{"key":"k"}`)
	if got := r.entity("k").DueAt; !got.Equal(late.Due) {
		t.Errorf("without a tier: due at %v, want %v as before", got, late.Due)
	}
	r.put("a", `{"key":"k","tier":"hot"}`)
	if got, want := r.entity("k").DueAt, start.Add(time.Hour+time.Second); !got.Equal(want) {
		t.Errorf("with a tier: due at %v, want %v", got, want)
	}
	if want := "nexon in 1h0m1s"; !slices.Contains(r.notified, want) {
		t.Errorf("schedulers notified: got %q, want %q", r.notified, want)
	}
}

func TestPin_PinsAndUnpinsKeys(t *testing.T) {
	r := newRig(t)
	r.put("a", `{"key":"k1"}`, `{"key":"k2"}`)
	post := func(verb, body string, want int) {
		t.Helper()
		if a := r.ok(http.MethodPost, "/entities/"+verb, body); a.Changed != want {
			t.Errorf("%s %s: changed %d, want %d", verb, body, a.Changed, want)
		}
	}
	const keys = `"source":"nexon","facet":"a","keys":["k1","unknown"]`
	post("pin", `{`+keys+`,"tier":"warm"}`, 1)
	post("pin", `{`+keys+`,"tier":"warm"}`, 0)
	if e, other := r.entity("k1"), r.entity("k2"); !e.Pinned || e.Tier != "warm" || other.Pinned {
		t.Errorf("pinned: got %+v and %+v", e, other)
	}
	post("unpin", `{`+keys+`}`, 1)
	post("unpin", `{`+keys+`}`, 0)
	if e := r.entity("k1"); e.Pinned || e.Tier != "warm" {
		t.Errorf("unpinned: got %+v, want warm and not pinned", e)
	}
	r.wantList("prefix=unknown")
	want := `somebody entities-pin nexon {"facet":"a","tier":"warm","keys":["k1","unknown"]}`
	if got := r.audit(); len(got) != 5 || got[1] != want || !strings.HasPrefix(got[4], "somebody entities-unpin") {
		t.Errorf("audit: got %q, want a registration, two pins as in %q, and two unpins", got, want)
	}
}

func TestPin_RejectsInvalidRequests(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		verb, body, code, words string
		status                  int
	}{
		{"pin", `{"source":"nexon","facet":"a","keys":["k"]}`, "bad-body", "the tier is missing", 400},
		{"pin", `{"source":"nexon","facet":"a","keys":["k"],"tier":"HOT"}`, "bad-body", `the tier "HOT" must be hot, warm or cold`, 400},
		{"pin", `{"source":"nexon","facet":"a","tier":"hot"}`, "bad-body", "there are 0 keys", 400},
		{"pin", `{"source":"nexon","facet":"a","tier":"hot","keys":[""]}`, "bad-body", "keys[0]: the key is empty", 400},
		{"pin", `{"source":"nexon","keys":["k"],"tier":"hot"}`, "bad-body", "the facet is missing", 400},
		{"pin", `{"source":"nexo","facet":"a","keys":["k"],"tier":"hot"}`, "no-such-source", `no source "nexo"`, 404},
		{"pin", `{"source":"nexon","facet":"c","keys":["k"],"tier":"hot"}`, "not-prefetched", "facets.c.mode", 422},
		{"unpin", `{"source":"nexon","facet":"a","keys":["k"],"tier":"hot"}`, "bad-body", "leave out the tier", 400},
		{"unpin", `{"source":"nexon","facet":"d","keys":["k"]}`, "no-such-facet", `no facet "d"`, 404},
	} {
		r.wantProblem(c.status, c.code, c.words, http.MethodPost, "/entities/"+c.verb, c.body)
	}
	if got := r.audit(); len(got) != 0 {
		t.Errorf("audit of refused requests: got %q", got)
	}
}

func TestFold_SpellingsAreOneEntity(t *testing.T) {
	r := newRig(t)
	r.put("b", `{"key":"Ab"}`, `{"key":"aB"}`)
	registered, err := r.db.Entities(t.Context(), prefetched.Filter{Source: "nexon", Facet: "b"}, schemas.Entity{}, 10)
	if err != nil || len(registered) != 1 || registered[0].Entity.Key != "ab" {
		t.Fatalf("registered: got %+v (%v), want ab once", registered, err)
	}
	r.ok(http.MethodPost, "/entities/disable", `{"source":"nexon","facet":"b","keys":["AB"]}`)
	r.ok(http.MethodPost, "/entities/pin", `{"source":"nexon","facet":"b","keys":["AB"],"tier":"hot"}`)
	if got := r.ok(http.MethodGet, "/entities?source=nexon&facet=b&prefix=A", ""); !strings.Contains(got.text, `"ab"`) {
		t.Errorf("list of the prefix A: got %s, want ab", got.text)
	}
	registered, err = r.db.Entities(t.Context(), prefetched.Filter{Source: "nexon", Facet: "b"}, schemas.Entity{}, 10)
	if err != nil || len(registered) != 1 || registered[0].Enabled || !registered[0].Pinned {
		t.Errorf("after disable and pin of another spelling: got %+v (%v), want it disabled and pinned", registered, err)
	}
}
