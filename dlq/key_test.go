package dlq

import "testing"

func TestSplitFacetKey_AcceptsTheListedForm(t *testing.T) {
	hasFacet := func(name string) bool { return name == "t" || name == "other" }
	for _, c := range []struct{ facet, text, wantFacet, wantKey string }{
		{"", "bad0", "", "bad0"},
		{"", "t/bad0", "t", "bad0"},
		{"", "t/a/b", "t", "a/b"},
		{"", "t/t/x", "t", "t/x"},
		{"t", "t/bad0", "t", "bad0"},
		{"t", "bad0", "t", "bad0"},
		{"t", "other/x", "t", "other/x"},
		{"gone", "gone/x", "gone", "x"},
		{"", "gone/x", "", "gone/x"},
		{"", "t/", "", "t/"},
		{"", "/x", "", "/x"},
		{"", "t", "", "t"},
		{"t", "", "t", ""},
	} {
		if facet, key := SplitFacetKey(c.facet, c.text, hasFacet); facet != c.wantFacet || key != c.wantKey {
			t.Errorf("facet %q, key %q: got %q and %q, want %q and %q", c.facet, c.text, facet, key, c.wantFacet, c.wantKey)
		}
	}
}
