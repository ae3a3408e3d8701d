package source

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestRule_MatchesMissing(t *testing.T) {
	s := testSource(t, "http://upstream.example", func(c *Config) {
		c.Rules = []Rule{
			{Status: 200, Header: &Match{Name: "x-version", Missing: true}, Class: Maintenance},
			{Status: 200, Body: &Match{Name: "page.items", Missing: true}, Class: NotFound},
			{Status: 400, Header: &Match{Name: "x-version"}, Body: &Match{Name: "error", Missing: true}, Class: NotReady},
		}
	})
	versioned, bare := header("X-Version", ""), http.Header{}
	for i, c := range []struct {
		status int
		header http.Header
		body   string
		want   Class
	}{
		{200, bare, `{"page":{"items":[]}}`, Maintenance},
		{200, versioned, `{"page":{"items":[]}}`, OK},
		{200, versioned, `{"page":{"items":null}}`, OK}, // a member with the value null is not missing
		{200, versioned, `{"page":{}}`, NotFound},
		{200, versioned, ` {"items":[]} `, NotFound},
		{200, versioned, `[]`, NotFound},
		{200, versioned, `null`, NotFound},
		// The condition "member missing" never matches a body that is not JSON, so the class is OK.
		{200, versioned, ``, OK},
		{200, versioned, `<html>`, OK},
		{200, versioned, `{"page":`, OK},
		{200, versioned, `{"page":{}} {}`, OK},
		{200, versioned, strings.Repeat("[", 1<<20), OK},
		{200, versioned, strings.Repeat(`{"a":`, 1<<20), OK},
		{400, versioned, `{}`, NotReady},
		{400, versioned, `{"error":1}`, Permanent},
		{400, bare, `{}`, Permanent},
		{304, bare, ``, NotModified},
	} {
		if got := s.rules.classify(c.status, c.header, []byte(c.body)).class; got != c.want {
			t.Errorf("case %d: %d %v %.40s: got class %s, want %s", i, c.status, c.header, c.body, got, c.want)
		}
	}
	if o := read(t, s, response{status: 200, header: versioned, body: []byte("<html>")}); o.Class != BadContent {
		t.Errorf("error page: got class %s", o.Class)
	}
	if o := read(t, s, response{status: 200, header: versioned, body: []byte(`{"page":{}}`)}); o.Class != NotFound {
		t.Errorf("JSON check disturbed the extraction: got %s, error %v", o.Class, o.Err)
	}
	if o := read(t, s, response{status: 200, header: versioned, body: []byte(`{"page":{"items":[1]}}`)}); o.Class != OK || string(o.Content.Bytes) != `{"doc":{"page":{"items":[1]}}}` {
		t.Errorf("got %+v", o)
	}
}

func TestRule_BlockAndWait(t *testing.T) {
	s := testSource(t, "http://upstream.example", func(c *Config) {
		c.Rules = []Rule{
			{Status: 200, Text: "LIMITED_NUMBER_OF_.*_ERROR", Class: Quota, Block: BlockEndpoint, Wait: time.Minute},
			{Status: 403, Text: "(?i)secondary rate limit", Class: Quota, Wait: time.Minute},
			{Status: 403, Header: &Match{Name: "X-Scope"}, Class: AuthRefused, Block: BlockCall},
		}
	})
	for i, c := range []struct {
		response  response
		want      Class
		block     string
		wait, ask time.Duration
	}{
		{response{status: 200, body: []byte("<r><code>LIMITED_NUMBER_OF_SERVICE_REQUESTS_EXCEEDS_ERROR</code></r>")}, Quota, "endpoint", time.Minute, 0},
		{response{status: 200, header: compressed, body: gzipped(t, "<r>LIMITED_NUMBER_OF_X_ERROR")}, Quota, "endpoint", time.Minute, 0},
		{response{status: 200, body: []byte(`"` + strings.Repeat(" ", 64<<10) + `LIMITED_NUMBER_OF_X_ERROR"`)}, OK, "", 0, 0},
		{response{status: 200, body: []byte(`"NUMBER_OF_X_ERROR"`)}, OK, "", 0, 0},
		{response{status: 403, header: header("Retry-After", "5"), body: []byte("a Secondary Rate Limit")}, Quota, "source", time.Minute, 5 * time.Second},
		{response{status: 403, header: header("X-Scope", "")}, AuthRefused, "call", 0, 0},
		{response{status: 429, err: errTimeout}, Quota, "source", 0, 0},
		{response{status: 401}, AuthRefused, "credential", 0, 0},
		{response{status: 403}, Permanent, "", 0, 0},
		{response{status: 503}, Transient, "", 0, 0},
	} {
		permit := &testPermit{}
		c.response.permit = permit
		o := read(t, s, c.response)
		if o.Class != c.want || o.Block != c.block || o.Wait != c.wait || o.RetryAfter != c.ask || o.Permit != Permit(permit) {
			t.Errorf("case %d: got %+v", i, o)
		}
	}
}

func TestNew_RejectsInvalidRule(t *testing.T) {
	config := testSource(t, "http://upstream.example", nil).config
	for want, r := range map[string]Rule{
		"rules[0].text: ":                 {Text: "(", Class: Quota},
		`block: "all" is`:                 {Class: Quota, Block: "all"},
		"not allowed for class transient": {Class: Transient, Block: BlockCall},
		"wait: -1s must":                  {Class: Quota, Wait: -time.Second},
		"wait: 48h0m0s":                   {Class: Quota, Wait: 48 * time.Hour},
		"not allowed for class permanent": {Class: Permanent, Wait: time.Second},
	} {
		config.Rules = []Rule{r}
		if _, err := New("test", config, nil, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got error %v", r, err)
		}
	}
}

// New must reject a gjson path with a modifier such as @valid: some modifiers recurse without a
// bound, so a hostile body could exhaust the stack.
func TestNew_RejectsPathModifier(t *testing.T) {
	facet := map[string]Facet{"f": {KeyPattern: ".*", Documents: map[string]Document{"d": {Path: "/d"}}, FreshFor: 1, NotFoundFor: 1, FailedFor: 1}}
	config := DefaultConfig()
	config.BaseURL, config.Facets = "http://example.org", facet
	config.Rules = []Rule{{Body: &Match{Name: "@valid.a"}, Class: Quota}}
	if _, err := New("s", config, nil, 1); err == nil || !strings.Contains(err.Error(), "rules[0].body.name") {
		t.Errorf("rule: got error %v", err)
	}
	config.Rules = nil
	for _, p := range []Paging{{Cursor: "a|@pretty", Param: "c"}, {Link: true, Items: "@this"}} {
		config.Facets["f"].Documents["d"] = Document{Path: "/d", Paging: &p}
		if _, err := New("s", config, nil, 1); err == nil || !strings.Contains(err.Error(), "paging.") {
			t.Errorf("%+v: got error %v", p, err)
		}
	}
}
