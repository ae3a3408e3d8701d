package runs

import (
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/items"
)

func TestCheck_NamesEachFault(t *testing.T) {
	list := source.DefaultFacet()
	list.Collection = &items.Collection{ID: "id"}
	facets := map[string]source.Facet{"user": {}, "repos": list, "issues": list, "more": {}}
	for text, want := range map[string]string{
		`{steps: {user: {}, repos: {}, issues: {each: repos, key: "{a}"}}}`: "",
		`{steps: {}}`:          "steps: is empty",
		`{steps: {users: {}}}`: "steps.users: unknown facet; the source has issues, more, repos, user",
		`{steps: {repos: {each: repos, key: "{a}"}}}`:                                               "each step has the setting each",
		`{steps: {user: {key: "{a}"}}}`:                                                             "steps.user.each: is missing",
		`{steps: {user: {}, issues: {each: repos, key: "{a}"}}}`:                                    `steps.issues.each: the run has no step "repos"; it has issues, user`,
		`{steps: {user: {}, issues: {each: user, key: "{a}"}}}`:                                     "steps.issues.each: the facet user is no collection",
		`{steps: {repos: {}, issues: {each: repos, key: "{a}"}, more: {each: issues, key: "{a}"}}}`: `steps.more.each: the step issues has the setting ` + "`each`" + ` itself`,
		`{steps: {repos: {}, issues: {each: repos}}}`:                                               "steps.issues.key: is missing",
		`{steps: {repos: {}, issues: {each: repos, key: "a"}}}`:                                     "steps.issues.key: has no path in braces",
		`{steps: {repos: {}, issues: {each: repos, key: "{a"}}}`:                                    "has a { without a path and a }",
		`{steps: {repos: {}, issues: {each: repos, key: "a}"}}}`:                                    "has a } without a {",
		`{steps: {repos: {}, issues: {each: repos, key: "{}"}}}`:                                    "has a { without a path and a }",
		`{steps: {repos: {}, issues: {each: repos, key: "{a}", unless: [""]}}}`:                     "steps.issues.unless: has an empty path",
		`{steps: {user: {}}, parallel: 0}`:                                                          "parallel: 0 must be from 1 to 1000",
		`{steps: {user: {}}, overlap: both}`:                                                        `overlap: "both" must be skip, buffer-one or cancel-other`,
		`{steps: {user: {}}, deadline: 1s}`:                                                         "deadline: 1s must be at least 1m",
		`{steps: {user: {}}, every: 1s}`:                                                            "every: 1s must be at least 1m",
		`{steps: {user: {}}, tolerate: 10}`:                                                         `"10" must be a percentage`,
		`{steps: {user: {}}, tolerate: "101%"}`:                                                     `"101%" must be a percentage`,
		`{steps: {user: {}}, tolerate: "-1%"}`:                                                      `"-1%" must be a percentage`,
		`{steps: {user: {}}, tolerate: "NaN%"}`:                                                     `"NaN%" must be a percentage`,
		`{steps: {user: {}}, tolerate: "2.5%"}`:                                                     "",
	} {
		var c Config
		err := yaml.Unmarshal([]byte(text), &c)
		if err == nil {
			err = c.Check(facets)
		}
		got := ""
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestConfig_Defaults(t *testing.T) {
	var c Config
	if err := yaml.Unmarshal([]byte(`{steps: {user: {}}, tolerate: 10%}`), &c); err != nil {
		t.Fatal(err)
	}
	if c.Parallel != 8 || c.Deadline != 24*time.Hour || c.Tolerate != 0.1 {
		t.Errorf("got %+v, want parallel 8, deadline 24h and tolerate 0.1", c)
	}
	if text, err := yaml.Marshal(c.Tolerate); err != nil || strings.TrimSpace(string(text)) != "10%" {
		t.Errorf("tolerate as YAML: got %q, %v, want 10%%", text, err)
	}
}

func TestKeyOf_FillsPaths(t *testing.T) {
	key, err := parseTemplate("r/{owner.login}/{id}-x")
	if err != nil {
		t.Fatal(err)
	}
	for item, want := range map[string]string{`{"owner":{"login":"o"},"id":7}`: "r/o/7-x", `{"owner":{"login":null},"id":7}`: "", `{"owner":{"login":"o"},"id":true}`: ""} {
		got, err := key.keyOf(gjson.Parse(item))
		if got != want && want != "" || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v, want %q", item, got, err, want)
		}
	}
}
