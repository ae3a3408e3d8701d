package e2e

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/servicetest"
)

// secretSource is the configuration of a source. Each of its settings that can contain a secret has a
// secret.
const secretSource = `baseURL: UPSTREAM/api
auth: {query: api_key, secretEnv: SHOP_CREDENTIAL}
headers: {X-Api-Token: "HEADER"}
quota: {policies: [{name: second, limit: 50, window: 1s}]}
facets:
  item:
    documents:
      one: {path: "/one/{key}?token=PATH", headers: {X-Session: "DOCUMENT"}}
      two: {path: "/two/{key}", method: POST, body: '{"key": "{key}", "password": "BODY", "secret": "{apiToken}"}'}
    params: {apiToken: "PARAM"}
    retry: [1s]
`

// planted is an installation that has a different secret in each place where a secret is possible.
type planted struct {
	*fleet
	secrets map[string]string // each secret, by the name of the place that contains it
	api     string
	admin   *http.Client

	mu       sync.Mutex
	arrived  string // headers and bodies of all calls that the upstream received
	searched int    // number of texts that were searched for secrets
}

// secret creates a new secret for the place with this name.
func (p *planted) secret(place string) string {
	p.secrets[place] = rand.Text() + rand.Text()
	return p.secrets[place]
}

// file creates a new secret for the place with this name, writes it to a file, and returns the
// file's path.
func (p *planted) file(place string) string {
	path := filepath.Join(p.Dir, strings.ReplaceAll(place, " ", "-"))
	p.check(os.WriteFile(path, []byte(p.secret(place)), 0o600))
	return path
}

// serve handles the requests to the upstream. It repeats the credential in every response.
func (p *planted) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.mu.Lock()
	p.arrived += fmt.Sprint(r.URL, r.Header, string(body))
	p.mu.Unlock()
	credential := r.URL.Query().Get("api_key")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("ETag", `"`+credential+`"`)
	switch {
	case strings.Contains(r.URL.Path, "bad"):
		w.WriteHeader(http.StatusBadRequest)
	case strings.Contains(r.URL.Path, "refused"):
		w.WriteHeader(http.StatusUnauthorized)
	case strings.Contains(r.URL.Path, "missing"):
		w.WriteHeader(http.StatusNotFound)
	case strings.Contains(r.URL.Path, "broken"):
		w.WriteHeader(http.StatusInternalServerError)
	case strings.Contains(r.URL.Path, "page"):
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, "<html>no such api_key=%s</html>", credential)
		return
	}
	_, _ = fmt.Fprintf(w, `{"self": "https://shop.example/one?api_key=%s", "error": "the key %s"}`, url.QueryEscape(credential), credential)
}

func newPlanted(t *testing.T) *planted {
	t.Helper()
	p := &planted{fleet: newSite(t), secrets: map[string]string{}}
	upstream := httptest.NewServer(http.HandlerFunc(p.serve))
	p.OnClose(upstream.Close)
	p.Source, p.Token = servicetest.Name("secrets"), p.secret("admin token")
	p.Sources = map[string]string{p.Source: strings.NewReplacer("UPSTREAM", upstream.URL,
		"HEADER", p.secret("header of the source"), "DOCUMENT", p.secret("header of a document"), "PATH", p.secret("path"),
		"BODY", p.secret("body"), "PARAM", p.secret("param")).Replace(secretSource)}

	database, err := url.Parse(p.Database)
	p.check(err)
	database.User = url.UserPassword(database.User.Username(), p.secret("database password"))
	p.Database = database.String()
	p.Env = []string{
		"SHOP_CREDENTIAL=" + p.secret("upstream credential"), "FRESHET_TOKEN=" + p.Token, "FRESHET_LOG_LEVEL=debug",
		"FRESHET_ACCESS_CLIENT_HEADER=X-Client-Id", "FRESHET_REDIS_PASSWORD_FILE=" + p.file("redis password"),
	}
	rdb := redis.NewClient(&redis.Options{Addr: p.Redis.Address})
	defer func() { _ = rdb.Close() }()
	p.check(rdb.ConfigSet(t.Context(), "requirepass", p.secrets["redis password"]).Err())

	p.check(p.CreateTables(t.Context()))
	p.connect()
	p.admin = &http.Client{Transport: harness.Bearer{Token: p.Token}, Timeout: timeout}
	return p
}

// get requests a URL and returns the status, headers and body of the response as one text.
func (p *planted) get(client *http.Client, target string, headers ...string) string {
	p.Helper()
	req, err := http.NewRequestWithContext(p.Context(), http.MethodGet, target, http.NoBody)
	p.check(err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	p.check(err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	p.check(err)
	return fmt.Sprint(resp.Status, resp.Header, string(text))
}

// showsNone fails the test if the text contains one of the secrets, either plain or encoded. `what`
// is the name of the text in the failure message.
func (p *planted) showsNone(what, text string) {
	p.Helper()
	p.searched++
	for place, secret := range p.secrets {
		for _, form := range []string{secret, strings.ToLower(secret), base64.RawStdEncoding.EncodeToString([]byte(secret))} {
			if at := strings.Index(text, form); at >= 0 {
				p.Errorf("%s: got the secret of %q in …%s…, want no secret", what, place, text[max(0, at-100):min(len(text), at+60)])
			}
		}
	}
}

// search reads a page with the admin token and checks that the response contains no secret.
func (p *planted) search(target string) string {
	p.Helper()
	text := p.get(p.admin, target)
	p.showsNone(target, text)
	return text
}

// searchContract searches the response of every GET operation in the OpenAPI document for secrets.
func (p *planted) searchContract() {
	p.Helper()
	_, contract, _ := strings.Cut(p.search(p.api+"/openapi.yaml"), "openapi:")
	var document struct{ Paths map[string]map[string]any }
	p.check(yaml.Unmarshal([]byte("openapi:"+contract), &document))
	fill := strings.NewReplacer("{source}", p.Source, "{facet}", "item", "{key}", "ok", "{partition}", "0", "{offset}", "0", "{id}", "1")
	for path, methods := range document.Paths {
		if _, readable := methods["get"]; readable && !strings.HasSuffix(path, "/events") {
			p.search(p.api + fill.Replace(path))
		}
	}
}

var link = regexp.MustCompile(`(?:href|src)="(/console[^"#]*)"`)

// crawlConsole reads the pages `first`, and all pages of the console to which the pages that it reads
// have links. It returns the number of pages.
func crawlConsole(read func(path string) string, first ...string) (pages int) {
	seen := map[string]bool{}
	for next := first; len(next) > 0; {
		path := strings.ReplaceAll(next[0], "&amp;", "&")
		if next = next[1:]; seen[path] {
			continue
		}
		seen[path] = true
		for _, found := range link.FindAllStringSubmatch(read(path), -1) {
			next = append(next, found[1])
		}
	}
	return len(seen)
}

// The test reads entities so that the upstream sends every kind of response, some of which repeat
// the credential. Then it searches metrics, pages, responses, logs and the output of commands for
// the secrets. It must find no secret.
func TestSecrets_AppearNowhere(t *testing.T) {
	t.Parallel()
	p := newPlanted(t)
	query, queryMetrics := p.startTarget("query", "query")
	p.api = query.URL()
	_, workerMetrics := p.startTarget("worker", "worker")
	_, schedulerMetrics := p.startTarget("scheduler", "scheduler")
	token, err := p.CreateKey(t.Context(), p.api, "reader", "read", "refresh", "delegate")
	p.check(err)
	p.secrets["API key"] = token
	reader := &http.Client{Transport: harness.Bearer{Token: token}, Timeout: timeout}

	base := p.api + "/v1/" + p.Source + "/item"
	for _, key := range []string{"ok", "missing-0", "bad-0", "refused-0", "broken-0", "page-0"} {
		p.showsNone("read of "+key, p.get(reader, base+"/"+key+"?wait=3s", "X-Client-Id", p.secret("name of a user")))
	}
	p.until(timeout, "a dead letter", func() bool { return p.one("SELECT count(*) FROM dead_letters") > 0 })
	content := p.get(reader, base+"/ok?wait=20s")
	if !strings.Contains(content, "REDACTED") {
		t.Errorf("content: got %s, want REDACTED in place of the credential", content)
	}
	p.showsNone("content", content)
	p.showsNone("rejected token", p.get(&http.Client{Transport: harness.Bearer{Token: p.secret("rejected token")}}, base+"/ok"))
	p.showsNone("token in the query", p.get(reader, base+"/ok?access_token="+p.secret("token in the query")))
	p.showsNone("batch", p.get(reader, base+"?key=ok&key=bad-0&key=refused-0&key=page-0"))

	for _, command := range []string{
		"config print", "config check", "keys list", "settings get", "settings audit", "limiter", "dlq list", "topics lag", "entities list",
		"snapshot get " + p.Source + "/item/ok",
	} {
		args := strings.Fields(command)
		if args[0] != "config" && args[0] != "topics" {
			args = append(args, "--addr", p.api)
		}
		p.showsNone("freshet "+command, p.must(args...))
	}
	p.searchContract()
	pages := crawlConsole(func(path string) string { return p.search(p.api + path) }, "/console", "/console/lookup?source="+p.Source+"&facet=item&key=bad-0")
	atLeast(t, "pages of the console", pages, 10)
	for _, target := range []string{queryMetrics, workerMetrics, schedulerMetrics, p.api + "/metrics"} {
		if text := p.search(target); !strings.Contains(text, "freshet_") {
			t.Errorf("%s: got %.200s, want metrics", target, text)
		}
	}
	for _, role := range []string{"query", "worker", "scheduler"} {
		text, err := os.ReadFile(filepath.Join(p.Dir, role+".log"))
		p.check(err)
		p.showsNone("log of the "+role, string(text))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, place := range []string{"upstream credential", "header of the source", "header of a document", "path", "body", "param"} {
		if !strings.Contains(p.arrived, p.secrets[place]) {
			t.Errorf("calls to the upstream: got no secret of %q, want it in a call", place)
		}
	}
	t.Logf("%d texts searched for %d secrets", p.searched, len(p.secrets))
}
