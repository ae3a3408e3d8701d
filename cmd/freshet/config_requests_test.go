package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// requestsFile is a configuration file that uses every setting for upstream requests, for example
// headers, bodies and paging.
var requestsFile = filepath.Join(root, "app", "testdata", "requests.yaml")

func TestConfigPrint_RoundTripsRequestSettings(t *testing.T) {
	config := load(t, requestsFile)
	code, printed, stderr := command(t, nil, "config", "print", "--config", requestsFile)
	if code != 0 {
		t.Fatalf("exit code: got %d, want 0: %s", code, stderr)
	}
	again := load(t, write(t, printed))
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
	code, stdout, stderr := command(t, nil, "config", "check", "--config", requestsFile)
	const want = `  facet   issues: list (1 to 50 pages, one call each); fresh for 1h
  facet   project: items (a GraphQL query, 1 to 10 pages, one call each); fresh for 1h
  facet   search: found (a POST); fresh for 1h
  credential one: for keys public_.*, seen by every reader
  credential two: for all keys, seen by staff
  note    FORGE_ONE is not set in this environment; workers do not start without it
`
	if code != 0 || !strings.Contains(stdout, want) {
		t.Errorf("got exit %d\n%s%s\nwant %s", code, stdout, stderr, want)
	}
}
