package source

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/freshet/freshet/schemas"
)

const ownerAndRepo = "(?P<owner>[^/]+)/(?P<repo>[^/]+)"

// keySource returns a source with one facet "issues".
func keySource(t testing.TB, keyPattern, path string, params map[string]string) *Source {
	t.Helper()
	return testSource(t, "http://upstream.example/base", func(c *Config) {
		f := DefaultFacet()
		f.KeyPattern, f.Params = keyPattern, TextParams(params)
		f.Documents = map[string]Document{"issues": {Path: path}}
		c.Facets = map[string]Facet{"issues": f}
	})
}

func TestPlan_FillsNamedGroups(t *testing.T) {
	for name, c := range map[string]struct {
		pattern, path, key, want string
		defaults, params         map[string]string
	}{
		"two segments":             {pattern: ownerAndRepo, path: "/repos/{owner}/{repo}/issues", key: "golang/go", want: "/base/repos/golang/go/issues"},
		"a query value":            {pattern: "(?P<x>[0-9]+),(?P<y>[0-9]+)", path: "/cell?nx={x}&ny={y}", key: "55,127", want: "/base/cell?nx=55&ny=127"},
		"the whole key too":        {pattern: ownerAndRepo, path: "/r/{owner}?full={key}", key: "golang/go", want: "/base/r/golang?full=golang%2Fgo"},
		"escaped":                  {pattern: ownerAndRepo, path: "/r/{owner}/{repo}", key: "a?b/c%2Fd", want: "/base/r/a%3Fb/c%252Fd"},
		"a default with groups":    {pattern: ownerAndRepo, path: "/r/{slug}", key: "golang/go", defaults: map[string]string{"slug": "{owner}-{repo}"}, want: "/base/r/golang-go"},
		"a default":                {pattern: "(?P<repo>[^@]+)(?:@(?P<ref>.+))?", path: "/r/{repo}?ref={ref}", key: "go", defaults: map[string]string{"ref": "main"}, want: "/base/r/go?ref=main"},
		"a group over its default": {pattern: "(?P<repo>[^@]+)(?:@(?P<ref>.+))?", path: "/r/{repo}?ref={ref}", key: "go@v1", defaults: map[string]string{"ref": "main"}, want: "/base/r/go?ref=v1"},
		"a param over a default":   {pattern: "(?P<repo>[^@]+)(?:@(?P<ref>.+))?", path: "/r/{repo}?ref={ref}", key: "go", defaults: map[string]string{"ref": "main"}, params: map[string]string{"ref": "dev"}, want: "/base/r/go?ref=dev"},
		"the key over a param":     {pattern: ownerAndRepo, path: "/repos/{owner}/{repo}", key: "golang/go", params: map[string]string{"owner": "evil"}, want: "/base/repos/golang/go"},
	} {
		p, err := keySource(t, c.pattern, c.path, c.defaults).Plan(Request{Facet: "issues", Key: c.key, Params: c.params})
		if err != nil {
			t.Errorf("%s: got error %v, want none", name, err)
			continue
		}
		if got := p.requests[0].url.RequestURI(); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// A quota policy can have a scope such as {owner}, so the limiter needs the values of the key's groups.
func TestPlan_PassesGroupsToTheLimiter(t *testing.T) {
	p, err := keySource(t, ownerAndRepo, "/repos/{owner}/{repo}", map[string]string{"lang": "en"}).Plan(Request{Facet: "issues", Key: "golang/go"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"owner": "golang", "repo": "go", "lang": "en"} {
		if got := p.requests[0].call.Params[name]; got != want {
			t.Errorf("param %s: got %q, want %q", name, got, want)
		}
	}
}

// If a key can never have a plan, CheckKey must reject it. CheckKey runs when a reader requests the
// key, so the request is not rejected only later by the worker.
func TestCheckKey_RejectsKeysWithoutAPlan(t *testing.T) {
	for name, c := range map[string]struct{ pattern, path, key, mention string }{
		"no slash":           {ownerAndRepo, "/repos/{owner}/{repo}", "golang", "does not match the keyPattern"},
		"a third part":       {ownerAndRepo, "/repos/{owner}/{repo}", "golang/go/issues", "does not match the keyPattern"},
		"a dot part":         {ownerAndRepo, "/repos/{owner}/{repo}", "golang/..", "document issues: a value makes the path segment"},
		"an empty group":     {"(?P<owner>[^/]*)/(?P<repo>[^/]+)", "/repos/{owner}/{repo}", "/go", "leaves {owner} empty"},
		"an unmatched group": {"(?P<owner>[^/]+)(?:/(?P<repo>.+))?", "/repos/{owner}/{repo}", "golang", "leaves {repo} empty"},
		"dots of a literal":  {".+", "/v1/.{key}", ".", "path segment"},
		"a long path":        {"(?s).+", "/v1/{key}" + strings.Repeat("/{key}", 20), strings.Repeat("가", 80), "longer than 8 KiB"},
	} {
		s := keySource(t, c.pattern, c.path, nil)
		if err := s.CheckKey("issues", c.key); err == nil || !strings.Contains(err.Error(), c.mention) {
			t.Errorf("%s: got error %v, want one with %q", name, err, c.mention)
		}
	}
}

func TestCompileFacet_RejectsWrongGroups(t *testing.T) {
	for mention, c := range map[string]struct {
		pattern, path string
		params        map[string]string
	}{
		"must not have the name `key`": {pattern: "(?P<key>.+)", path: "/a/{key}"},
		"two groups have the name":     {pattern: "(?P<a>.)(?P<a>.)", path: "/a/{a}"},
		"uses {repo}":                  {pattern: "(?P<owner>.+)", path: "/repos/{owner}/{repo}"},
		"named groups":                 {pattern: "(?P<owner>.+)", path: "/repos/{owner}", params: map[string]string{"slug": "{name}"}},
		"must not use {owner}":         {pattern: "(?P<owner>.+)", path: "/repos/{owner}", params: map[string]string{"owner": "x{owner}"}},
		"is not a regular":             {pattern: "a)|(?:b", path: "/a/{key}"},
		"\"\" matches no key; rem":     {pattern: "", path: "/a/{key}"},
	} {
		f := DefaultFacet()
		f.KeyPattern, f.Params, f.Documents = c.pattern, TextParams(c.params), map[string]Document{"d": {Path: c.path}}
		if _, err := compileFacet(f, Auth{}); err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("pattern %q: got error %v, want one with %q", c.pattern, err, mention)
		}
	}
}

func TestMissingParams_ListsOpenParams(t *testing.T) {
	s := keySource(t, "(?P<owner>[^/]+)(?:/(?P<repo>.+))?", "/r/{owner}/{repo}?token={token}&lang={lang}", map[string]string{"repo": "", "token": "", "lang": "en"})
	for name, c := range map[string]struct {
		facet, key string
		params     map[string]string
		want       []string
	}{
		"all":                 {"issues", "golang", nil, []string{"repo", "token"}},
		"from the key":        {"issues", "golang/go", nil, []string{"token"}},
		"from the params":     {"issues", "golang/go", map[string]string{"token": "t"}, nil},
		"an empty param":      {"issues", "golang/go", map[string]string{"token": ""}, []string{"token"}},
		"an unknown facet":    {"user", "golang", nil, nil},
		"a key with no match": {"issues", "/", nil, nil},
	} {
		if got := s.MissingParams(c.facet, c.key, c.params); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// For every key, servers receive exactly the segments and parameters of the template. A key that
// CheckKey accepts has a plan.
func FuzzPlan_GroupsStayInTheirPlaceholders(f *testing.F) {
	for _, key := range []string{
		"golang/go", "a/b/c", "/", "a/", "/b", "../..", "./a", "a/..", "a%2Fb/c", "a?x=1/b&y=2", "a#/b", `a\b/c`, "%2e%2e/a", "가/나", "a /b", "a;b/c", "{repo}/{owner}",
	} {
		f.Add(key)
	}
	s := keySource(f, "(?s)(?P<owner>[^/]*)/(?P<repo>.*)", "/repos/{owner}/.{repo}/issues?of={owner}&in={repo}", nil)
	f.Fuzz(func(t *testing.T, key string) {
		checked := schemas.CheckKey(key)
		if checked == nil {
			checked = s.CheckKey("issues", key)
		}
		p, err := s.Plan(Request{Facet: "issues", Key: key})
		if checked == nil && err != nil {
			t.Fatalf("key %q: CheckKey accepts it, but Plan returns %v", key, err)
		}
		if err != nil {
			return
		}
		owner, repo, _ := strings.Cut(key, "/")
		u, err := url.ParseRequestURI(p.requests[0].url.RequestURI())
		if err != nil {
			t.Fatal(err)
		}
		segments := strings.Split(u.EscapedPath(), "/")
		if len(segments) != 6 || segments[1] != "base" || segments[2] != "repos" || segments[5] != "issues" {
			t.Fatalf("key %q: got path %q", key, u.EscapedPath())
		}
		for i, want := range map[int]string{3: owner, 4: "." + repo} {
			if got, err := url.PathUnescape(segments[i]); err != nil || got != want || got == "." || got == ".." {
				t.Fatalf("key %q: got segment %q (%v), want %q", key, got, err, want)
			}
		}
		q, err := url.ParseQuery(u.RawQuery)
		if err != nil || len(q) != 2 || q.Get("of") != owner || q.Get("in") != repo {
			t.Fatalf("key %q: got query %v (%v)", key, q, err)
		}
	})
}
