package schemas

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

var goldenRequests = map[string]UpdateRequest{
	"v2.0-full.json": {
		SchemaVersion: "2.0", EventID: "01980c3e-7a10-7c3f-9d55-0d5a1d5f2b11",
		Entity: Entity{"nexon", "character", "90f1a2b3c4d5e6f7"},
		Params: map[string]string{"ocid": "90f1a2b3c4d5e6f7"},
		Lane:   High, Reason: UserRequest,
		RequestedAt:   time.Date(2026, 1, 27, 12, 0, 0, 123456000, time.UTC),
		CorrelationID: "req-7f3a", Version: 1769515200123, RunID: "run-1", Page: "2",
	},
	"v2.0-minimal.json": {
		SchemaVersion: "2.0", EventID: "01980c3e-7a10-7c3f-9d55-0d5a1d5f2b12",
		Entity: Entity{"court", "progress", "서울중앙지법 2026가단1"},
		Lane:   Low, Reason: Prefetch,
		RequestedAt: time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC), Version: 7,
	},
	"v2.0-link.json": {
		SchemaVersion: "2.0", EventID: "01980c3e-7a10-7c3f-9d55-0d5a1d5f2b14",
		Entity: Entity{"court", "layout", "ssgo003/SSGO003F11.xml"},
		Lane:   Low, Reason: Link,
		RequestedAt: time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC), Version: 7, Depth: 2,
	},
	"v2.9-unknown-fields.json": {
		SchemaVersion: "2.9", EventID: "01980c3e-7a10-7c3f-9d55-0d5a1d5f2b13",
		Entity: Entity{"nexon", "character", "a"},
		Lane:   Low, Reason: "FORECAST",
		RequestedAt:   time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC),
		CorrelationID: "c", Version: 8,
	},
	"v1.1.json": {
		SchemaVersion: "2.0", EventID: "5f0c2b7e-1c2d-4e3f-8a9b-0c1d2e3f4a5b",
		Entity: Entity{"nexon", "character", "123456789"},
		Params: map[string]string{"ocid": "abc123"},
		Lane:   High, Reason: CacheMiss,
		RequestedAt:   time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC),
		CorrelationID: "trace-1", Version: 0, // the record's version is an unrelated counter, so it becomes 0 (unknown)
	},
}

func compile(t *testing.T, file string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(file)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(t *testing.T, s *jsonschema.Schema, doc []byte) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(string(doc)))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

func TestUpdateRequest_DecodesGolden(t *testing.T) {
	files, err := filepath.Glob("golden/update_request/*.json")
	if err != nil || len(files) != len(goldenRequests) {
		t.Fatalf("found %d golden records (%v), the table has %d", len(files), err, len(goldenRequests))
	}
	for name, want := range goldenRequests {
		value, err := os.ReadFile(filepath.Join("golden/update_request", name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeUpdateRequest(value)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got.RequestedAt = got.RequestedAt.UTC()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
}

func TestUpdateRequest_GoldenV2RoundTrips(t *testing.T) {
	schema := compile(t, "update_request.v2.schema.json")
	for name, r := range goldenRequests {
		value, err := os.ReadFile(filepath.Join("golden/update_request", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(t, schema, value); (err == nil) != strings.HasPrefix(name, "v2.") {
			t.Errorf("%s against the schema: %v", name, err)
		}
		encoded, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(t, schema, encoded); err != nil {
			t.Errorf("%s encoded again does not fit the schema: %v", name, err)
		}
		if strings.HasPrefix(name, "v2.0") && string(encoded) != strings.TrimSpace(string(value)) {
			t.Errorf("%s:\nencodes to %s\n golden is %s", name, encoded, value)
		}
	}
}

func TestDecodeUpdateRequest_RejectsInvalid(t *testing.T) {
	valid := func(change func(map[string]any)) string {
		value, err := goldenRequests["v2.0-full.json"].Encode()
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(value, &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		out, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	set := func(field string, v any) string { return valid(func(m map[string]any) { m[field] = v }) }
	drop := func(field string) string { return valid(func(m map[string]any) { delete(m, field) }) }

	for name, c := range map[string]struct {
		value   string
		mention string
		major   bool
	}{
		"empty":                   {"", "unexpected end", false},
		"not JSON":                {"\x00\xff", "invalid character", false},
		"not an object":           {"[]", "cannot unmarshal", false},
		"two values":              {set("page", "1") + "{}", "after top-level value", false},
		"no schema version":       {drop("schemaVersion"), "unknown major version of the schema", true},
		"a later major":           {set("schemaVersion", "3.0"), "unknown major version of the schema", true},
		"a number as version":     {set("schemaVersion", 2), "cannot unmarshal", false},
		"no event id":             {drop("eventId"), "eventId", false},
		"no source":               {drop("source"), "source", false},
		"an odd source":           {set("source", "../nexon"), "source", false},
		"an odd facet":            {set("facet", "Character"), "facet", false},
		"no key":                  {drop("key"), "key is empty", false},
		"a control character":     {set("key", "a\nb"), "control character", false},
		"a C1 control":            {set("key", "a\u0085b"), "control character", false},
		"a dot":                   {set("key", ".."), `".."`, false},
		"a long key":              {set("key", strings.Repeat("k", 257)), "257 bytes", false},
		"a third lane":            {set("priority", "MEDIUM"), "priority", false},
		"no reason":               {drop("reason"), "reason", false},
		"no time":                 {drop("requestedAt"), "requestedAt", false},
		"an odd time":             {set("requestedAt", "yesterday"), "yesterday", false},
		"a negative version":      {set("version", -1), "version", false},
		"a version past counting": {set("version", int64(1)<<53), "version", false},
		"a broken version":        {set("version", 1.5), "version", false},
		"a huge version":          {set("version", 1e30), "version", false},
		"a negative depth":        {set("depth", -1), "depth", false},
		"a depth past the limit":  {set("depth", MaxLinkDepth+1), "depth", false},
		"v1 without an id":        {`{"schemaVersion":"1.1"}`, "characterId", false},
		"v1 with a hostile id": {
			`{"schemaVersion":"1.1","eventId":"e","characterId":-1,"priority":"LOW","reason":"STALE","requestedAt":"2026-01-27T12:00:00Z"}`,
			"characterId", false,
		},
	} {
		_, err := DecodeUpdateRequest([]byte(c.value))
		if err == nil || !strings.Contains(err.Error(), c.mention) {
			t.Errorf("%s: error %v, want one that mentions %q", name, err, c.mention)
		}
		if errors.Is(err, ErrUnknownMajor) != c.major {
			t.Errorf("%s: errors.Is(%v, ErrUnknownMajor) = %v", name, err, !c.major)
		}
	}
}

func TestUpdateRequest_EncodeRejectsInvalid(t *testing.T) {
	r := goldenRequests["v2.0-full.json"]
	r.Key = ""
	if _, err := r.Encode(); err == nil {
		t.Error("a request without a key was encoded")
	}
}

func TestRecordKey_IsFacetAndKey(t *testing.T) {
	if got := string(goldenRequests["v2.0-minimal.json"].RecordKey()); got != "progress/서울중앙지법 2026가단1" {
		t.Errorf("record key is %q", got)
	}
}

func FuzzDecodeUpdateRequest(f *testing.F) {
	files, _ := filepath.Glob("golden/update_request/*.json")
	for _, file := range files {
		value, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		r, err := DecodeUpdateRequest(value)
		if err != nil {
			return
		}
		encoded, err := r.Encode()
		if err != nil {
			// Go can decode two kinds of times from JSON that it can't encode: a year above 9999,
			// and certain time zones.
			if r.RequestedAt.Year() > 9999 || strings.Contains(err.Error(), "timezone") {
				return
			}
			t.Fatalf("decoded but not encoded: %v", err)
		}
		again, err := DecodeUpdateRequest(encoded)
		if err != nil {
			t.Fatalf("encoded but not decoded: %v", err)
		}
		if !again.RequestedAt.Equal(r.RequestedAt) {
			t.Fatalf("time changed from %v to %v", r.RequestedAt, again.RequestedAt)
		}
		r.SchemaVersion, r.RequestedAt, again.RequestedAt = again.SchemaVersion, time.Time{}, time.Time{}
		if len(r.Params) == 0 {
			r.Params, again.Params = nil, nil
		}
		if !reflect.DeepEqual(r, again) {
			t.Fatalf("\n got %+v\nwant %+v", again, r)
		}
	})
}
