package guess

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

func TestParse_FindsTheKey(t *testing.T) {
	for raw, want := range map[string]struct{ template, key, pattern, facet, source string }{
		"https://api.shop.example/products/42":                                               {"/products/{key}", "42", "[0-9]{1,20}", "product", "shop"},
		"https://api.example.co.uk/v1/categories/shoes":                                      {"/v1/categories/{key}", "shoes", "[0-9A-Za-z_.-]{1,80}", "category", "example"},
		"https://api.example.com/v2/users/7/orders/42":                                       {"/v2/users/{user}/orders/{order}", "7/42", "(?P<user>[0-9]{1,20})/(?P<order>[0-9]{1,20})", "order", "example"},
		"https://api.example.com/users/42/profile":                                           {"/users/{key}/profile", "42", "[0-9]{1,20}", "profile", "example"},
		"https://api.github.com/repos/golang/go":                                             {"/repos/{owner}/{repo}", "golang/go", "(?P<owner>[0-9A-Za-z_.-]{1,80})/(?P<repo>[0-9A-Za-z_.-]{1,80})", "repo", "github"},
		"https://api.github.com/users/octocat":                                               {"/users/{key}", "octocat", "[0-9A-Za-z_.-]{1,80}", "user", "github"},
		"https://x.example/things/0b8e3d4c-9a77-4f53-8c1e-1f0f4a3b2c1d":                      {"/things/{key}", "0b8e3d4c-9a77-4f53-8c1e-1f0f4a3b2c1d", "[0-9A-Fa-f-]{36}", "thing", "x"},
		"https://x.example/blob/0123456789abcdef01234567":                                    {"/blob/{key}", "0123456789abcdef01234567", "[0-9a-f]{24}", "blob", "x"},
		"https://example.myshopify.com/admin/api/2026-01/products/42.json":                   {"/admin/api/2026-01/products/{key}.json", "42", "[0-9]{1,20}", "product", "myshopify"},
		"https://open.api.nexon.com/maplestory/v1/character/basic?ocid=0a1b2c3d4e5f60718293": {"/maplestory/v1/character/basic?ocid={key}", "0a1b2c3d4e5f60718293", "[0-9a-f]{20}", "basic", "nexon"},
		"https://api.example.com/weather?city=Seoul&units=metric":                            {"/weather?city={key}&units=metric", "Seoul", "[0-9A-Za-z_.-]{1,80}", "weather", "example"},
		"https://api.example.com/weather?lat=52.52&lon=13.41":                                {"/weather?lat={lat}&lon={lon}", "52.52/13.41", `(?P<lat>-?[0-9]{1,10}\.[0-9]{1,12})/(?P<lon>-?[0-9]{1,10}\.[0-9]{1,12})`, "weather", "example"},
		"https://api.example.com/users/42?page=2&limit=10":                                   {"/users/{key}?page=2&limit=10", "42", "[0-9]{1,20}", "user", "example"},
		"https://api.example.com/search?q=blue%20ball&page=1":                                {"/search?q={key}&page=1", "blue ball", "[0-9A-Za-z_. -]{1,80}", "search", "example"},
		"https://api.example.com/people/J%C3%BCrgen":                                         {"/people/{key}", "Jürgen", `[0-9A-Za-z_.\pL\pM\pN-]{1,80}`, "person", "example"},
		"https://api.example.com/files/a.b@c":                                                {"/files/{key}", "a.b@c", "[0-9A-Za-z_.@-]{1,80}", "file", "example"},
		"https://api.example.com/products":                                                   {"/products", "", "", "products", "example"},
		"https://api.example.com/users/me":                                                   {"/users/me", "", "", "me", "example"},
		"https://api.example.com/api/v2":                                                     {"/api/v2", "", "", "item", "example"},
		"https://api.example.com":                                                            {"/", "", "", "item", "example"},
		"https://api.example.com/":                                                           {"/", "", "", "item", "example"},
		"https://api.example.com/products/42/":                                               {"/products/{key}/", "42", "[0-9]{1,20}", "product", "example"},
		"http://localhost:8080/products/42":                                                  {"/products/{key}", "42", "[0-9]{1,20}", "product", "local"},
		"http://[::1]:8080/products/42":                                                      {"/products/{key}", "42", "[0-9]{1,20}", "product", "local"},
		"http://10.0.0.1/products/42":                                                        {"/products/{key}", "42", "[0-9]{1,20}", "product", "api"},
		"https://API.Example.COM/Products/42":                                                {"/Products/{key}", "42", "[0-9]{1,20}", "product", "example"},
		"https://api.example.com/orderItems/42":                                              {"/orderItems/{key}", "42", "[0-9]{1,20}", "order-item", "example"},
		"https://api.example.com/days/2026-11-23":                                            {"/days/{key}", "2026-11-23", "[0-9A-Za-z_.-]{1,80}", "day", "example"},
		"https://api.github.com/repos/golang/go/issues/1":                                    {"/repos/{owner}/{repo}/issues/{issue}", "golang/go/1", "(?P<owner>[0-9A-Za-z_.-]{1,80})/(?P<repo>[0-9A-Za-z_.-]{1,80})/(?P<issue>[0-9]{1,20})", "issue", "github"},
		"https://api.example.com/3/movies/550?language=en":                                   {"/3/movies/{key}?language=en", "550", "[0-9]{1,20}", "movie", "example"},
		"https://api.example.com/42/profile":                                                 {"/{key}/profile", "42", "[0-9]{1,20}", "profile", "example"},
		"https://api.example.com/users/7/orders?id=42&page=1":                                {"/users/{user}/orders?id={id}&page=1", "7/42", "(?P<user>[0-9]{1,20})/(?P<id>[0-9]{1,20})", "orders", "example"},
		"https://api.example.com/matches/1234/5678.json":                                     {"/matches/{match}/{id}.json", "1234/5678", "(?P<match>[0-9]{1,20})/(?P<id>[0-9]{1,20})", "match", "example"},
		"https://api.example.com/users/1234/users/5678":                                      {"/users/{user}/users/{user_2}", "1234/5678", "(?P<user>[0-9]{1,20})/(?P<user_2>[0-9]{1,20})", "user", "example"},
		"https://api.example.com/order-items/7/keys/8":                                       {"/order-items/{order_item}/keys/{id}", "7/8", "(?P<order_item>[0-9]{1,20})/(?P<id>[0-9]{1,20})", "key", "example"},
		"https://api.example.com/files/a%2Fb/versions/7":                                     {"/files/{file}/versions/{version}", "a/b/7", "(?P<file>[0-9A-Za-z_./-]{1,80})/(?P<version>[0-9]{1,20})", "version", "example"},
		"https://api.example.com/files/a%5E/versions/7":                                      {"/files/{file}/versions/{version}", "a^/7", "(?P<file>[^/]{1,200})/(?P<version>[0-9]{1,20})", "version", "example"},
		"https://api.example.com/a%2Fb/products/x%2Fy":                                       {"/a%2Fb/products/{key}", "x/y", "[0-9A-Za-z_./-]{1,80}", "product", "example"},
	} {
		t.Run(raw, func(t *testing.T) {
			a, err := parse(1, raw)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct{ what, got, want string }{
				{"template", a.template, want.template}, {"key", a.key, want.key}, {"facet", a.facet, want.facet}, {"source", sourceName(a.host), want.source},
			} {
				if c.got != c.want {
					t.Errorf("%s: got %q, want %q", c.what, c.got, c.want)
				}
			}
			if a.pattern != want.pattern {
				t.Errorf("key pattern: got %q, want %q", a.pattern, want.pattern)
			}
		})
	}
}

func TestParse_TakesTheCredentialOut(t *testing.T) {
	for raw, want := range map[string]struct {
		auth   source.Auth
		secret string
	}{
		"https://api.shop.example/products/42?api_key=abc":                            {source.Auth{Query: "api_key", SecretEnv: "SHOP_KEY"}, "abc"},
		"https://api.shop.example/products/42?access_token=a%2Bb":                     {source.Auth{Query: "access_token", SecretEnv: "SHOP_KEY"}, "a+b"},
		"https://api.shop.example/products/42?key=AIzaSyA1234567890abcdefghij":        {source.Auth{Query: "key", SecretEnv: "SHOP_KEY"}, "AIzaSyA1234567890abcdefghij"},
		"https://api.shop.example/products/42?x=sk_live_0123456789":                   {source.Auth{Query: "x", SecretEnv: "SHOP_KEY"}, "sk_live_0123456789"},
		"https://api.shop.example/products/42?appid=0123456789abcdef0123456789abcdef": {source.Auth{Query: "appid", SecretEnv: "SHOP_KEY"}, "0123456789abcdef0123456789abcdef"},
		"https://me:hunter22@api.shop.example/products/42":                            {source.Auth{Header: "Authorization", Prefix: "Basic ", SecretEnv: "SHOP_KEY"}, "bWU6aHVudGVyMjI="},
		"https://sk_live_0123456789@api.shop.example/products/42":                     {source.Auth{Header: "Authorization", Prefix: "Basic ", SecretEnv: "SHOP_KEY"}, "c2tfbGl2ZV8wMTIzNDU2Nzg5Og=="},
		"https://api.shop.example/products/42?page_token=abcdef0123456789":            {}, // no credential: the token is a page cursor
		"https://api.shop.example/products?key=42&author=7":                           {}, // no credential: the key is an id
	} {
		a, err := parse(1, raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if a.auth != want.auth {
			t.Errorf("%s: got auth %+v, want %+v", raw, a.auth, want.auth)
		}
		if a.secret != want.secret {
			t.Errorf("%s: got credential %q, want %q", raw, a.secret, want.secret)
		}
		if text := a.base + a.literal + a.template + a.key + a.facet; want.secret != "" && (strings.Contains(text, want.secret) || strings.Contains(text, "hunter22") || strings.Contains(text, "sk_live")) {
			t.Errorf("%s: got %s, want no credential in it", raw, text)
		}
	}
}

func TestParse_RejectsWithoutRepeatingTheURL(t *testing.T) {
	for raw, want := range map[string]string{
		"":                                     "scheme",
		"api.example.com/hunter22":             "https://",
		"ftp://api.example.com/hunter22":       "scheme",
		"https:///hunter22":                    "host",
		"https://api.example.com/%zz/hunter22": "must be a URL",
		"https://api.example.com/products/{hunter22}":                                                              "placeholder",
		"https://api.example.com/products/:hunter22":                                                               "placeholder",
		"https://api.example.com/products?id={hunter22}":                                                           "placeholder",
		"https://api.example.com/../hunter22":                                                                      "segment 1",
		"https://api.example.com/bot123:hunter22/me":                                                               "looks like a credential",
		"https://api.example.com/sk_live_hunter22":                                                                 "looks like a credential",
		"https://api.example.com/x?api_key=hunter22&token=hunter22":                                                "more than one credential",
		"https://me:hunter22@api.example.com/x?api_key=hunter22":                                                   "more than one credential",
		"https://api.example.com/x?hunter22%00=1":                                                                  "invalid parameter",
		"https://api.example.com/x?=hunter22":                                                                      "invalid parameter",
		"http://api.example.com/x?api_key=hunter22":                                                                "unencrypted",
		"https://api.example.com/" + strings.Repeat("hunter22/", 1000):                                             "4 KiB",
		"https://api.example.com:hunter22/":                                                                        "must be a URL",
		"https://api.example.com/files/a%2Fhunter22/files/b%2Fc":                                                   "slashes",
		"https://api.example.com/files/hunter22" + strings.Repeat("a", 150) + "/files/" + strings.Repeat("b", 150): "shorter ids",
	} {
		_, err := parse(1, raw)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got error %v, want %q in it", raw, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter22") {
			t.Errorf("%.60s: got error %v, want no part of the URL in it", raw, err)
		}
	}
}

// Every parsed URL must give a source that package source accepts, with names that package schemas
// accepts and a key that fits its pattern.
func FuzzParse(f *testing.F) {
	for _, raw := range []string{
		"https://api.example.com/products/42?api_key=abc&q=%F0%9F%98%80", "http://[::1]:80/a//b/../c", "https://u:p@xn--e1afmkfd.example/%7Bx%7D/1.json#f",
		"https://a/b?c&d=&&e=f", "https://localhost/ÿ/\u202e7", "https://1.2.3.4/repos/a/b/c", "https://---.example/s/s",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		a, err := parse(1, raw)
		if err != nil {
			return
		}
		if err := schemas.CheckName("source", sourceName(a.host)); err != nil {
			t.Errorf("source: %v", err)
		}
		if err := schemas.CheckName("facet", a.facet); err != nil {
			t.Errorf("facet: %v", err)
		}
		pattern := "all"
		if a.key != "" {
			pattern = a.pattern
			if err := schemas.CheckKey(a.key); err != nil {
				t.Errorf("key: %v", err)
			}
			if !regexp.MustCompile("^(?:" + pattern + ")$").MatchString(a.key) {
				t.Errorf("pattern: got %q, want one that matches %q", pattern, a.key)
			}
		}
		facet := source.DefaultFacet()
		facet.KeyPattern = pattern
		facet.Documents = map[string]source.Document{a.facet: {Path: a.template}, "literal": {Path: a.literal}}
		s, err := source.New("x", source.Config{BaseURL: a.base, Auth: a.auth, Timeout: time.Second, MaxBody: 1, Facets: map[string]source.Facet{"x": facet}}, nil, 1)
		if err != nil {
			t.Fatalf("%q: got source error %v, want none", raw, err)
		}
		s.Close()
	})
}
