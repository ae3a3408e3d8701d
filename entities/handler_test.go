package entities

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// fill registers six entities: three of the facet nexon/a, two of the facet nexon/b, and one of the
// source "other". The three entities with a tier are pinned. One entity is disabled.
func (r *rig) fill() {
	r.Helper()
	r.put("a", `{"key":"ab","tier":"hot"}`, `{"key":"ac","tier":"warm"}`, `{"key":"b","tier":"hot","enabled":false}`)
	r.put("b", `{"key":"ab"}`, `{"key":"b"}`)
	r.ok(http.MethodPost, "/entities", `{"source":"other","facet":"a","entities":[{"key":"ab"}]}`)
	r.filled = len(r.audit())
	r.notified = nil
}

func TestList_FiltersAndPages(t *testing.T) {
	r := newRig(t)
	r.fill()
	for _, limit := range []string{"", "limit=1", "limit=2", "limit=1000"} {
		r.wantList(limit, "a/ab", "a/ac", "a/b", "b/ab", "b/b", "a/ab")
		r.wantList("source=nexon&"+limit, "a/ab", "a/ac", "a/b", "b/ab", "b/b")
		r.wantList("source=nexon&facet=b&"+limit, "b/ab", "b/b")
		r.wantList("prefix=a&"+limit, "a/ab", "a/ac", "b/ab", "a/ab")
		r.wantList("source=nexon&facet=a&prefix=a&"+limit, "a/ab", "a/ac")
		r.wantList("tier=hot&"+limit, "a/ab", "a/b")
		r.wantList("tier=&enabled=&facet=&"+limit, "a/ab", "a/ac", "a/b", "b/ab", "b/b", "a/ab")
		r.wantList("tier=hot&enabled=true&"+limit, "a/ab")
		r.wantList("enabled=false&"+limit, "a/b")
		r.wantList("source=other&tier=warm&" + limit)
	}
}

func TestList_ScansInBoundedParts(t *testing.T) {
	r := newRig(t)
	all := make([]prefetched.RegisteredEntity, 2*maxRowsScanned+7)
	for i := range all {
		all[i] = prefetched.RegisteredEntity{Entity: schemas.Entity{Source: "nexon", Facet: "a", Key: fmt.Sprintf("%06d", i)}, Tier: prefetched.Cold, Due: start}
	}
	all[0].Tier, all[len(all)-1].Tier = prefetched.Hot, prefetched.Hot
	if _, err := r.db.RegisterEntities(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	if a := r.ok(http.MethodGet, "/entities?tier=hot", ""); len(a.Entities) != 1 || a.Next == nil {
		t.Errorf("the first part has %s", a.text)
	}
	r.wantList("tier=hot", "a/000000", fmt.Sprintf("a/%06d", len(all)-1))
	r.wantList("tier=hot&limit=1", "a/000000", fmt.Sprintf("a/%06d", len(all)-1))
}

func TestList_RejectsInvalidFilter(t *testing.T) {
	r := newRig(t)
	for query, want := range map[string][2]string{
		"tier=HOT":                               {"bad-filter", "must be hot, warm or cold"},
		"enabled=1":                              {"bad-filter", "true or false"},
		"facet=a":                                {"bad-filter", "facet needs source"},
		"prefix=%00":                             {"bad-filter", "prefix can't be the start of a key"},
		"prefix=%ff":                             {"bad-filter", "prefix can't be the start of a key"},
		"prefix=" + strings.Repeat("p", 256):     {"bad-filter", "at most 255 bytes"},
		"keys=x":                                 {"bad-filter", `no parameter "keys"; there are source, facet`},
		"limit=0":                                {"bad-limit", "between 1 and 1000"},
		"limit=1001":                             {"bad-limit", "between 1 and 1000"},
		"limit=many":                             {"bad-limit", "between 1 and 1000"},
		"after=x":                                {"bad-cursor", "leave it out"},
		"after=" + (*cursorOf(schemas.Entity{})): {"bad-cursor", "leave it out"},
	} {
		r.wantProblem(400, want[0], want[1], http.MethodGet, "/entities?"+query, "")
	}
	r.wantProblem(400, "bad-filter", "no parameter", http.MethodGet, "/entities/count?limit=5", "")
	r.wantProblem(404, "no-such-source", "", http.MethodGet, "/entities?source=nexo", "")
	r.wantProblem(404, "no-such-facet", "", http.MethodGet, "/entities/count?source=nexon&facet=d", "")
	r.wantProblem(405, "method-not-allowed", "", http.MethodPut, "/entities", "")
	r.wantProblem(404, "no-such-path", "", http.MethodGet, "/entities/x", "")
}

func TestEnable_ByFilterAndByKeys(t *testing.T) {
	r := newRig(t)
	r.fill()
	post := func(action, body string, want int) {
		t.Helper()
		if a := r.ok(http.MethodPost, "/entities/"+action, body); a.Changed != want || !a.Done || a.Next != nil {
			t.Errorf("%s %s: %s, want %d", action, body, a.text, want)
		}
	}
	post("disable", `{"source":"nexon","prefix":"a"}`, 3)
	r.wantList("enabled=false", "a/ab", "a/ac", "a/b", "b/ab")
	post("disable", `{"source":"nexon"}`, 1)
	if len(r.notified) != 0 {
		t.Errorf("notified: got %q", r.notified)
	}
	post("enable", `{"source":"nexon","facet":"a","tier":"hot"}`, 2)
	r.wantList("source=nexon&enabled=true", "a/ab", "a/b")
	post("enable", `{"source":"nexon","facet":"b","keys":["b","b","nobody"]}`, 1)
	post("enable", `{"source":"nexon","facet":"b","keys":["b"],"tier":"","prefix":"","after":""}`, 0)
	r.wantList("source=nexon&enabled=true", "a/ab", "a/b", "b/b")
	r.wantList("source=other&enabled=true", "a/ab")
	if want := []string{"nexon in 1h0m1s", "nexon in 0s"}; !slices.Equal(r.notified, want) {
		t.Errorf("notified: got %q, want %q", r.notified, want)
	}
	want := []string{
		`somebody entities-disable nexon {"enabled":false,"source":"nexon","prefix":"a","entities":3}`,
		`somebody entities-disable nexon {"enabled":false,"source":"nexon","entities":1}`,
		`somebody entities-enable nexon {"enabled":true,"source":"nexon","facet":"a","tier":"hot","entities":2}`,
		`somebody entities-enable nexon {"enabled":true,"source":"nexon","facet":"b","entities":3,"keys":["b","b","nobody"]}`,
		`somebody entities-enable nexon {"enabled":true,"source":"nexon","facet":"b","entities":1,"keys":["b"]}`,
	}
	if got := r.audit(); !slices.Equal(got, want) {
		t.Errorf("the audit has %q, want %q", got, want)
	}
}

func TestEnable_AuditsEachRequest(t *testing.T) {
	r := newRig(t)
	const n = 2*maxRowsScanned + 7
	all := make([]prefetched.RegisteredEntity, n)
	for i := range all {
		all[i] = prefetched.RegisteredEntity{Entity: schemas.Entity{Source: "nexon", Facet: "a", Key: fmt.Sprint(i)}, Enabled: true, Due: start.Add(time.Duration(i) * time.Second), Tier: prefetched.Tier(i % 3)}
	}
	if _, err := r.db.RegisterEntities(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	changed, requests, after := 0, 0, ""
	for done := false; !done; requests++ {
		a := r.ok(http.MethodPost, "/entities/disable", `{"source":"nexon","tier":"hot","after":"`+after+`"}`)
		if a.Done != (a.Next == nil) || a.Changed > maxRowsScanned {
			t.Fatalf("got %s, want next unless done, and a bounded page", a.text)
		}
		if changed, done = changed+a.Changed, a.Done; !done {
			after = *a.Next
		}
	}
	if changed != (n+2)/3 || requests != 3 {
		t.Errorf("got %d changed in %d requests, want %d in 3", changed, requests, (n+2)/3)
	}
	var counts []int
	sum := 0
	entries, err := r.db.Audit(t.Context(), 100)
	for _, e := range entries {
		var want auditDetails
		err = errors.Join(err, json.Unmarshal(e.After, &want))
		counts, sum = append(counts, want.Entities), sum+want.Entities
	}
	if err != nil || len(counts) != requests || sum != changed {
		t.Errorf("entities in the audit: got %v (%v), want %d entries with the sum %d", counts, err, requests, changed)
	}
	if a := r.ok(http.MethodGet, "/entities/count?enabled=false", ""); a.Count != changed {
		t.Errorf("got %s, want %d disabled", a.text, changed)
	}
}

func TestEnable_RejectsInvalidOrUnaudited(t *testing.T) {
	r := newRig(t)
	r.fill()
	many := `"k"` + strings.Repeat(`,"k"`, 1000)
	for body, want := range map[string]struct {
		status int
		code   string
		words  string
	}{
		`[]`:                                {400, "bad-body", "must be an object"},
		`{}`:                                {400, "bad-body", "the source is missing"},
		`{"source":"nexon","enabled":true}`: {400, "bad-body", `unknown field "enabled"`},
		`{"source":"nexon","keys":["x"]}`:   {400, "bad-body", "keys need a facet"},
		`{"source":"nexon","facet":"a","keys":["x"],"tier":"hot"}`: {400, "bad-body", "must not be used together with"},
		`{"source":"nexon","facet":"a","keys":["x"],"prefix":"a"}`: {400, "bad-body", "must not be used together with"},
		`{"source":"nexon","facet":"a","keys":[]}`:                 {400, "bad-body", "there are 0 keys"},
		`{"source":"nexon","facet":"a","keys":[` + many + `]}`:     {400, "bad-body", "there are 1001 keys"},
		`{"source":"nexon","facet":"a","keys":["x",""]}`:           {400, "bad-body", "keys[1]: the key is empty"},
		`{"source":"nexon","tier":"lukewarm"}`:                     {400, "bad-filter", "hot, warm or cold"},
		`{"source":"nexon","after":"x"}`:                           {400, "bad-cursor", ""},
		`{"source":"nexo"}`:                                        {404, "no-such-source", ""},
		`{"source":"nexon","facet":"d"}`:                           {404, "no-such-facet", ""},
		`{"source":"` + strings.Repeat("x", maxBodyBytes) + `"}`:   {413, "body-too-large", ""},
	} {
		r.wantProblem(want.status, want.code, want.words, http.MethodPost, "/entities/disable", body)
	}
	r.down = true
	r.wantProblem(503, "store-unavailable", "", http.MethodPost, "/entities/disable", `{"source":"nexon"}`)
	r.wantList("enabled=false", "a/b")
	if got := r.audit(); len(got) != 0 {
		t.Errorf("the audit has %q", got)
	}
}

func TestEnable_AuditTruncatesKeys(t *testing.T) {
	r := newRig(t)
	r.ok(http.MethodPost, "/entities/disable", `{"source":"nexon","facet":"a","keys":["k"`+strings.Repeat(`,"k"`, 11)+`]}`)
	if got := r.audit(); len(got) != 1 || strings.Count(got[0], `"k"`) != auditKeys || !strings.HasSuffix(got[0], `"moreKeys":2}`) {
		t.Errorf("%q", got)
	}
}

func TestDeleteSnapshot_RemovesRegistration(t *testing.T) {
	r := newRig(t)
	gone := schemas.Entity{Source: "gone", Facet: "f", Key: "é/%2F ../x"} // the configuration has no source "gone", but the snapshot must be deletable
	w := store.Write{Entity: gone, Version: 1, CheckedAt: start, Payload: func() (store.Payload, error) { return store.Encode([]byte("{}")), nil }}
	if _, err := r.db.Write(t.Context(), []store.Write{w}); err != nil {
		t.Fatal(err)
	}
	r.fill()
	const path = "/snapshots/gone/f/%C3%A9%2F%252F%20..%2Fx"
	if a := r.ok(http.MethodDelete, path, ""); !a.Deleted {
		t.Errorf("got %s, want deleted", a.text)
	}
	r.wantProblem(404, "no-such-snapshot", "Nothing is stored of gone/f/é/%2F ../x", http.MethodDelete, path, "")
	r.ok(http.MethodDelete, "/snapshots/nexon/a/ab", "")
	r.wantList("source=nexon&facet=a", "a/ac", "a/b")
	if want := []string{"forget " + gone.String(), "forget " + gone.String(), "forget nexon/a/ab"}; !slices.Equal(r.notified, want) {
		t.Errorf("notified: got %q", r.notified)
	}
	if want := []string{`somebody snapshot-delete gone {"facet":"f","key":"é/%2F ../x"}`, `somebody snapshot-delete nexon {"facet":"a","key":"ab"}`}; !slices.Equal(r.audit(), want) {
		t.Errorf("the audit has %q", r.audit())
	}
	r.wantProblem(400, "bad-key", "control character", http.MethodDelete, "/snapshots/nexon/a/%00", "")
	r.wantProblem(400, "bad-key", "lower-case letters", http.MethodDelete, "/snapshots/NEXON/a/x", "")
	_ = r.db.Close()
	r.wantProblem(503, "store-unavailable", "", http.MethodDelete, path, "")
}

func TestHandler_RejectsCrossSiteRequests(t *testing.T) {
	r := newRig(t)
	r.fill()
	req := newForeign(t.Context(), "/admin/v1/entities/disable", `{"source":"nexon"}`)
	if code := r.serve(req); code != http.StatusForbidden {
		t.Errorf("got %d, want 403", code)
	}
	r.wantList("enabled=false", "a/b")
}
