package app

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/presets"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// exampleKeys are valid keys of the presets' upstreams, by preset and facet.
var exampleKeys = map[string]map[string]string{
	"nexon":             {"character": "가나&b", "id": "가나&b", "character-by-ocid": "93f1c1c2d1a5e3b8a7f6e5d4c3b2a190efe8d04e6d233bd35cf2fabdeb93fb0d"},
	"nexon-development": {"character": "가나&b", "id": "가나&b", "character-by-ocid": "93f1c1c2d1a5e3b8a7f6e5d4c3b2a190efe8d04e6d233bd35cf2fabdeb93fb0d"},
	"github-rest":       {"user": "octocat", "repos": "octocat", "issues": "golang/go", "commits": "golang/go", "events": "octocat", "statistics": "octocat"},
	"github-graphql":    {"contributions": "octocat"},
	"riot":              {"account": "가 나/다#KR1", "summoner": "가 나/다#KR1", "league": "가 나/다#KR1", "summoner-by-puuid": strings.Repeat("aZ0-_b", 13), "league-by-puuid": strings.Repeat("aZ0-_b", 13)},
	"discord":           {"channel": "1234567890123456789", "messages": "1234567890123456789"},
	"reddit":            {"subreddit": "golang"},
	"shopify-rest":      {"product": "632910392"},
	"shopify-graphql":   {"collection": "841564295"},
	"stripe":            {"customer": "cus_NffrFeUfNV2Hib", "subscription": "sub_1MowQVLkdIwHu7ix", "invoice": "in_1MtHbELkdIwHu7ix", "charge": "ch_3MmlLrLkdIwHu7ix", "product": "prod_NWjs8kKbJWmuuc"},
	"openai":            {"summary": "Seoul"},
	"jira":              {"issue": "PROJ-123", "open": "PROJ", "done": "PROJ"},
	"hubspot":           {"contact": "51"},
	"data-go-kr":        {"item": "55"},
	"ietf":              {"resource": "a-resource"},
	"court":             {"progress": "2026-1234567", "general": "2026-1234567", "layout": "ssgo003/SSGO003F10.xml"},
}

func TestPresets_AdmitAnExampleKey(t *testing.T) {
	for _, name := range presets.Names() {
		c := preset(t, name)
		s, err := source.New(name, c.Config, nil, 1)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for facet := range c.Facets {
			key := exampleKeys[baseOf(name)][facet]
			if err := schemas.CheckKey(key); err != nil {
				t.Errorf("%s/%s: got %v for the example key %q, want none", name, facet, err, key)
			}
			compiled, _ := s.Facet(facet)
			params := map[string]string{}
			for _, a := range compiled.Aliases() {
				params[a.Param] = "x" // this param has an alias, and a worker gets its value from there
			}
			if _, err := s.Plan(source.Request{Facet: facet, Key: key, Params: params}); err != nil {
				t.Errorf("%s/%s: got %v for the example key %q, want none", name, facet, err, key)
			}
		}
		s.Close()
	}
}

// Shopify's GraphQL API finds an object only by its global ID, which the preset builds from the
// key.
func TestPresetShopifyGraphQL_BuildsTheGlobalID(t *testing.T) {
	var asked string
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Variables struct{ ID string } }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		asked = body.Variables.ID
		_, _ = w.Write([]byte(`{"data":{"node":{"title":"Shirts"}}}`))
	}))
	defer upstream.Close()
	c := preset(t, "shopify-graphql")
	c.BaseURL = upstream.URL
	s, err := source.New("shopify", c.Config, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	plan, err := s.Plan(source.Request{Facet: "collection", Key: "841564295"})
	if err != nil {
		t.Fatal(err)
	}
	answers, err := s.Fetch(t.Context(), plan, unlimitedPermit{})
	if err != nil {
		t.Fatal(err)
	}
	if o := s.Read(answers, time.Now()); o.Class != source.OK {
		t.Errorf("class: got %s (%v), want ok", o.Class, o.Err)
	}
	if want := "gid://shopify/Collection/841564295"; asked != want {
		t.Errorf("id: got %q, want %q", asked, want)
	}
}
