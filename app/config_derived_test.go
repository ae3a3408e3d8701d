package app

import (
	"bytes"
	"strings"
	"testing"
)

const derivedSource = `sources:
  github:
    preset: github-rest
    facets:
      activity:
        derived:
          over: {issues: {key: "{owner}", at: created_at}}
          by: [month]
          timeZone: Asia/Seoul
          measures: {opened: {count: true}}
`

// `config check` must describe a derived facet. An error must name the invalid setting and its place.
func TestConfig_Derived(t *testing.T) {
	c, err := loadConfig(write(t, derivedSource), nil, OptionalSources)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := c.Explain(&text, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"facet   activity: computed from items of issues by month in Asia/Seoul; fresh for 1h\n          computed 1m after the first change of an input, without a call\n",
		"facet   statistics: computed from items of commits, issues, repos by year, month; fresh for 1h\n          computed 1m after the first change of an input, without a call; the key _all covers all keys, after 10m\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("config check: got\n%s\nwant lines with %q", text.String(), want)
		}
	}
	for change, want := range map[[2]string]string{
		{"over: {issues:", "over: {issue:"}:    "sources.github.facets.activity.derived.over.issue: the source has no facet of this name",
		{`"{owner}"`, `"{repo}"`}:              `sources.github.facets.activity.derived.over.issues.key: "{repo}" must be {key}, or the named group at the start`,
		{"[month]", "[hour]"}:                  `sources.github.facets.activity.derived.by[0]: "hour" must be`,
		{"Asia/Seoul", "Asia/Soul"}:            `sources.github.facets.activity.derived.timeZone: "Asia/Soul" is unknown`,
		{"count: true", "count: true, sum: a"}: "sources.github.facets.activity.derived.measures.opened: set exactly one of",
		{"    facets:\n", "    prefetch: {facets: {activity: {}}}\n    facets:\n"}:                     "sources.github.prefetch.facets.activity.mode: the facet is derived",
		{"    facets:\n", "    prefetch: {facets: {user: {triggers: {activity: {}}}}}\n    facets:\n"}: "sources.github.prefetch.facets.user.triggers.activity: activity is derived",
		{"        derived:\n", "        documents: {a: {path: /a}}\n        derived:\n"}:               "sources.github.facets.activity.documents: not allowed with derived",
	} {
		_, err := loadConfig(write(t, strings.Replace(derivedSource, change[0], change[1], 1)), nil, OptionalSources)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", change[1], err, want)
		}
	}
}
