package source

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"
)

// rawSource returns a source whose facet "character" is raw.
func rawSource(t testing.TB, baseURL string, raw Raw, change func(*Facet)) *Source {
	return testSource(t, baseURL, func(c *Config) {
		f := c.Facets["character"]
		f.Raw, f.Params = &raw, nil
		f.Documents = map[string]Document{"doc": {Path: "/v1/{key}"}}
		if change != nil {
			change(&f)
		}
		c.Facets["character"] = f
		c.MaxBody = 1 << 20
	})
}

func TestRaw_ContentIsTheBytes(t *testing.T) {
	const text = "\ufeff<?xml version=\"1.0\"?>\r\n<w2:a xmlns:w2='u'>  &amp; <b/></w2:a>\n"
	s := rawSource(t, "http://upstream.example", Raw{MediaType: "application/xml", WellFormed: wellFormedXML, Must: "<w2:", MustNot: "<html"}, nil)
	for name, resp := range map[string]response{
		"plain":      {status: 200, body: []byte(text)},
		"compressed": {status: 200, body: gzipped(t, text), header: header("Content-Encoding", "gzip", "Content-Type", "text/xml")},
	} {
		o := read(t, s, resp)
		if o.Class != OK || string(o.Content.Bytes) != text || o.Content.Hash != sha256.Sum256([]byte(text)) || o.Content.MediaType != "application/xml" {
			t.Errorf("%s: got %+v, want the unchanged bytes, their hash and the media type", name, o)
		}
	}
	json := testSource(t, "http://upstream.example", nil)
	if o := read(t, json, response{status: 200, body: []byte("{}")}); o.Content.MediaType != "" || o.Content.ExtractVersion == s.facets["character"].version {
		t.Errorf("JSON: got media type %q, want none, and another extract version than raw content", o.Content.MediaType)
	}
	if got, want := s.facets["character"].version, s.facets["character"].ExtractVersion(); got != want {
		t.Errorf("extract version: got %d, want %d", want, got)
	}
}

// bomb is the XML of a billion laughs: ten levels of entities.
func bomb() string {
	var b strings.Builder
	b.WriteString(`<?xml version="1.0"?><!DOCTYPE a [<!ENTITY e0 "lol">`)
	for i := 1; i < 10; i++ {
		fmt.Fprintf(&b, `<!ENTITY e%d "%s">`, i, strings.Repeat(fmt.Sprintf("&e%d;", i-1), 10))
	}
	b.WriteString("]><w2:a>&e9;</w2:a>")
	return b.String()
}

func TestRaw_RefusesInvalidContent(t *testing.T) {
	xml := Raw{MediaType: "application/xml", WellFormed: wellFormedXML, Must: "<w2:", MustNot: "<html"}
	text := Raw{MediaType: "text/plain"}
	for _, c := range []struct {
		name, kind, body, want string
		raw                    Raw
	}{
		{"HTML page", "text/html; charset=utf-8", "<w2:a/>", "HTML page", xml},
		{"HTML for text", "text/html", "sorry", "HTML page", text},
		{"HTML named XML", "text/xml", "<HTML><w2:a/></HTML>", "mustNot", xml},
		{"other XML", "text/xml", "<a/>", "raw.must", xml},
		{"truncated XML", "text/xml", "<w2:a><b>", "well-formed", xml},
		{"truncated in a tag", "text/xml", "<w2:a><b", "well-formed", xml},
		{"wrong end", "text/xml", "<w2:a></b>", "well-formed", xml},
		{"two roots", "text/xml", "<w2:a/><w2:a/>", "second root", xml},
		{"text after the root", "text/xml", "<w2:a/>x", "outside", xml},
		{"attribute twice", "text/xml", "<w2:a b='1' b='2'/>", "twice", xml},
		{"unknown entity", "text/xml", "<w2:a>&x;</w2:a>", "well-formed", xml},
		{"entity bomb", "text/xml", bomb(), "document type", xml},
		{"external entity", "text/xml", `<!DOCTYPE a SYSTEM "file:///etc/passwd"><w2:a/>`, "document type", xml},
		{"deep XML", "text/xml", strings.Repeat("<w2:a>", 1e5), "levels deep", xml},
		{"other encoding", "text/xml", `<?xml version="1.0" encoding="EUC-KR"?><w2:a/>`, "well-formed", xml},
		{"not UTF-8", "text/xml", "<w2:a>\xff</w2:a>", "well-formed", xml},
		{"empty", "text/plain", "", "empty", text},
		{"truncated JSON", "application/json", `{"a":`, "", Raw{MediaType: "application/geo+json", WellFormed: wellFormedJSON}},
		{"deep JSON", "application/json", strings.Repeat("[", 1e5), "", Raw{MediaType: "application/geo+json", WellFormed: wellFormedJSON}},
		{"credential", "text/plain", "the key is secret-credential", "credential", text},
	} {
		s := rawSource(t, "http://upstream.example", c.raw, nil)
		if err := s.SetCredential("", "secret-credential"); err != nil {
			t.Fatal(err)
		}
		o := read(t, s, response{status: 200, header: header("Content-Type", c.kind), body: []byte(c.body)})
		if o.Class != BadContent || !strings.Contains(o.Err.Error(), c.want) || strings.Contains(o.Err.Error(), "secret-credential") {
			t.Errorf("%s: got %s (%v), want %s and %q", c.name, o.Class, o.Err, BadContent, c.want)
		}
	}
}

func TestRaw_BoundsCompressedContent(t *testing.T) {
	s := rawSource(t, "http://upstream.example", Raw{MediaType: "text/plain"}, nil)
	o := read(t, s, response{status: 200, header: header("Content-Encoding", "gzip"), body: gzipped(t, strings.Repeat(" ", 1<<20+1))})
	if o.Class != BadContent || !errors.Is(o.Err, ErrOversized) && !strings.Contains(o.Err.Error(), ErrOversized.Error()) {
		t.Errorf("got %s (%v), want %s because of maxBody", o.Class, o.Err, BadContent)
	}
}

func TestRaw_AcceptsItsMediaType(t *testing.T) {
	var got string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Accept")
		_, _ = w.Write([]byte("\x89PNG\r\n"))
	})
	s := rawSource(t, url, Raw{MediaType: "image/png", Must: "\x89PNG"}, nil)
	p, err := s.Plan(Request{Facet: "character", Key: "a"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Fetch(t.Context(), p, &testPermits{})
	if err != nil {
		t.Fatal(err)
	}
	if o := s.Read(a, time.Now()); o.Class != OK || got != "image/png" {
		t.Errorf("got %+v after a request with Accept: %s, want ok and image/png", o, got)
	}
}

func TestDelivery_NamesWrongSetting(t *testing.T) {
	xml := &Raw{MediaType: "application/xml"}
	for want, change := range map[string]func(*Facet){
		"raw: mediaType: \"\"":               func(f *Facet) { f.Raw = &Raw{} },
		"raw: mediaType: \"image/*\"":        func(f *Facet) { f.Raw = &Raw{MediaType: "image/*"} },
		"has parts":                          func(f *Facet) { f.Raw = &Raw{MediaType: "multipart/mixed"} },
		"wellFormed: \"html\"":               func(f *Facet) { f.Raw = &Raw{MediaType: "text/html", WellFormed: "html"} },
		"remove `select` and `ignore`":       func(f *Facet) { f.Raw, f.Ignore = xml, []string{"doc.a"} },
		"remove the other documents":         func(f *Facet) { f.Raw = xml; f.Documents["other"] = Document{Path: "/o"} },
		"remove `paging`":                    func(f *Facet) { f.Raw = xml; f.Documents["doc"] = Document{Path: "/o", Paging: &Paging{Link: true}} },
		"wait: 31s":                          func(f *Facet) { f.Wait = 31 * time.Second },
		"static: needs `raw`":                func(f *Facet) { f.Static = &Static{Dir: "d"} },
		"static.dir: is missing":             func(f *Facet) { f.Raw, f.Static = xml, &Static{} },
		"needs `immutable: true`":            func(f *Facet) { f.Raw, f.Static = xml, &Static{Dir: "d"} },
		"static.order: \"middle\"":           func(f *Facet) { f.Raw, f.Static = xml, &Static{Dir: "d", Order: "middle"} },
		"static.maxSize":                     func(f *Facet) { f.Raw, f.Static = xml, &Static{Dir: "d", Order: staticLast, MaxSize: -1} },
		`must not contain '\\'`:              func(f *Facet) { f.Documents["doc"] = Document{Path: "/{+key}"} },
		"only in the path":                   func(f *Facet) { f.Documents["doc"] = Document{Path: "/a?k={+key}"} },
		"only the key can have several":      func(f *Facet) { f.Documents["doc"] = Document{Path: "/{+ocid}"} },
		"headers.X: \"{+key}\" uses {+key};": func(f *Facet) { f.Documents["doc"] = Document{Path: "/", Headers: map[string]string{"X": "{+key}"}} },
	} {
		config := DefaultConfig()
		config.BaseURL = "http://upstream.example"
		f := DefaultFacet()
		f.KeyPattern = ".+"
		f.Documents = map[string]Document{"doc": {Path: "/v1/{key}"}}
		f.Params = TextParams(map[string]string{"ocid": ""})
		change(&f)
		config.Facets = map[string]Facet{"layout": f}
		if _, err := New("test", config, nil, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one that contains %q", err, want)
		}
	}
}

func TestDelivery_ImmutableIsFreshForEver(t *testing.T) {
	s := rawSource(t, "http://upstream.example", Raw{MediaType: "text/plain"}, func(f *Facet) {
		f.Immutable, f.Static = true, &Static{Dir: "d"}
	})
	f, _ := s.Facet("character")
	if f.FreshFor != ImmutableFor || f.Static.Order != staticFirst || f.Static.MaxSize != defaultStaticSize {
		t.Errorf("got freshFor %v and %+v, want the defaults of immutable content and static files", f.FreshFor, f.Static)
	}
	if at := time.Now().Add(f.FreshFor); at.Before(time.Now()) {
		t.Errorf("now plus freshFor: got %v, want a later time", at)
	}
}

// traversals are keys that must not reach another path or another host.
var traversals = []string{
	"../etc/passwd", "..", ".", "a/../b", "a/./b", "/etc/passwd", "//host/a", "a//b", "a/", "/", "",
	"..%2fetc", "%2e%2e/a", "a%00b", "a\x00b", `..\a`, `a\..\b`, "%5c..%5c", "C:/a", `C:\a`, "C:a", "file:///a", "http://host/a",
	"a?b", "a#b", "a;b/..;/c", "..;/a", "\xc0\xae\xc0\xae/a", "\xc0\xaf", "a/\u2025/b", "..\u2215a", "a\r\nHost: b", "a\tb", "~/a", "@host/a", "user:pw@host",
}

func TestKeyPath_TraversalStaysBelowItsPath(t *testing.T) {
	strict := rawSource(t, "http://upstream.example/base", Raw{MediaType: "text/plain"}, func(f *Facet) {
		f.KeyPattern = `[a-z0-9]{1,20}/[A-Z0-9]{1,40}\.xml`
		f.Documents = map[string]Document{"doc": {Path: "/ui/{+key}"}}
	})
	lax := keyPathSource(t)
	for _, key := range traversals {
		if err := strict.CheckKey("character", key); err == nil && key != "" {
			t.Errorf("the strict pattern accepts %q", key)
		}
		checkKeyPath(t, lax, key)
	}
	const key = "ssgo003/SSGO003F10.xml"
	if p, err := strict.Plan(Request{Facet: "character", Key: key}); err != nil || p.requests[0].url.String() != "http://upstream.example/base/ui/"+key {
		t.Errorf("got %+v, %v, want the key as path segments", p, err)
	}
}

// keyPathSource returns a source whose pattern allows all characters that {+key} allows.
func keyPathSource(t testing.TB) *Source {
	return rawSource(t, "http://upstream.example/base", Raw{MediaType: "text/plain"}, func(f *Facet) {
		f.KeyPattern = `[^\x00-\x1f\\%?#\x7f-\x{9f}]*`
		f.Documents = map[string]Document{"doc": {Path: "/ui/{+key}"}}
	})
}

// checkKeyPath fails the test unless the key is refused, or its URL is below /base/ui/ for every
// server, and has the key's segments.
func checkKeyPath(t *testing.T, s *Source, key string) {
	t.Helper()
	if key == "" { // no request can have this key, because schemas.CheckKey refuses it
		return
	}
	if s.CheckKey("character", key) != nil {
		if _, err := s.Plan(Request{Facet: "character", Key: key}); err == nil {
			t.Errorf("%q: CheckKey refuses the key, and Plan accepts it", key)
		}
		return
	}
	p, err := s.Plan(Request{Facet: "character", Key: key})
	if err != nil {
		t.Errorf("%q: CheckKey accepts the key, and Plan fails: %v", key, err)
		return
	}
	u := p.requests[0].url
	if u.Host != "upstream.example" || u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		t.Errorf("%q: got URL %v, want the host of the source, without user, query and fragment", key, u)
	}
	line := u.RequestURI()
	rest, below := strings.CutPrefix(line, "/base/ui/")
	if !below || !isBelow(u, s.base) || strings.ContainsFunc(line, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`\?#;`, r) }) {
		t.Errorf("%q: got request line %q, want a path below /base/ui/ without reserved characters", key, line)
	}
	parts := strings.Split(key, "/")
	got := strings.Split(rest, "/")
	if len(got) != len(parts) {
		t.Errorf("%q: got %d segments, want %d", key, len(got), len(parts))
	}
	for i, part := range got {
		if part == "" || part == "." || part == ".." || part != percentEncode(parts[i]) {
			t.Errorf("%q: got segment %q, want the encoded part of the key", key, part)
		}
	}
}

func FuzzPlan_KeyPathStaysBelowItsPath(f *testing.F) {
	for _, key := range traversals {
		f.Add(key)
	}
	s := keyPathSource(f)
	f.Fuzz(func(t *testing.T, key string) { checkKeyPath(t, s, key) })
}

func TestKeyPath_RandomKeysStayBelow(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	s := keyPathSource(t)
	pieces := []string{"..", ".", "/", "%2f", "\\", "a", "%", "\x00", ":", "//", "@", ";", "?", "é", "~", "b.xml"}
	for range 2000 {
		var key strings.Builder
		for range 1 + rng.IntN(6) {
			key.WriteString(pieces[rng.IntN(len(pieces))])
		}
		checkKeyPath(t, s, key.String())
	}
}

func TestKeyPattern_MustExcludeReserved(t *testing.T) {
	for pattern, valid := range map[string]bool{
		`[a-z0-9]{1,20}/[A-Z0-9]{1,40}\.xml`: true, `(?P<a>[a-z]+)/b`: true, `(?i)[a-z]+`: true, `[\w./-]+`: true, `[^\x00-\x1f\\%?#\x7f-\x{9f}]+`: true, `\pL+`: true,
		`.+`: false, `[^/]+`: false, `(?s).*`: false, `a\\b`: false, `a%b`: false, `[!-~]+`: false, `a|b\?`: false, `(a|[^a-z])`: false, `\S+`: false, `(?:#)*`: false, `\n`: false,
	} {
		p, err := compileKeyPattern(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.checkSegments(); (err == nil) != valid {
			t.Errorf("%s: got %v, want valid %v", pattern, err, valid)
		}
	}
}
