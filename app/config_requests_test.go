package app

import (
	"os"
	"strings"
	"testing"
)

func TestConfig_ErrorShowsRequestSetting(t *testing.T) {
	file, err := os.ReadFile("testdata/requests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	asked := string(file)
	for _, c := range []struct{ from, to, want string }{
		{"prefix: \"Bearer \"", "prefixes: x", "auth.prefixes: unknown setting; did you mean prefix?"},
		{"header: Authorization, prefix: \"Bearer \"", "query: key, prefix: x", "sources.forge.auth.prefix: needs auth.header"},
		{"header: Authorization, prefix: \"Bearer \"", "prefix: ''", "sources.forge.auth.header: is missing"},
		{"header: Authorization,", "header: Authorization, secretEnv: X,", "sources.forge.auth.secretEnv and auth.secretFile: not allowed with credentials"},
		{"name: two", "name: one", `sources.forge.credentials[1].name: "one" is used twice`},
		{"keys: \"public_.*\"", "keys: '('", "sources.forge.credentials[0].keys: "},
		{"secretFile: /run/secrets/two", "keys: a", "sources.forge.credentials[1]: set exactly one of `secretEnv`, `secretFile` and `token`"},
		{"block: endpoint", "block: all", `sources.forge.rules[0].block: "all" is not one of [call endpoint resource credential source]`},
		{"class: quota", "class: transient", "sources.forge.rules[0].block: not allowed for class transient"},
		{"wait: 60s", "wait: 60", `"60" is not a duration`},
		{"wait: 60s", "wait: 30h", "sources.forge.rules[0].wait: 30h0m0s must be from 0 to 24h0m0s"},
		{"User-Agent: \"me/1 (a@example.org)\"", "Host: x", "sources.forge.headers.Host: this header is reserved"},
		{"Accept: application/json", "Authorization: x", "sources.forge.facets.issues.documents.list.headers.Authorization: this header contains the credential"},
		{"link: true, maxPages: 50", "maxPages: 50", "sources.forge.facets.issues.documents.list.paging: set either `link: true`"},
		{"maxPages: 50", "maxPages: 5000", "sources.forge.facets.issues.documents.list.paging.maxPages: 5000 must be"},
		{"maxPages: 50", "next: 50", "paging.next: unknown setting"},
		{"owner: \"{key}\",", "owner: \"{kye}\",", "sources.forge.facets.project.documents.items.graphql.variables: uses {kye}"},
		{"variable: after", "variable: first", "sources.forge.facets.project.documents.items.paging.variable: first contains"},
		{"point: 5", "point: -5", "sources.forge.facets.project.documents.items.cost.point: -5 must not"},
		{"point: 5", "requests: 5", "sources.forge.facets.project.documents.items.cost.requests: no policy of the quota counts that unit"},
		{"limit: 60,", "limit: 60, lease: 20s,", "sources.forge.quota.policies[0].lease: only a policy with window: in-flight"},
		{"limit: 60,", "limit: 60, match: {methods: [get]},", `sources.forge.quota.policies[0].match.methods: "get" is not supported`},
		{"User-Agent:", `"User\nAgent":`, `sources.forge.headers.User Agent: "User\nAgent" is not a valid header name`},
		{"resource: core", `resource: "co re"`, `sources.forge.facets.issues.documents.list.resource: "co re" must be`},
		{"      project:", "      nothing: ~\n      project:", "sources.forge.facets.nothing.documents: a facet needs at least one document"},
		{"method: POST", "method: PUT", `sources.forge.facets.search.documents.found.method: "PUT" must be GET or POST`},
		{"method: POST,", "", "sources.forge.facets.search.documents.found.body: a GET request has no body"},
		{`'{"q": "{key}"}'`, `'{"q": {key}}'`, "sources.forge.facets.search.documents.found.body: not valid JSON"},
	} {
		text := strings.Replace(asked, c.from, c.to, 1)
		if text == asked {
			t.Fatalf("configuration: got\n%s\nwant a text that contains %q", asked, c.from)
		}
		_, err := loadConfig(write(t, text), nil, OptionalSources)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "^") {
			t.Errorf("%s: got %v, want an error that contains %q and ^", c.to, err, c.want)
		}
	}
}
