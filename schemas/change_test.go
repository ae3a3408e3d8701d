package schemas

import (
	"bytes"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

func exampleChange() Change {
	hash := func(last byte) []byte { return append(make([]byte, 31), last) }
	return Change{
		Entity: Entity{Source: "court", Facet: "progress", Key: "2024-가단-123"}, Version: 1790000000000,
		At: time.Date(2026, 9, 21, 14, 13, 20, 0, time.UTC), Before: hash(1), After: hash(2),
	}
}

// The golden record has a member that a later release could add; decoding must ignore it.
func TestChange_GoldenFitsSchemaAndDecodes(t *testing.T) {
	golden, err := os.ReadFile("golden/change/v1.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(t, compile(t, "change.v1.schema.json"), golden); err != nil {
		t.Error(err)
	}
	if got, err := DecodeChange(golden); err != nil || !reflect.DeepEqual(got, exampleChange()) {
		t.Errorf("%v\n got %+v\nwant %+v", err, got, exampleChange())
	}
	_, value, err := exampleChange().Encode()
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(string(bytes.TrimSpace(golden)), `,"added":"later"`, "", 1); string(value) != want {
		t.Errorf("encodes to %s\n golden is %s", value, want)
	}
}

func TestChange_FitsSchemaAndDecodes(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	hash := func() []byte {
		h := make([]byte, 32)
		for i := range h {
			h[i] = byte(rng.UintN(256))
		}
		return h
	}
	schema := compile(t, "change.v1.schema.json")
	keys := []string{"a", "2024가단1/2", `"\<&>`, "\u2028", strings.Repeat("k", 256)}
	for range 200 {
		want := Change{
			Entity:  Entity{Source: "court", Facet: "progress", Key: keys[rng.IntN(len(keys))]},
			Version: 1 + rng.Int64N(1<<53), At: time.UnixMicro(rng.Int64N(4e15)).UTC(), After: hash(),
		}
		if rng.IntN(2) == 0 {
			want.Before = hash()
		}
		in := want
		in.At = in.At.In(time.FixedZone("KST", 9*3600))
		key, value, err := in.Encode()
		if err != nil || string(key) != "progress/"+want.Entity.Key {
			t.Fatalf("seed %d: key %q, %v", seed, key, err)
		}
		if err := validate(t, schema, value); err != nil {
			t.Fatalf("seed %d: %s: %v", seed, value, err)
		}
		if got, err := DecodeChange(value); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %v\n got %+v\nwant %+v", seed, err, got, want)
		}
	}
}

func TestDecodeChange_RejectsInvalid(t *testing.T) {
	_, valid, err := exampleChange().Encode()
	if err != nil {
		t.Fatal(err)
	}
	replaced := func(old, by string) string {
		s := strings.Replace(string(valid), old, by, 1)
		if s == string(valid) {
			t.Fatalf("%s has no %s", valid, old)
		}
		return s
	}
	old, now := strings.Repeat("0", 63)+"1", strings.Repeat("0", 63)+"2"
	schema := compile(t, "change.v1.schema.json")
	for name, c := range map[string]struct{ value, mention string }{
		"not JSON":           {"\x00", "invalid character"},
		"two values":         {string(valid) + "{}", "after top-level value"},
		"no major":           {replaced(`"schemaVersion":1,`, ""), "schemaVersion is 0"},
		"a later major":      {replaced(`"schemaVersion":1`, `"schemaVersion":2`), "schemaVersion is 2; this release reads 1"},
		"an odd source":      {replaced(`"court"`, `"../court"`), "source"},
		"an odd facet":       {replaced(`"progress"`, `""`), "facet"},
		"no key":             {replaced("2024-가단-123", ""), "key"},
		"a newline":          {replaced("2024-", `\n`), "control character"},
		"no version":         {replaced(`"version":1790000000000,`, ""), "version"},
		"a negative version": {replaced(`"version":1`, `"version":-1`), "version"},
		"no time":            {replaced(`"changedAt":"2026-09-21T14:13:20Z",`, ""), "changedAt"},
		"an odd time":        {replaced("2026-09-21T14:13:20Z", "yesterday"), "yesterday"},
		"no new hash":        {replaced(`,"newHash":"`+now+`"`, ""), "newHash"},
		"a short hash":       {replaced(now, now[2:]), "newHash"},
		"an odd old hash":    {replaced(old, old[1:]+"x"), "oldHash"},
		"an empty old hash":  {replaced(old, ""), "oldHash"},
	} {
		_, err := DecodeChange([]byte(c.value))
		if err == nil || !strings.Contains(err.Error(), c.mention) {
			t.Errorf("%s: error %v, want one that mentions %q", name, err, c.mention)
		}
	}
	// The JSON Schema must reject the same faults as DecodeChange.
	for _, value := range []string{
		replaced(`"version":1790000000000,`, ""), replaced(`"version":1`, `"version":-1`), replaced(`"schemaVersion":1`, `"schemaVersion":2`),
		replaced(now, now[2:]), replaced(old, ""), replaced("2026-09-21T14:13:20Z", "yesterday"),
	} {
		if validate(t, schema, []byte(value)) == nil {
			t.Errorf("%s fits the schema, want it rejected", value)
		}
	}
}

func FuzzDecodeChange(f *testing.F) {
	golden, err := os.ReadFile("golden/change/v1.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Add(bytes.Replace(golden, []byte(`"`+strings.Repeat("0", 63)+`1"`), []byte("null"), 1))
	f.Fuzz(func(t *testing.T, value []byte) {
		c, err := DecodeChange(value)
		if err != nil {
			return
		}
		key, encoded, err := c.Encode()
		if err != nil {
			if c.At.UTC().Year() > 9999 || c.At.UTC().Year() < 0 { // Go decodes some years from JSON that it can't encode
				return
			}
			t.Fatalf("decoded but not encoded: %v", err)
		}
		again, err := DecodeChange(encoded)
		if err != nil {
			t.Fatalf("encoded but not decoded: %v", err)
		}
		if !again.At.Equal(c.At) || string(key) != c.Entity.Facet+"/"+c.Entity.Key {
			t.Fatalf("time %v became %v; key %q", c.At, again.At, key)
		}
		c.At, again.At = time.Time{}, time.Time{}
		if !reflect.DeepEqual(c, again) {
			t.Fatalf("\n got %+v\nwant %+v", again, c)
		}
	})
}
