package main

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
)

// asked is the configuration of a source that uses every setting of its upstream requests.
const asked = `
sources:
  forge:
    baseURL: https://forge.example/api
    quota: {policies: [{name: second, limit: 60, window: 1s}, {name: points, limit: 600, window: 1m, unit: point}]}
    headers: {User-Agent: "me/1 (a@example.org)"}
    auth: {header: Authorization, prefix: "Bearer "}
    credentials:
      - {name: one, secretEnv: FORGE_ONE, keys: "public_.*"}
      - {name: two, secretFile: /run/secrets/two, visibility: staff}
    rules:
      - {status: 200, text: "LIMITED_NUMBER", class: quota, block: endpoint, wait: 60s}
    facets:
      issues:
        documents:
          list:
            path: "/repos/{key}/issues"
            headers: {Accept: application/json}
            paging: {link: true, maxPages: 50}
            resource: core
      project:
        documents:
          items:
            path: /graphql
            graphql:
              query: |
                query($owner: String!, $after: String) { items(owner: $owner, after: $after) { nodes { id } } }
              variables: {owner: "{key}", first: 100, of: {archived: false, labels: ["a {key}", "{key}"], least: 1.5, none: null}}
            paging: {cursor: data.items.pageInfo.endCursor, variable: after, items: data.items.nodes}
            cost: {point: 5}
      search:
        documents:
          found: {path: /search, method: POST, body: '{"q": "{key}"}', contentType: application/json}
`

func TestConfigPrint_RoundTripsRequestSettings(t *testing.T) {
	config, err := loadConfig(write(t, asked), nil)
	if err != nil {
		t.Fatal(err)
	}
	code, printed, stderr := command(t, nil, "config", "print", "--config", write(t, asked))
	if code != 0 {
		t.Fatalf("exit code: got %d, want 0: %s", code, stderr)
	}
	again, err := loadConfig(write(t, printed), nil)
	if err != nil {
		t.Fatalf("read the printed configuration: %v\n%s", err, printed)
	}
	code, twice, stderr := command(t, nil, "config", "print", "--config", write(t, printed))
	if code != 0 || printed != twice {
		t.Errorf("exit code: got %d, want 0: %s\nprinted again: got\n%s\nwant\n%s", code, stderr, twice, printed)
	}
	before, after := config.Sources["forge"].Config, again.Sources["forge"].Config
	for name, f := range before.Facets {
		if !reflect.DeepEqual(f.Documents, after.Facets[name].Documents) {
			t.Errorf("documents of %s after a round trip: got %+v, want %+v:\n%s",
				name, after.Facets[name].Documents, f.Documents, printed)
		}
	}
	if !reflect.DeepEqual(before.Credentials, after.Credentials) || before.Auth != after.Auth || !maps.Equal(before.Headers, after.Headers) {
		t.Errorf("after a round trip:\ngot  credentials %+v, auth %+v, headers %v\nwant credentials %+v, auth %+v, headers %v",
			after.Credentials, after.Auth, after.Headers, before.Credentials, before.Auth, before.Headers)
	}
	d := after.Facets["project"].Documents["items"]
	if d.GraphQL == nil || fmt.Sprint(d.GraphQL.Variables["of"]) != "map[archived:false labels:[a {key} {key}] least:1.5 none:<nil>]" || d.Paging.Variable != "after" || d.Cost["point"] != 5 {
		t.Errorf("document items: got %+v, paging %+v, cost %v; want %s, paging by after, 5 points", d.GraphQL, d.Paging, d.Cost,
			"the variable of with map[archived:false labels:[a {key} {key}] least:1.5 none:<nil>]")
	}
	if r := after.Rules[0]; r.Block != "endpoint" || r.Wait.Seconds() != 60 || r.Text != "LIMITED_NUMBER" {
		t.Errorf("first rule: got %+v, want block endpoint, wait 1m, text LIMITED_NUMBER", r)
	}
}

func TestConfigCheck_PrintsRequestsAndCredentials(t *testing.T) {
	code, stdout, stderr := command(t, nil, "config", "check", "--config", write(t, asked))
	const want = `  facet   issues: list (1 to 50 pages, one call each); fresh for 1h0m0s
  facet   project: items (a GraphQL query, 1 to 10 pages, one call each); fresh for 1h0m0s
  facet   search: found (a POST); fresh for 1h0m0s
  credential one: for keys public_.*, seen by every reader
  credential two: for all keys, seen by staff
  note    FORGE_ONE is not set in this environment; workers do not start without it
`
	if code != 0 || !strings.Contains(stdout, want) {
		t.Errorf("got exit %d\n%s%s\nwant %s", code, stdout, stderr, want)
	}
}

func TestConfig_ErrorShowsRequestSetting(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"prefix: \"Bearer \"", "prefixes: x", `unknown field "prefixes"`},
		{"header: Authorization, prefix: \"Bearer \"", "query: key, prefix: x", "sources.forge.auth.prefix: needs auth.header"},
		{"header: Authorization, prefix: \"Bearer \"", "prefix: ''", "sources.forge.auth.header: is missing"},
		{"header: Authorization,", "header: Authorization, secretEnv: X,", "sources.forge.auth.secretEnv and auth.secretFile: not allowed with credentials"},
		{"name: two", "name: one", `sources.forge.credentials[1].name: "one" is used twice`},
		{"keys: \"public_.*\"", "keys: '('", "sources.forge.credentials[0].keys: "},
		{"secretFile: /run/secrets/two", "keys: a", "sources.forge.credentials[1]: write either secretEnv or secretFile"},
		{"block: endpoint", "block: all", `sources.forge.rules[0].block: "all" is not one of [call endpoint resource credential source]`},
		{"class: quota", "class: transient", "sources.forge.rules[0].block: not allowed for class transient"},
		{"wait: 60s", "wait: 60", "60 is not a duration"},
		{"wait: 60s", "wait: 30h", "sources.forge.rules[0].wait: 30h0m0s must be from 0 to 24h0m0s"},
		{"User-Agent: \"me/1 (a@example.org)\"", "Host: x", "sources.forge.headers.Host: this header is reserved"},
		{"Accept: application/json", "Authorization: x", "sources.forge.facets.issues.documents.list.headers.Authorization: this header contains the credential"},
		{"link: true, maxPages: 50", "maxPages: 50", "sources.forge.facets.issues.documents.list.paging: write either link: true"},
		{"maxPages: 50", "maxPages: 5000", "sources.forge.facets.issues.documents.list.paging.maxPages: 5000 must be"},
		{"maxPages: 50", "next: 50", `unknown field "next"`},
		{"owner: \"{key}\",", "owner: \"{kye}\",", "sources.forge.facets.project.documents.items.graphql.variables: uses {kye}"},
		{"variable: after", "variable: first", "sources.forge.facets.project.documents.items.paging.variable: first contains"},
		{"point: 5", "point: -5", "sources.forge.facets.project.documents.items.cost.point: -5 must not"},
		{"point: 5", "requests: 5", "sources.forge.facets.project.documents.items.cost.requests: no policy of the quota counts that unit"},
		{"limit: 60,", "limit: 60, lease: 20s,", "sources.forge.quota.policies[0].lease: only a policy with window: in-flight"},
		{"limit: 60,", "limit: 60, match: {methods: [get]},", `sources.forge.quota.policies[0].match.methods: "get" is not supported`},
		{"User-Agent:", `"User\nAgent":`, `sources.forge.headers.User Agent: "User\nAgent" is not a valid header name`},
		{"resource: core", `resource: "co re"`, `sources.forge.facets.issues.documents.list.resource: "co re" must be`},
		{"      project:", "      nothing: ~\n      project:", "sources.forge.facets.nothing.keyPattern: \"\" matches no key;"},
		{"method: POST", "method: PUT", `sources.forge.facets.search.documents.found.method: "PUT" must be GET or POST`},
		{"method: POST,", "", "sources.forge.facets.search.documents.found.body: a GET has no body"},
		{`'{"q": "{key}"}'`, `'{"q": {key}}'`, "sources.forge.facets.search.documents.found.body: not valid JSON"},
	} {
		text := strings.Replace(asked, c.from, c.to, 1)
		if text == asked {
			t.Fatalf("configuration: got\n%s\nwant a text that contains %q", asked, c.from)
		}
		_, err := loadConfig(write(t, text), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "^") {
			t.Errorf("%s: got %v, want an error that contains %q and ^", c.to, err, c.want)
		}
	}
}
