package app

import (
	"bytes"
	"strings"
	"testing"
)

const linkedSource = `sources:
  court:
    preset: court
    facets:
      layout:
        links: {match: 'src="/ui/([^"]+)"', facet: layout, maxDepth: 2}
`

// `config check` must describe links with their defaults. An error must name the invalid setting and
// its place.
func TestConfig_Links(t *testing.T) {
	c, err := loadConfig(write(t, linkedSource), nil, OptionalSources)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := c.Explain(&text, nil); err != nil {
		t.Fatal(err)
	}
	if want := "links in new content request layout: at most 100 keys of one content, up to 2 links away\n"; !strings.Contains(text.String(), want) {
		t.Errorf("config check: got\n%s\nwant a line with %q", text.String(), want)
	}
	for change, want := range map[[2]string]string{
		{"facet: layout", "facet: layouts"}: `sources.court.facets.layout.links.facet: there is no facet "layouts"`,
		{"maxDepth: 2", "maxDepth: 99"}:     "sources.court.facets.layout.links.maxDepth: 99 must be from 1 to 10",
		{"layout:\n", "general:\n"}:         "sources.court.facets.general.links: needs `raw`",
	} {
		_, err := loadConfig(write(t, strings.Replace(linkedSource, change[0], change[1], 1)), nil, OptionalSources)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "^") {
			t.Errorf("%q: got %v, want an error with %q and the place in the file", change[1], err, want)
		}
	}
}
