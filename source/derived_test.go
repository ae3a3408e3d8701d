package source

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/source/derived"
	"github.com/freshet/freshet/source/items"
	"github.com/freshet/freshet/source/links"
)

// derivedConfig returns a source with the collection facet issues and the derived facet stats, which
// computes statistics for each owner.
func derivedConfig() Config {
	config := DefaultConfig()
	config.BaseURL = "https://api.example.com"
	issues, stats := DefaultFacet(), DefaultFacet()
	issues.KeyPattern = "(?P<owner>[a-z]+)/(?P<repo>[a-z]+)"
	issues.Documents = map[string]Document{"issues": {Path: "/repos/{owner}/{repo}/issues"}}
	issues.Collection = &items.Collection{ID: "number"}
	stats.KeyPattern = "[a-z]+"
	stats.Derived = &derived.Config{Over: map[string]derived.Input{"issues": {Key: "{owner}"}}, Measures: map[string]derived.Measure{"n": {Count: true}}, All: &derived.All{}}
	config.Facets = map[string]Facet{"issues": issues, "stats": stats}
	return config
}

func TestDerived_ComputedEntities(t *testing.T) {
	config := derivedConfig()
	people := config.Facets["stats"]
	people.Derived = &derived.Config{Over: map[string]derived.Input{"issues": {}}, Measures: map[string]derived.Measure{"n": {Distinct: "user"}}, Every: time.Second, All: &derived.All{Every: time.Hour}}
	people.KeyPattern = "[a-z]+/[a-z]+"
	config.Facets["people"] = people
	s, err := New("github", config, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		facet, key string
		want       []derived.Target
	}{
		{"issues", "acme/app", []derived.Target{{Facet: "people", Key: "acme/app", Every: time.Second}, {Facet: "people", Key: "_all", Every: time.Hour}, {Facet: "stats", Key: "acme", Every: time.Minute}}},
		{"stats", "acme", []derived.Target{{Facet: "stats", Key: "_all", Every: 10 * time.Minute}}}, // _all is merged from the results of the keys, so a change of a result causes its computation
		{"stats", "_all", nil},
		// distinct values can't be merged, so _all is computed again after a change of an item, and not
		// of a result
		{"people", "acme/app", nil},
	} {
		f, _ := s.Facet(c.facet)
		if got := f.Computed(c.key); !slices.Equal(got, c.want) {
			t.Errorf("%s/%s: got %v, want %v", c.facet, c.key, got, c.want)
		}
	}
	plan, err := s.Plan(Request{Facet: "stats", Key: "_all"})
	if err != nil || plan.Calls() != 0 {
		t.Errorf("plan of a derived facet: got %v, %v, want no call", plan, err)
	}
	if err := s.CheckKey("stats", "acme/app"); err == nil {
		t.Error("a key that does not match keyPattern: got no error")
	}
}

func TestDerived_VersionFollowsTheSettings(t *testing.T) {
	version := func(change func(*derived.Config)) int64 {
		t.Helper()
		config := derivedConfig()
		change(config.Facets["stats"].Derived)
		s, err := New("github", config, nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		plan, err := s.Plan(Request{Facet: "stats", Key: "acme"})
		if err != nil {
			t.Fatal(err)
		}
		return plan.ExtractVersion()
	}
	same := version(func(*derived.Config) {})
	if got := version(func(c *derived.Config) {
		c.Every = time.Hour
		c.Measures["n"] = derived.Measure{Of: "issues", Count: true}
	}); got != same {
		t.Error("every, and the default of a measure: got another version, want the same")
	}
	for name, change := range map[string]func(*derived.Config){
		"measure": func(c *derived.Config) { c.Measures["n"] = derived.Measure{Sum: "x"} },
		"input":   func(c *derived.Config) { c.Over["issues"] = derived.Input{} },
		"period": func(c *derived.Config) {
			c.By, c.Over["issues"] = []derived.Period{derived.Month}, derived.Input{Key: "{owner}", At: "at"}
		},
	} {
		if version(change) == same {
			t.Errorf("%s: got the same version, want another one", name)
		}
	}
}

func TestDerived_ConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"facets.stats.documents: not allowed with derived": func(c *Config) {
			f := c.Facets["stats"]
			f.Documents = map[string]Document{"d": {Path: "/x"}}
			c.Facets["stats"] = f
		},
		"facets.stats.conditional: not allowed with derived": func(c *Config) {
			f := c.Facets["stats"]
			f.Conditional = true
			c.Facets["stats"] = f
		},
		"facets.stats.derived.over.stats: the source has no facet of this name with": func(c *Config) {
			c.Facets["stats"].Derived.Over = map[string]derived.Input{"stats": {}}
		},
		"facets.stats.derived.over.issues: keyFold of issues is": func(c *Config) {
			f := c.Facets["stats"]
			f.KeyFold = FoldLower
			c.Facets["stats"] = f
		},
		"facets.stats.derived.measures.n: set exactly one of": func(c *Config) {
			c.Facets["stats"].Derived.Measures["n"] = derived.Measure{}
		},
		"facets.page.links.facet: stats is derived": func(c *Config) {
			f := DefaultFacet()
			f.Documents = map[string]Document{"d": {Path: "/page/{key}"}}
			f.Raw, f.Links = &Raw{MediaType: "text/html"}, &links.Config{Match: "href=(.+)", Facet: "stats"}
			c.Facets["page"] = f
		},
		"facets.page.params.n.from: the content of stats is computed": func(c *Config) {
			f := DefaultFacet()
			f.Documents = map[string]Document{"d": {Path: "/page/{n}"}}
			f.Params = map[string]Param{"n": {From: "stats", Path: "total.n"}}
			c.Facets["page"] = f
		},
	} {
		config := derivedConfig()
		change(&config)
		s, err := New("github", config, nil, 1)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %s", err, want)
		}
	}
}
