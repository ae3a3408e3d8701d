package entities

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRegister_AddsAndLists(t *testing.T) {
	r := newRig(t)
	a := r.put("a", `{"key":"x/y","params":{"p":"<1>"},"tier":"hot","enabled":false}`, `{"key":"z"}`)
	if a.Added != 2 || a.Known != 0 || !slices.Equal(r.notified, []string{"nexon in 1h0m1s"}) {
		t.Errorf("got %s, notified %q", a.text, r.notified)
	}
	a = r.ok(http.MethodGet, "/entities", "")
	want := `{"entities":[` +
		`{"source":"nexon","facet":"a","key":"x/y","params":{"p":"\u003c1\u003e"},"tier":"hot","pinned":true,"enabled":false,"dueAt":"2026-03-01T13:00:03Z","reads":0,"lastReadAt":null,"changes":0,"watchedSeconds":0},` +
		`{"source":"nexon","facet":"a","key":"z","params":{},"tier":"cold","pinned":false,"enabled":true,"dueAt":"2026-03-01T13:00:01Z","reads":0,"lastReadAt":null,"changes":0,"watchedSeconds":0}],"next":null}` + "\n"
	if a.text != want {
		t.Errorf("got %s, want %s", a.text, want)
	}
	if a := r.put("a", `{"key":"z","tier":"warm"}`, `{"key":"z","tier":"hot"}`); a.Added != 0 || a.Known != 2 || len(r.notified) != 2 {
		t.Errorf("got %s, notified %q", a.text, r.notified)
	}
	if e := r.ok(http.MethodGet, "/entities?prefix=z", "").Entities[0]; e.Tier != "hot" || !e.DueAt.Equal(start.Add(time.Hour+time.Second)) {
		t.Errorf("%+v", e)
	}
	entries := []string{
		`somebody entities-register nexon {"source":"nexon","facet":"a","entities":2,"keys":["x/y","z"]}`,
		`somebody entities-register nexon {"source":"nexon","facet":"a","entities":2,"keys":["z","z"]}`,
	}
	if got := r.audit(); !slices.Equal(got, entries) {
		t.Errorf("audit: got %q, want %q", got, entries)
	}
}

func TestRegister_RejectsWholeBatchWithPointers(t *testing.T) {
	r := newRig(t)
	for order, words := range map[string]string{
		`{"key":"a b"}`:                 `"a b": the key does not match the pattern`,
		`{"key":""}`:                    `the key is empty`,
		`{"key":".."}`:                  `the key may not have the part ".."`,
		`{"key":"\u0000"}`:              `control character`,
		`{}`:                            `the key is empty`,
		`null`:                          `it must be an object`,
		`"x"`:                           `it must be an object`,
		`{"key":5}`:                     `key: got number, want text`,
		`{"key":"x","tier":"HOT"}`:      `the tier "HOT" must be hot, warm or cold`,
		`{"key":"x","teir":"hot"}`:      `unknown field "teir"; there are key, params, tier and enabled`,
		`{"key":"x","enabled":"yes"}`:   `enabled: got string, want true or false`,
		`{"key":"x","params":{"":"v"}}`: `must have a name of 1 to 64 bytes`,
		`{"key":"x","params":{"` + strings.Repeat("n", 65) + `":"v"}}`:            `must have a name of 1 to 64 bytes`,
		`{"key":"x","params":{"p":"\n"}}`:                                         `the param p must be UTF-8 without control characters`,
		`{"key":"x","params":{"p":"` + strings.Repeat("v", 4096) + `"}}`:          `the params have 4097 bytes; at most 4096`,
		`{"key":"x","params":{"p":"v","teir":"hot"}}`:                             `the facet has no param teir; it has ocid, p`,
		`{"key":"` + strings.Repeat("k", 257) + `","params":{"p":"v"},"tier":""}`: `the key has 257 bytes`,
	} {
		a := r.do(http.MethodPost, "/entities", `{"source":"nexon","facet":"a","entities":[{"key":"good"},`+order+`]}`)
		if a.status != 400 || a.Code != "bad-entities" || !strings.Contains(a.Detail, "1 of 2 entities are invalid, and none was registered: entities[1]") ||
			!strings.Contains(a.Detail, words) || len(a.Errors) != 1 || a.Errors[0].Pointer != "#/entities/1" {
			t.Errorf("%.80s: %d %s", order, a.status, a.text)
		}
	}
	const other = `{"source":"nexon","facet":"b","entities":[{"key":"x","params":{"p":"v"}}]}`
	r.wantProblem(400, "bad-entities", "the facet has no param p; it has none", http.MethodPost, "/entities", other)
	many := strings.Repeat(`{"key":"a b"},`, 200) + `{"key":"good"}`
	a := r.do(http.MethodPost, "/entities", `{"source":"nexon","facet":"a","entities":[`+many+`]}`)
	if a.status != 400 || len(a.Errors) != maxErrors || a.Errors[99].Pointer != "#/entities/99" || strings.Count(a.Detail, "entities[") != maxNamedErrors {
		t.Errorf("%d %s", a.status, a.text)
	}
	r.wantList("")
	if len(r.notified) != 0 {
		t.Errorf("notified: got %q", r.notified)
	}
}

func TestRegister_RejectsInvalidBody(t *testing.T) {
	r := newRig(t)
	post := func(status int, code, words, body string) {
		t.Helper()
		r.wantProblem(status, code, words, http.MethodPost, "/entities", body)
	}
	post(400, "bad-body", "must be an object; the body is {", `[]`)
	post(400, "bad-body", "must be an object", `null`)
	post(400, "bad-body", "must be an object", ``)
	post(400, "bad-body", "unexpected EOF", `{`)
	post(400, "bad-body", "unexpected data after", `{"source":"nexon","facet":"a"} {}`)
	post(400, "bad-body", `unknown field "entitys"`, `{"source":"nexon","facet":"a","entitys":[]}`)
	post(400, "bad-body", "not valid UTF-8", "{\"source\":\"nexon\",\"facet\":\"a\",\"entities\":[{\"key\":\"\xff\"}]}")
	post(404, "no-such-source", `no source "nexo"`, `{"source":"nexo","facet":"a"}`)
	post(404, "no-such-facet", `no facet "d"; it has a, b, c`, `{"source":"nexon","facet":"d"}`)
	post(400, "bad-body", "the facet is missing", `{"source":"nexon"}`)
	post(422, "not-prefetched", "sources.nexon.prefetch.facets.c.mode", `{"source":"nexon","facet":"c","entities":[{"key":"x"}]}`)
	order := `{"key":"x"},`
	post(400, "bad-body", "there are 5001 entities; one request takes 5000", `{"source":"nexon","facet":"a","entities":[`+strings.Repeat(order, 5000)+`{"key":"x"}]}`)
	post(413, "body-too-large", "1048576 bytes", `{"source":"nexon","facet":"a","entities":[`+strings.Repeat(" ", 1<<20)+`]}`)
	r.down = true
	post(503, "store-unavailable", "freshet migrate up", `{"source":"nexon","facet":"a","entities":[{"key":"x"}]}`)
	if !strings.Contains(r.log.String(), "connection refused") {
		t.Error("the error is not logged")
	}
}

func TestRegister_AcceptsLargeBatch(t *testing.T) {
	r := newRig(t)
	orders := make([]string, 800) // with more entities SQLite is too slow under the race detector
	for i := range orders {
		orders[i] = fmt.Sprintf(`{"key":"%s%05d"}`, strings.Repeat("k", 100), i)
	}
	if a := r.put("a", orders...); a.Added != len(orders) {
		t.Errorf("got %s, want %d added", a.text, len(orders))
	}
	if a := r.put("b"); a.Added+a.Known != 0 || len(r.notified) != 1 {
		t.Errorf("empty batch: got %s, notified %q", a.text, r.notified)
	}
}

func TestRecordReads_RegistersAndCounts(t *testing.T) {
	r := newRig(t)
	for of, want := range map[string]bool{"nexon/a": true, "nexon/c": false, "nexon/d": false, "nobody/a": false} {
		source, facet, _ := strings.Cut(of, "/")
		if r.Counts(source, facet) != want {
			t.Errorf("reads of %s are counted: %v", of, !want)
		}
	}
	r.put("a", `{"key":"known","tier":"hot"}`)
	r.notified = nil
	of := func(source, facet, key string, count int) ReadCount {
		read := ReadCount{Count: count}
		read.Entity.Source, read.Entity.Facet, read.Entity.Key = source, facet, key
		return read
	}
	until := start.Add(-time.Minute)
	err := r.RecordReads(t.Context(), []ReadCount{
		of("nexon", "a", "known", 3), of("nexon", "a", "new", 2), of("nexon", "b", "longer", 1), of("nexon", "c", "x", 9), of("nobody", "a", "x", 9), of("other", "a", "xx", 1),
	}, until)
	if err != nil {
		t.Fatal(err)
	}
	r.wantList("", "a/known", "a/new", "b/longer", "a/xx")
	slices.Sort(r.notified)
	if !slices.Equal(r.notified, []string{"nexon in 1h0m3s", "other in 1h0m2s"}) {
		t.Errorf("notified: got %q", r.notified)
	}
	all := r.ok(http.MethodGet, "/entities", "").Entities
	if known, fresh := all[0], all[1]; known.Reads != 3 || known.Tier != "hot" || fresh.Reads != 2 || fresh.Tier != "cold" ||
		!fresh.Enabled || !fresh.LastReadAt.Equal(until) || !fresh.DueAt.Equal(start.Add(time.Hour+3*time.Second)) {
		t.Errorf("%+v", all)
	}
	if err := r.RecordReads(t.Context(), []ReadCount{of("nexon", "c", "x", 9)}, until); err != nil || len(r.notified) != 2 {
		t.Errorf("got %v, notified %q", err, r.notified)
	}
	// Eight more reads make the entity due at the time of the reads ("until"), and the schedulers
	// must be notified of this time.
	if err := r.RecordReads(t.Context(), []ReadCount{of("nexon", "a", "new", 8)}, until); err != nil || r.notified[2] != "nexon in -1m0s" {
		t.Errorf("got %v, notified %q", err, r.notified)
	}
	if fresh := r.ok(http.MethodGet, "/entities", "").Entities[1]; !fresh.DueAt.Equal(until) {
		t.Errorf("%+v", fresh)
	}
	_ = r.db.Close()
	if err := r.RecordReads(t.Context(), []ReadCount{of("nexon", "a", "new", 2)}, until); err == nil || len(r.notified) != 3 {
		t.Errorf("got %v, notified %q", err, r.notified)
	}
}
