package console

import (
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/source/derived"
)

func TestFormatContent_IndentsOnlySmallJSON(t *testing.T) {
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	small, large := `{"a":["[[{{",1]}`, `["`+strings.Repeat("z", maxIndentBytes)+`"]`
	const indented = "{\n  \"a\": [\n    \"[[{{\",\n    1\n  ]\n}"
	for _, c := range []struct{ content, want string }{
		{"", ""},
		{small, indented},
		{`["\"[", "\\"]`, "[\n  \"\\\"[\",\n  \"\\\\\"\n]"},
		{`{"a":`, `{"a":`},
		{nested(3), "[\n  [\n    []\n  ]\n]"},
		{nested(maxIndentDepth + 1), nested(maxIndentDepth + 1)},
		{`["` + strings.Repeat("[", 99) + `"]`, "[\n  \"" + strings.Repeat("[", 99) + "\"\n]"}, // the brackets in the string do not count as nesting, so the content is indented
		{large, large[:maxContentShown] + " …"},
	} {
		if got := formatContent([]byte(c.content), ""); got != c.want {
			t.Errorf("content: got %.80q, want %.80q", got, c.want)
		}
	}
}

func TestFormatContent_ShowsRawText(t *testing.T) {
	if got := formatContent([]byte("<a>\x07</a>"), "application/xml"); !strings.HasPrefix(got, "<a>") {
		t.Errorf("XML: got %q, want the text", got)
	}
	if got, want := formatContent([]byte("\x89PNG\xff"), "image/png"), "5 bytes of image/png that are not UTF-8 text"; got != want {
		t.Errorf("image: got %q, want %q", got, want)
	}
}

func TestLookup_NamesTheChangingMember(t *testing.T) {
	r := newRig(t)
	const path = root + "/lookup?facet=nexon/character&key=somebody"
	if got := r.get(path).text(); strings.Contains(got, "At every check") {
		t.Errorf("page: got %s, want no hint", got)
	}
	r.entity.ChangingMember = "basic.meta<b>.id"
	if got, want := r.get(path).textByID("changing-member"), "Only the JSON member basic.meta<b>.id changes at each check of this facet. If readers do not need it, add it to the facet’s setting ignore ."; got != want {
		t.Errorf("hint: got %q, want %q", got, want)
	}
}

func TestLookup_ShowsInputsOfDerivedFacet(t *testing.T) {
	r := newRig(t)
	const path = root + "/lookup?facet=nexon/character&key=somebody"
	r.entity.Stored = true
	r.entity.Derived = &Derived{From: "computed from items of issues by month", After: time.Minute, Read: []derived.Read{{Facet: "issues", Collections: 3, Complete: 2, Items: 4120, Undated: 5}}}
	page := r.get(path).text()
	for _, want := range []string{
		"Its content is computed from items of issues by month, 1 min after the first change of an item. No call is made for it.",
		"Computed from issues 4,120 items in 3 collections, 2 of them complete; 5 items have no time",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("page: got %s, want it to contain %q", page, want)
		}
	}
}

func TestLookup_LinksToTheFacetOfAnAlias(t *testing.T) {
	r := newRig(t)
	r.entity.Aliases = []Alias{{Param: "ocid", From: "id"}}
	d := r.get(root + "/lookup?facet=nexon/character&key=some+body")
	if n := d.linksTo(root + "/lookup?facet=nexon%2Fid&key=some+body"); n != 1 {
		t.Errorf("links to the facet that has the value: got %d, want 1", n)
	}
}
