package source

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/links"
)

// linkMatch matches links such as src="/ui/KEY".
const linkMatch = `src="/ui/([^"]*)"`

// linkedSource returns a source with the raw facet "character", whose content has links to entities of
// the same facet.
func linkedSource(t testing.TB, change func(*Facet)) *Source {
	return rawSource(t, "http://upstream.example/base", Raw{MediaType: "application/xml"}, func(f *Facet) {
		f.KeyPattern = `[^\x00-\x1f\\%?#\x7f-\x{9f}]*`
		f.Documents = map[string]Document{"doc": {Path: "/ui/{+key}"}}
		f.Links = &links.Config{Match: linkMatch, Facet: "character"}
		if change != nil {
			change(f)
		}
	})
}

// linking returns an XML document with one link to each key.
func linking(keys ...string) []byte {
	var b strings.Builder
	b.WriteString("<w2:a>")
	for _, key := range keys {
		fmt.Fprintf(&b, `<w2:frame src="/ui/%s"/>`, key)
	}
	b.WriteString("</w2:a>")
	return []byte(b.String())
}

// findLinks returns the links in the content of an entity of the facet "character". `own` is the key
// of this entity. It does the same as a worker.
func findLinks(s *Source, own string, content []byte) links.Found {
	f, _ := s.Facet("character")
	return f.Links.Find(content, links.Rules{Own: own, Fold: f.FoldKey, Check: func(key string) error {
		return errors.Join(schemas.CheckKey(key), s.CheckKey("character", key))
	}})
}

func TestFindLinks(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Facet)
		text   string
		want   links.Found
	}{
		"in order, once":       {nil, string(linking("c.xml", "a/b.xml", "c.xml", "a/b.xml")), links.Found{Keys: []string{"c.xml", "a/b.xml"}}},
		"none":                 {nil, "<w2:a/>", links.Found{}},
		"not its own key":      {nil, string(linking("own.xml", "a.xml")), links.Found{Keys: []string{"a.xml"}}},
		"folded":               {func(f *Facet) { f.KeyFold = FoldLower }, string(linking("A.XML", "a.xml", "OWN.xml")), links.Found{Keys: []string{"a.xml"}}},
		"at most maxKeys":      {func(f *Facet) { f.Links.MaxKeys = 2 }, string(linking("a", "b", "a", "c", "d", "c")), links.Found{Keys: []string{"a", "b"}, Excess: 2}},
		"invalid ones skipped": {nil, string(linking("..", "a//b", "", "a%00", "ok", "..")), links.Found{Keys: []string{"ok"}, Invalid: 4}},
		"too long":             {nil, string(linking(strings.Repeat("k", 257), strings.Repeat("k", 5000), strings.Repeat("k", 256))), links.Found{Keys: []string{strings.Repeat("k", 256)}, Invalid: 2}},
		"pattern of the facet": {func(f *Facet) { f.KeyPattern = `[a-z]{1,9}/[A-Z]{1,9}\.xml` }, string(linking("a/B.xml", "a/b.xml", "B.xml")), links.Found{Keys: []string{"a/B.xml"}, Invalid: 2}},
		"group without text":   {func(f *Facet) { f.Links.Match = `href="[^"]*"|` + linkMatch }, `<a href="x"/>` + string(linking("a")), links.Found{Keys: []string{"a"}, Invalid: 1}},
		"JSON text":            {func(f *Facet) { f.Links.Match = `"next"\s*:\s*"([^"]*)"` }, `{"next": "b"}`, links.Found{Keys: []string{"b"}}},
		"element text":         {func(f *Facet) { f.Links.Match = `<loc>\s*([^<\s]*)\s*</loc>` }, "<loc>\n b.xml\n</loc>", links.Found{Keys: []string{"b.xml"}}},
		"not UTF-8":            {nil, "\xff" + string(linking("\xff", "a")), links.Found{Keys: []string{"a"}, Invalid: 1}},
	} {
		s := linkedSource(t, c.change)
		if got := findLinks(s, "own.xml", []byte(c.text)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// A link can lead to another host, or to a path outside of the facet's path. Then its text must be no
// valid key, or a key whose call stays below the facet's path.
func TestFindLinks_TraversalStaysBelowItsPath(t *testing.T) {
	keys := append(slices.Clone(traversals), "http://evil.example/a.xml", "//evil.example/a.xml", "\\\\evil.example\\a", "@evil.example/a", "a.xml@evil.example", "?u=http://evil.example", "#a")
	lax := linkedSource(t, nil)
	strict := linkedSource(t, func(f *Facet) { f.KeyPattern = `[a-z0-9]{1,20}/[A-Z0-9]{1,40}\.xml` })
	// With this expression the group contains the whole text between the quotes, with a scheme and a
	// host if the link has them.
	whole := linkedSource(t, func(f *Facet) { f.Links.Match = `src="(?:/ui/)?([^"]*)"` })
	for _, key := range keys {
		for _, text := range [][]byte{linking(key), []byte(`<a src="` + key + `"/>`)} {
			if found := findLinks(strict, "own.xml", text); len(found.Keys) > 0 {
				t.Errorf("strict pattern, %q: got keys %q, want none", key, found.Keys)
			}
			for _, s := range []*Source{lax, whole} {
				for _, link := range findLinks(s, "own.xml", text).Keys {
					checkLink(t, s, link)
				}
			}
		}
	}
}

// checkLink fails the test unless a call can be planned for the key of a link, and the URL of this call
// stays below the facet's path.
func checkLink(t *testing.T, s *Source, link string) {
	t.Helper()
	if err := schemas.CheckKey(link); err != nil {
		t.Errorf("%q: got a key that is invalid: %v", link, err)
	}
	if _, err := s.Plan(Request{Facet: "character", Key: link}); err != nil {
		t.Errorf("%q: got a key that cannot be planned: %v", link, err)
	}
	checkKeyPath(t, s, link)
}

func TestFindLinks_RandomContentStaysBelow(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	s := linkedSource(t, func(f *Facet) { f.Links.MaxKeys, f.Links.Match = 5, `["']([^"']*)["']` })
	pieces := []string{"..", ".", "/", "%2f", "\\", "a", "\"", "'", "\x00", ":", "//", "@", ";", "?", "é", "\xc0\xaf", "http://evil.example", "b.xml"}
	for range 2000 {
		var text strings.Builder
		for range rng.IntN(30) {
			text.WriteString(pieces[rng.IntN(len(pieces))])
		}
		found := findLinks(s, "a", []byte(text.String()))
		for i, link := range found.Keys {
			checkLink(t, s, link)
			if link == "a" || slices.Contains(found.Keys[:i], link) {
				t.Errorf("%q: got key %q twice, or the content's own key", text.String(), link)
			}
		}
		if len(found.Keys) > 5 {
			t.Errorf("%q: got %d keys, want at most 5", text.String(), len(found.Keys))
		}
	}
}

// Hostile content with a match at each byte must use little memory: at most 10,000 matches are
// examined.
func TestFindLinks_BoundsHostileContent(t *testing.T) {
	s := linkedSource(t, func(f *Facet) { f.Links.Match = `(.)` })
	text := []byte(strings.Repeat("0123456789abcdef", 1<<16))
	found := findLinks(s, "own.xml", text)
	if len(found.Keys) != 16 || found.Invalid != 0 {
		t.Errorf("got %d keys and %d invalid texts, want 16 and 0", len(found.Keys), found.Invalid)
	}
	var all strings.Builder
	for n := range 20_000 {
		fmt.Fprintf(&all, `src="/ui/%d"`, n)
	}
	found = findLinks(linkedSource(t, nil), "own.xml", []byte(all.String()))
	if len(found.Keys) != 100 || found.Excess != 10_000-100 {
		t.Errorf("got %d keys and %d in excess, want %d and %d", len(found.Keys), found.Excess, 100, 10_000-100)
	}
}

func TestLinks_RejectsInvalidSettings(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*Facet)
		mention string
	}{
		"no raw":                {func(f *Facet) { f.Raw = nil; f.Params = TextParams(map[string]string{"x": "y"}) }, "links: needs `raw`"},
		"no regular expression": {func(f *Facet) { f.Links.Match = `(` }, "links.match"},
		"no match":              {func(f *Facet) { f.Links.Match = "" }, "0 groups"},
		"no group":              {func(f *Facet) { f.Links.Match = `src="[^"]*"` }, "0 groups"},
		"two groups":            {func(f *Facet) { f.Links.Match = `(src|href)="([^"]*)"` }, "2 groups"},
		"no facet":              {func(f *Facet) { f.Links.Facet = "" }, `there is no facet ""`},
		"an unknown facet":      {func(f *Facet) { f.Links.Facet = "layouts" }, `there is no facet "layouts"; the facets are: character`},
		"too many keys":         {func(f *Facet) { f.Links.MaxKeys = 1001 }, "links.maxKeys: 1001"},
		"negative keys":         {func(f *Facet) { f.Links.MaxKeys = -1 }, "links.maxKeys: -1"},
		"deeper than requests":  {func(f *Facet) { f.Links.MaxDepth = schemas.MaxLinkDepth + 1 }, "links.maxDepth: 11"},
		"negative depth":        {func(f *Facet) { f.Links.MaxDepth = -1 }, "links.maxDepth: -1"},
		"param of registered entities": {func(f *Facet) {
			f.Params = TextParams(map[string]string{"lang": ""})
			f.Documents = map[string]Document{"doc": {Path: "/{lang}/{+key}"}}
		}, "need a value for {lang}"},
	} {
		config := linkedSource(t, nil).config
		f := config.Facets["character"]
		own := *f.Links
		f.Links = &own
		c.change(&f)
		config.Facets = map[string]Facet{"character": f}
		s, err := New("nexon", config, nil, 1)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.mention) {
			t.Errorf("%s: got %v, want an error that mentions %q", name, err, c.mention)
		}
	}
	f, _ := linkedSource(t, nil).Facet("character")
	if _, err := (links.Config{Match: "(a)", MaxDepth: schemas.MaxLinkDepth}).Compile(); err != nil {
		t.Errorf("the maximum depth of requests: got %v, want it valid", err)
	}
	if f.Links.MaxKeys != 100 || f.Links.MaxDepth != 3 {
		t.Errorf("defaults: got %+v, want 100 keys and depth 3", f.Links)
	}
}

// The setting links does not influence the extracted content. So it must not change the extract
// version, or all stored content would be written again.
func TestLinks_KeepExtractVersion(t *testing.T) {
	with, without := linkedSource(t, nil), linkedSource(t, func(f *Facet) { f.Links = nil })
	if got, want := with.facets["character"].version, without.facets["character"].version; got != want {
		t.Errorf("extract version: got %d, want %d as without links", got, want)
	}
}
