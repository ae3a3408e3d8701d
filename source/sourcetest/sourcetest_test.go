package sourcetest

import (
	"net/http"
	"testing"

	"github.com/freshet/freshet/source"
)

// TestSuite_POSTSource covers settings that no shipped source uses: a POST body, a credential
// in the query, and a prefix.
func TestSuite_POSTSource(t *testing.T) {
	suite := func(auth source.Auth, d source.Document) Suite {
		config := source.DefaultConfig()
		config.BaseURL = "https://upstream.example/api"
		config.Auth = auth
		config.Rules = []source.Rule{{Status: 200, Body: &source.Match{Name: "errors.0.type", Equals: "RATE_LIMITED"}, Class: source.Quota}}
		f := source.DefaultFacet()
		f.KeyPattern = "(?s).*"
		f.Documents = map[string]source.Document{"d": d}
		f.Ignore = []string{"d.cost"}
		config.Facets = map[string]source.Facet{"f": f}
		return Suite{
			Config: config, Credential: "s3cret-key", Facet: "f", Keys: []string{"a1", "b-2"},
			Good:    map[string]string{"d": `{"data":{"a":1},"cost":1}`},
			Same:    map[string]string{"d": `{"cost":2,"data":{"a":1}}`},
			Changed: map[string]string{"d": `{"data":{"a":2},"cost":1}`},
			Responses: []Response{
				{Name: "limited", Status: http.StatusOK, Body: `{"errors":[{"type":"RATE_LIMITED"}]}`, Want: source.Quota},
				{Name: "refused", Status: http.StatusUnauthorized, Body: `{}`, Want: source.AuthRefused},
			},
		}
	}
	header, query := source.Auth{Header: "Authorization", Prefix: "Bearer "}, source.Auth{Query: "serviceKey"}
	for name, s := range map[string]Suite{
		"GraphQL": suite(header, source.Document{Path: "/graphql", GraphQL: &source.GraphQL{Query: "{a}", Variables: map[string]any{"id": "{key}", "n": 1}}}),
		"JSON":    suite(query, source.Document{Path: "/search?v=1", Method: http.MethodPost, Body: `{"ids": ["{key}"], "all": false}`}),
		"a form":  suite(query, source.Document{Path: "/search", Method: http.MethodPost, ContentType: "application/x-www-form-urlencoded", Body: "id={key}&all=0"}),
	} {
		t.Run(name, func(t *testing.T) { Run(t, s) })
	}
}
