package simulator

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"testing"
	"unicode/utf8"
)

// sample contains sizes and counts that were measured in a real response body; see testdata.
type sample struct {
	Items         int
	DistinctItems int `json:"distinct_items"`
	Fields        map[string]struct {
		Types    []string
		Null     int
		MaxLen   int
		Distinct int
		Keys     []string
	} `json:"item_fields"`
}

func samples(t *testing.T) map[string]sample {
	t.Helper()
	text, err := os.ReadFile("testdata/item-equipment.shape.json")
	if err != nil {
		t.Fatal(err)
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		t.Fatal(err)
	}
	delete(parts, "note")
	all := make(map[string]sample)
	for name, part := range parts {
		var one sample
		if err := json.Unmarshal(part, &one); err != nil {
			t.Fatal(err)
		}
		all[name] = one
	}
	return all
}

type fields = map[string]any

func decode(t *testing.T, body []byte) fields {
	t.Helper()
	var v fields
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

var wornArrays = []string{"item_equipment", "item_equipment_preset_1", "item_equipment_preset_2", "item_equipment_preset_3"}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func TestItemEquipment_HasRealShape(t *testing.T) {
	all := samples(t)
	kinds := make(map[string]int)
	for i := range 12 {
		s := New(Config{Seed: uint64(i)})
		body := decode(t, get(t, s, fmt.Sprint(equipment, "someone-", i)).Body.Bytes())
		want := []string{
			"character_class", "character_gender", "date", "dragon_equipment", "item_equipment", "item_equipment_preset_1",
			"item_equipment_preset_2", "item_equipment_preset_3", "mechanic_equipment", "medal_shape", "preset_no", "title",
		}
		if got := sorted(body); !slices.Equal(got, want) {
			t.Fatalf("got members %v", got)
		}
		if len(body["title"].(fields)) != 8 || len(body["medal_shape"].(fields)) != 6 {
			t.Error("title or medal_shape has the wrong number of members")
		}
		kind, companions := "mechanic", body["mechanic_equipment"].([]any)
		if len(companions) == 0 {
			kind, companions = "evan", body["dragon_equipment"].([]any)
		}
		kinds[kind]++
		if len(companions) != 4 || len(body["mechanic_equipment"].([]any))+len(body["dragon_equipment"].([]any)) != 4 {
			t.Error("got another number of companions than four of one kind")
		}
		var items []fields
		for _, name := range wornArrays {
			worn := body[name].([]any)
			if len(worn) != 24 {
				t.Errorf("%s: got %d items", name, len(worn))
			}
			for _, it := range worn {
				items = append(items, it.(fields))
			}
		}
		checkItems(t, items, all[kind], all)
	}
	if kinds["evan"] == 0 || kinds["mechanic"] == 0 {
		t.Errorf("got only one kind of companions: %v", kinds)
	}
}

func checkItems(t *testing.T, items []fields, like sample, all map[string]sample) {
	t.Helper()
	whole := make(map[string]bool)
	for _, it := range items {
		text, _ := json.Marshal(it)
		whole[string(text)] = true
		if !slices.Equal(sorted(it), sorted(like.Fields)) {
			t.Fatalf("item: got fields %v", sorted(it))
		}
	}
	if len(whole) != like.DistinctItems {
		t.Errorf("got %d distinct items of %d", len(whole), len(items))
	}
	for name, f := range like.Fields {
		null, longest, most := 0, 0, 0
		for _, s := range all {
			most = max(most, s.Fields[name].MaxLen)
		}
		distinct := make(map[string]bool)
		for _, it := range items {
			got := it[name]
			text, _ := json.Marshal(got)
			distinct[string(text)] = true
			kind := "NoneType"
			switch v := got.(type) {
			case nil:
				null++
			case string:
				kind, longest = "str", max(longest, utf8.RuneCountInString(v))
			case float64:
				kind = "int"
			case fields:
				kind = "dict"
				wanted := slices.Sorted(slices.Values(f.Keys))
				if !slices.Equal(sorted(v), wanted) {
					t.Errorf("%s: got options %v", name, sorted(v))
				}
			}
			if !slices.Contains(f.Types, kind) && got != nil {
				t.Errorf("%s: got type %s", name, kind)
			}
		}
		if math.Abs(float64(null-f.Null)) > 3 {
			t.Errorf("%s: got null in %d of %d items, real body %d of %d", name, null, len(items), f.Null, like.Items)
		}
		if longest > most+most/5 || 2*longest < min(most, 2*f.MaxLen) {
			t.Errorf("%s: got up to %d characters, real body %d", name, longest, most)
		}
		if (f.Distinct == 1) != (len(distinct) == 1) && name != "starforce_scroll_flag" && name != "scroll_resilience_count" {
			t.Errorf("%s: got %d distinct values, real body %d", name, len(distinct), f.Distinct)
		}
	}
}

func TestItemEquipment_HasRealSize(t *testing.T) {
	for _, c := range []struct {
		pretty                                bool
		least, most, leastZipped, greatZipped int
	}{
		{false, 230_000, 260_000, 15_000, 21_000},
		{true, 350_000, 370_000, 15_000, 24_000},
	} {
		s := New(Config{Pretty: c.pretty, Seed: 7})
		for i := range 8 {
			target := fmt.Sprint(equipment, i)
			body := get(t, s, target).Body.Bytes()
			onWire := get(t, s, target, "Accept-Encoding", "gzip").Body.Len()
			if n := len(body); n < c.least || n > c.most || onWire < c.leastZipped || onWire > c.greatZipped {
				t.Errorf("pretty %v: got %d bytes, %d compressed", c.pretty, n, onWire)
			}
			var whole bytes.Buffer
			z, _ := gzip.NewWriterLevel(&whole, 6)
			_, _ = z.Write(body)
			_ = z.Close()
			if n := whole.Len(); !c.pretty && (n < c.leastZipped || n > c.greatZipped) {
				t.Errorf("got %d bytes with gzip -6", n)
			}
			if i == 0 {
				t.Logf("pretty %v: %d bytes, sent as %d, with gzip -6 %d", c.pretty, len(body), onWire, whole.Len())
			}
		}
	}
}

func TestPretty_IsTheSameDocument(t *testing.T) {
	minified, pretty := New(Config{}), New(Config{Pretty: true})
	for _, target := range []string{equipment + "a", "/maplestory/v1/character/basic?ocid=a", "/maplestory/v1/character/stat?ocid=a"} {
		a, b := get(t, minified, target).Body.Bytes(), get(t, pretty, target).Body.Bytes()
		var compact, indented bytes.Buffer
		if err := json.Compact(&compact, b); err != nil {
			t.Fatal(err)
		}
		if err := json.Indent(&indented, a, "", "  "); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(compact.Bytes(), a) || !bytes.Equal(indented.Bytes(), b) {
			t.Errorf("%s: documents differ", target)
		}
	}
}

func TestSmallDocuments_HaveRealShape(t *testing.T) {
	s := New(Config{})
	basic := get(t, s, "/maplestory/v1/character/basic?ocid=a&date=2026-01-02").Body.Bytes()
	if v := decode(t, basic); v["date"] != "2026-01-02" || len(v) != 14 || len(basic) < 700 || len(basic) > 1300 {
		t.Errorf("basic: got %d bytes: %s", len(basic), basic)
	}
	stat := get(t, s, "/maplestory/v1/character/stat?ocid=a").Body.Bytes()
	if v := decode(t, stat); v["date"] != nil || len(v["final_stat"].([]any)) != 44 || len(stat) < 2300 || len(stat) > 4500 {
		t.Errorf("stat: got %d bytes: %s", len(stat), stat)
	}
	id := get(t, s, "/maplestory/v1/id?character_name=a").Body.Bytes()
	if v := decode(t, id); len(v) != 1 || len(v["ocid"].(string)) != 32 {
		t.Errorf("id: got %s", id)
	}
	equip, base := get(t, s, equipment+"a&date=2026-01-02"), get(t, s, equipment+"a")
	if decode(t, equip.Body.Bytes())["date"] != "2026-01-02" || decode(t, base.Body.Bytes())["date"] != nil {
		t.Error("date is not the request's, or not null without one")
	}
}

func TestGzip_UnpacksToPlainBody(t *testing.T) {
	s := New(Config{Seed: 3})
	for range 3 {
		for i := range 10 {
			for _, path := range []string{"character/item-equipment", "character/basic", "character/stat"} {
				target := fmt.Sprintf("%s%s?ocid=key-%d", base, path, i)
				plain := get(t, s, target).Body.Bytes()
				if got := gunzip(t, get(t, s, target, "Accept-Encoding", "gzip").Body); !bytes.Equal(got, plain) {
					t.Fatalf("%s: got %d bytes decompressed, %d plain", target, len(got), len(plain))
				}
			}
		}
		control(t, s, `{"changePercent": 60}`)
	}
}

// sums returns the hashes of the bodies of keys 0 to n-1.
func sums(t *testing.T, s *Simulator, path string, n int) [][sha256.Size]byte {
	t.Helper()
	out := make([][sha256.Size]byte, n)
	for i := range out {
		w := get(t, s, fmt.Sprintf("%s%s?ocid=key-%d", base, path, i), "Accept-Encoding", "gzip")
		if w.Code != 200 {
			t.Fatalf("got status %d", w.Code)
		}
		out[i] = sha256.Sum256(w.Body.Bytes())
	}
	return out
}

func changed(before, after [][sha256.Size]byte) map[int]bool {
	keys := make(map[int]bool)
	for i := range before {
		if before[i] != after[i] {
			keys[i] = true
		}
	}
	return keys
}

// After a change the bodies of the chosen entities differ from before, all other bodies are
// identical, and no two entities have the same body.
func TestChangePercent_ChangesExactShare(t *testing.T) {
	const n, path = 400, "character/basic"
	s := New(Config{Seed: 11})
	first := sums(t, s, path, n)
	if again := changed(first, sums(t, s, path, n)); len(again) != 0 {
		t.Fatalf("%d bodies changed without a control request", len(again))
	}
	control(t, s, `{"changePercent": 50}`)
	second := sums(t, s, path, n)
	half := changed(first, second)
	if len(half) < n*42/100 || len(half) > n*58/100 {
		t.Errorf("got %d changed of %d", len(half), n)
	}
	control(t, s, `{"changePercent": 50}`)
	third := sums(t, s, path, n)
	if !maps.Equal(half, changed(second, third)) || !maps.Equal(half, changed(first, third)) {
		t.Error("the second change affected other entities or reverted the first")
	}
	control(t, s, `{"changePercent": 20}`)
	for key := range changed(third, sums(t, s, path, n)) {
		if !half[key] {
			t.Errorf("key %d changed with 20 %% but not with 50 %%", key)
		}
	}
	control(t, s, `{"changePercent": 0}`)

	seen := make(map[[sha256.Size]byte]bool)
	for _, sum := range slices.Concat(first, second) {
		seen[sum] = true
	}
	if len(seen) != n+len(half) {
		t.Errorf("got %d distinct bodies of %d entities, %d of them in two revisions", len(seen), n, len(half))
	}

	// Another simulator with the same changes serves the same bytes.
	other := New(Config{Seed: 11})
	if err := other.Control(Control{ChangePercent: 50}); err != nil {
		t.Fatal(err)
	}
	if len(changed(second[:40], sums(t, other, path, 40))) != 0 {
		t.Error("same seed and changes: got different bytes")
	}
	if kept := 40 - len(changed(first[:40], sums(t, New(Config{Seed: 12}), path, 40))); kept != 0 {
		t.Errorf("other seed: got %d equal bodies", kept)
	}
}

func TestChangePercent_ChangesEveryDocument(t *testing.T) {
	s := New(Config{})
	items := func() string {
		text, _ := json.Marshal(decode(t, get(t, s, equipment+"a").Body.Bytes())["item_equipment"])
		return string(text)
	}
	seen := map[string]bool{items(): true}
	for range 10 {
		control(t, s, `{"changePercent": 100}`)
		seen[items()] = true
	}
	if len(seen) < 6 {
		t.Errorf("ten changes: got %d item sets", len(seen))
	}
	for _, path := range []string{"character/basic", "character/stat"} {
		before := sums(t, s, path, 50)
		control(t, s, `{"changePercent": 100}`)
		if n := len(changed(before, sums(t, s, path, 50))); n != 50 {
			t.Errorf("%s: got %d changed of 50", path, n)
		}
	}
	id := get(t, s, "/maplestory/v1/id?character_name=a").Body.String()
	control(t, s, `{"changePercent": 100}`)
	if get(t, s, "/maplestory/v1/id?character_name=a").Body.String() != id {
		t.Error("an identifier changed")
	}
}
