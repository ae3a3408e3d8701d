package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func canonicalForm(t testing.TB, in string, paths *pathNode) (text, counted string, err error) {
	t.Helper()
	var c canonical
	err = c.appendDocument([]byte(in), paths)
	c.forEachHashedPart(func(part []byte) { counted += string(part) })
	return string(c.out), counted, err
}

func mustPaths(t testing.TB, selected, ignored []string) *pathNode {
	t.Helper()
	p, err := newPaths(selected, ignored)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCanonical_IgnoresFormatting(t *testing.T) {
	all := mustPaths(t, nil, nil)
	for want, variants := range map[string][]string{
		`{"a":1,"b":[true,false,null]}`: {
			`{"a":1,"b":[true,false,null]}`,
			"\t{ \"b\" : [ true ,false,\r\nnull ] , \"a\" : 1 }\n",
			`{"\u0061":1,"b":[true,false,null]}`,
			`{"a":0,"b":{},"b":[true,false,null],"a":1}`,
		},
		`{"a":{"x":1,"y":2,"z":3},"b":{"x":1,"y":2,"z":3}}`: {
			`{"b":{"z":3,"y":2,"x":1},"a":{"y":2,"z":3,"x":1}}`,
		},
		`"é/\"\\\b\f\n\r\t\u0001가😀"`: {
			`"é/\"\\\b\f\n\r\t\u0001가😀"`,
			`"\u00e9\/\u0022\u005c\u0008\u000c\u000a\u000D\u0009\u0001\uac00\ud83d\ude00"`,
		},
		`"\ud800x"`:                 {`"\uD800x"`, `"\ud800\u0078"`}, // an unpaired surrogate stays escaped
		`-0.5e+10`:                  {`-0.5e+10`, ` -0.5e+10 `},
		`{"":1,"!":2,"a ":3,"a":4}`: nil,
		`{"":1,"!":2,"a":4,"a ":3}`: {`{"a ":3,"a":4,"!":2,"":1}`, `{"a":4,"a ":3,"":1,"!":2}`},
		`[]`:                        {`[]`, `[ ]`},
		`{}`:                        {`{}`, `{ }`},
	} {
		for _, in := range variants {
			if got, _, err := canonicalForm(t, in, all); err != nil || got != want {
				t.Errorf("%s\n got %s, error %v\nwant %s", in, got, err, want)
			}
		}
	}
}

func TestCanonical_ReportsPositionOfError(t *testing.T) {
	all := mustPaths(t, nil, nil)
	for in, mention := range map[string]string{
		``:                                       "unexpected end",
		`<html>`:                                 `byte 0: unexpected '<'`,
		`{"a":1`:                                 "is not closed",
		`{"a":1,}`:                               "has no name",
		`{,}`:                                    "has no name",
		`{"a"}`:                                  "has no value",
		`{1:2}`:                                  "has no name",
		`[1,]`:                                   "unexpected ']'",
		`[1 2]`:                                  "is not closed",
		`[`:                                      "unexpected end",
		`{} {}`:                                  "after the end",
		`nul`:                                    "unexpected 'n'",
		`01`:                                     "after the end",
		`-`:                                      "has no digits",
		`1.`:                                     "has no digits",
		`1e`:                                     "has no digits",
		`+1`:                                     "unexpected",
		`NaN`:                                    "unexpected",
		`"a`:                                     "is not closed",
		`"\x"`:                                   "unknown escape",
		`"\u12g4"`:                               "hexadecimal",
		`"\u+123"`:                               "hexadecimal",
		"\"a\nb\"":                               "control character",
		"\"\\n\x01\"":                            "control character",
		"\"\xff\"":                               "UTF-8",
		"\"\\n\xff\"":                            "UTF-8",
		"\"\xed\xa0\x80\"":                       "UTF-8",
		strings.Repeat("[", 1<<20):               "nested deeper than",
		strings.Repeat(`{"a":`, 1<<20):           "nested deeper than",
		"\xef\xbb\xbf{}":                         "unexpected",
		`{"a":1}` + strings.Repeat(" ", 9) + "x": "byte 16",
	} {
		if _, _, err := canonicalForm(t, in, all); err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%.40q: got error %v, want one that contains %q", in, err, mention)
		}
	}
}

func TestPaths_SelectAndIgnore(t *testing.T) {
	const in = `{"z":{"date":1,"v":2},"a":{"date":3,"v":[{"k":1,"l":2},{"k":3}]},"s":"text","d.t":5}`
	for _, c := range []struct {
		selected, ignored []string
		text, counted     string
	}{
		{nil, nil, `{"a":{"date":3,"v":[{"k":1,"l":2},{"k":3}]},"d.t":5,"s":"text","z":{"date":1,"v":2}}`, "="},
		{[]string{"z"}, nil, `{"z":{"date":1,"v":2}}`, "="},
		{[]string{"*.date"}, nil, `{"a":{"date":3},"z":{"date":1}}`, "="},
		{[]string{"a.v.*.k"}, nil, `{"a":{"v":[{"k":1},{"k":3}]}}`, "="},
		{[]string{"a.v.1"}, nil, `{"a":{"v":[{"k":3}]}}`, "="},
		{[]string{`d\.t`, "s"}, nil, `{"d.t":5,"s":"text"}`, "="},
		{[]string{"nothing"}, nil, `{}`, "="},
		{[]string{"s.deeper"}, nil, `{}`, "="},
		{
			nil,
			[]string{"*.date"},
			`{"a":{"date":3,"v":[{"k":1,"l":2},{"k":3}]},"d.t":5,"s":"text","z":{"date":1,"v":2}}`,
			`{"a":{"v":[{"k":1,"l":2},{"k":3}]},"d.t":5,"s":"text","z":{"v":2}}`,
		},
		{
			nil,
			[]string{"a", "z"},
			`{"a":{"date":3,"v":[{"k":1,"l":2},{"k":3}]},"d.t":5,"s":"text","z":{"date":1,"v":2}}`,
			`{"d.t":5,"s":"text"}`,
		},
		{
			nil,
			[]string{"s", "z", `d\.t`},
			`{"a":{"date":3,"v":[{"k":1,"l":2},{"k":3}]},"d.t":5,"s":"text","z":{"date":1,"v":2}}`,
			`{"a":{"date":3,"v":[{"k":1,"l":2},{"k":3}]}}`,
		},
		{[]string{"a"}, []string{"a.v.*", "a.v.0.k"}, `{"a":{"date":3,"v":[{"k":1,"l":2},{"k":3}]}}`, `{"a":{"date":3,"v":[]}}`},
		{[]string{"a"}, []string{"a.v.0"}, `{"a":{"date":3,"v":[{"k":1,"l":2},{"k":3}]}}`, `{"a":{"date":3,"v":[{"k":3}]}}`},
		{[]string{"a"}, []string{"a.v.1"}, `{"a":{"date":3,"v":[{"k":1,"l":2},{"k":3}]}}`, `{"a":{"date":3,"v":[{"k":1,"l":2}]}}`},
		{[]string{"a.v", "a.v.*.k", "*"}, []string{"*"}, `{"a":{"date":3,"v":[{"k":1,"l":2},{"k":3}]},"d.t":5,"s":"text","z":{"date":1,"v":2}}`, `{}`},
	} {
		text, counted, err := canonicalForm(t, in, mustPaths(t, c.selected, c.ignored))
		if c.counted == "=" {
			c.counted = c.text
		}
		if err != nil || text != c.text || counted != c.counted {
			t.Errorf("select %q, ignore %q: error %v\n got text %s\nwant text %s\n got hashed %s\nwant hashed %s", c.selected, c.ignored, err, text, c.text, counted, c.counted)
		}
	}
}

func TestPaths_RejectsInvalid(t *testing.T) {
	for _, p := range []string{"", ".", "a..b", "a.", ".a", strings.Repeat("*.", 64) + "a"} {
		if _, err := newPaths([]string{p}, nil); err == nil || !strings.Contains(err.Error(), "select[0]") {
			t.Errorf("%q: got error %v, want one that names select[0]", p, err)
		}
	}
}

// oracle computes the canonical form in a slow and simple way, with maps of encoding/json.
type oracle struct {
	selected, ignored [][]string
}

func (o oracle) matches(list [][]string, at []string) (whole, within bool) {
	for _, p := range list {
		n := min(len(p), len(at))
		if !slices.EqualFunc(p[:n], at[:n], func(a, b string) bool { return a == "*" || a == b }) {
			continue
		}
		if len(at) >= len(p) {
			whole = true
		} else {
			within = true
		}
	}
	return whole, within
}

func (o oracle) write(b *strings.Builder, v any, at []string, hash bool) {
	below := func(name string, v any) (string, bool) {
		path := append(slices.Clone(at), name)
		whole, within := o.matches(o.selected, path)
		_, isObject := v.(map[string]any)
		_, isArray := v.([]any)
		if len(o.selected) > 0 && !whole && (!within || (!isObject && !isArray)) {
			return "", false
		}
		if ignored, _ := o.matches(o.ignored, path); ignored && hash {
			return "", false
		}
		var inner strings.Builder
		o.write(&inner, v, path, hash)
		return inner.String(), true
	}
	switch v := v.(type) {
	case map[string]any:
		var names []string
		for name := range v {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int { return strings.Compare(canonicalName(a), canonicalName(b)) })
		b.WriteByte('{')
		first := true
		for _, name := range names {
			if text, kept := below(name, v[name]); kept {
				if !first {
					b.WriteByte(',')
				}
				first = false
				b.WriteString(`"` + canonicalName(name) + `":` + text)
			}
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		first := true
		for i, e := range v {
			if text, kept := below(fmt.Sprint(i), e); kept {
				if !first {
					b.WriteByte(',')
				}
				first = false
				b.WriteString(text)
			}
		}
		b.WriteByte(']')
	case string:
		b.WriteString(`"` + canonicalName(v) + `"`)
	case json.Number:
		b.WriteString(v.String())
	default:
		fmt.Fprint(b, map[any]string{nil: "null", true: "true", false: "false"}[v])
	}
}

// surrogates reports whether the text may contain an unpaired surrogate, which encoding/json
// replaces.
func surrogates(in []byte) bool { return bytes.Contains(bytes.ToLower(in), []byte(`\ud`)) }

func FuzzCanonical_AgreesWithEncodingJSON(f *testing.F) {
	f.Add([]byte(`{"b":[1,{"a":null,"date":2}],"a":"\u00e9\n","":{"date":{}}}`), "a", "*.date")
	f.Add([]byte(`[[],{},"",0,-1.5e-3,true,false,null,"\ud83d\ude00"]`), "", "1")
	f.Add([]byte(`{"a":{"x":1,"y":2},"a":{"y":2,"x":1}}`), "a.x", "a.y")
	f.Fuzz(func(t *testing.T, in []byte, selected, ignored string) {
		var o oracle
		var sel, ign []string
		for _, l := range []struct {
			text string
			list *[]string
			to   *[][]string
		}{{selected, &sel, &o.selected}, {ignored, &ign, &o.ignored}} {
			if l.text == "" {
				continue
			}
			if !utf8.ValidString(l.text) || strings.ContainsAny(l.text, `\`) {
				t.Skip("path cannot be written as a setting")
			}
			*l.list, *l.to = []string{l.text}, [][]string{strings.Split(l.text, ".")}
		}
		paths, err := newPaths(sel, ign)
		if err != nil {
			t.Skip("path cannot be written as a setting")
		}
		text, counted, err := canonicalForm(t, string(in), paths)

		var v any
		dec := json.NewDecoder(bytes.NewReader(in))
		dec.UseNumber()
		valid := json.Valid(in) && utf8.Valid(in)
		if !valid || bytes.Count(in, []byte("["))+bytes.Count(in, []byte("{")) > maxDepth || surrogates(in) {
			if !valid && err == nil {
				t.Fatalf("%q: got no error, want one for invalid JSON", in)
			}
			return
		}
		if err != nil {
			t.Fatalf("%q: got error %v, want none", in, err)
		}
		if err := dec.Decode(&v); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			hash bool
			got  string
		}{{false, text}, {true, counted}} {
			var want strings.Builder
			o.write(&want, v, nil, c.hash)
			if c.got != want.String() {
				t.Fatalf("select %q, ignore %q, hash %v of %q\n got %s\nwant %s", sel, ign, c.hash, in, c.got, want.String())
			}
		}
		if again, _, err := canonicalForm(t, text, mustPaths(t, nil, nil)); err != nil || again != text {
			t.Fatalf("canonical form of %s: got %s (error %v), want the same text", text, again, err)
		}
		if len(text) > len(in) {
			t.Fatalf("%q: got the longer text %q", in, text)
		}
	})
}

// Each random document is written twice, with its members in different order. The hashes of both
// texts must be equal.
func TestHash_IgnoresMemberOrder(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		doc := randomValue(rng, 0)
		paths := mustPaths(t, nil, []string{"*.date", "b.*", "a.a.a"})
		hash := func(order uint64) ([32]byte, string) {
			text := writeShuffled(rand.New(rand.NewPCG(order, 4)), doc)
			_, counted, err := canonicalForm(t, text, paths)
			if err != nil {
				t.Fatalf("seed %d: %s: got error %v", seed, text, err)
			}
			return sha256.Sum256([]byte(counted)), text
		}
		one, textOne := hash(1)
		two, textTwo := hash(2)
		if one != two {
			t.Fatalf("seed %d: got different hashes for\n%s\n%s", seed, textOne, textTwo)
		}
	}
}

func randomValue(rng *rand.Rand, depth int) any {
	if depth > 4 || rng.IntN(3) == 0 {
		return rng.IntN(5)
	}
	if rng.IntN(3) == 0 {
		list := make([]any, rng.IntN(4))
		for i := range list {
			list[i] = randomValue(rng, depth+1)
		}
		return list
	}
	m := map[string]any{}
	for range rng.IntN(6) {
		m[[]string{"a", "b", "date", "aa", "z", "b c"}[rng.IntN(6)]] = randomValue(rng, depth+1)
	}
	return m
}

func writeShuffled(rng *rand.Rand, v any) string {
	switch v := v.(type) {
	case map[string]any:
		var members []string
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			members = append(members, `"`+name+`":`+writeShuffled(rng, v[name]))
		}
		rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		return "{" + strings.Join(members, " , ") + "}"
	case []any:
		var elements []string
		for _, e := range v {
			elements = append(elements, writeShuffled(rng, e))
		}
		return "[" + strings.Join(elements, ",") + "]"
	}
	return fmt.Sprint(v)
}

func TestCanonical_ForEachElement(t *testing.T) {
	tests := []struct {
		in   string
		want string // the elements, or the end of the error
	}{
		{`[]`, ``},
		{" [\n{\"b\": 1, \"a\": 2} , 3 ] ", `{"a":2,"b":1};3;`},
		{`[1 2]`, `1;array is not closed`},
		{`[1`, `1;array is not closed`},
		{`[1,]`, `1;unexpected ']'`},
		{`[`, `unexpected end`},
		{`[1] x`, `1;'x' after the end`},
		{`[{"a":}]`, `unexpected '}'`},
	}
	for _, test := range tests {
		var c canonical
		got := ""
		err := forEachElement(&c, []byte(test.in), keepAll, func([]byte) error {
			got += string(c.out) + ";"
			return c.appendDocument([]byte(`"another document"`), keepAll)
		})
		if err != nil {
			_, text, _ := strings.Cut(err.Error(), ": ")
			got += text
		}
		if got != test.want {
			t.Errorf("%s: got %s, want %s", test.in, got, test.want)
		}
	}
}
