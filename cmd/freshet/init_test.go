package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/freshet/freshet/source/guess"
)

// reply returns a handler with one response. header lists names and values.
func reply(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

// etagReply responds with status 304 (not modified) to a request with the header If-None-Match, and
// with JSON otherwise. All responses have an ETag and report a rate limit.
func etagReply(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Etag", `"1"`)
	h.Set("X-RateLimit-Limit", "5000")
	h.Set("X-RateLimit-Remaining", "4999")
	h.Set("X-RateLimit-Reset", "3000")
	h.Set("X-RateLimit-Resource", "core")
	if r.Header.Get("If-None-Match") != "" {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write([]byte(`{"id": 42}`))
}

// Every file that init writes must pass `config check`, for every response of the API.
func TestInit_WrittenFileIsValid(t *testing.T) {
	counter := new(atomic.Int64)
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		paths   []string // paths of the example URLs; nil means /products/42
		args    []string
		file    string // text that the written file must contain
		stderr  string // text that stderr must contain
	}{
		"plain":                {handler: reply(200, `{"id": 42}`), file: "{name: second, limit: 1, window: 1s}", stderr: "no response reports a limit"},
		"ETag with 304":        {handler: etagReply, file: "conditional: true", stderr: "got 304"},
		"304 is free":          {handler: etagReply, file: "freeStatuses: [304]"},
		"resource":             {handler: etagReply, file: `scope: "{resource}"`},
		"ETag without 304":     {handler: reply(200, `{}`, "Etag", `"1"`), stderr: "conditional is off"},
		"max-age":              {handler: reply(200, `{}`, "Cache-Control", "public, max-age=120"), file: "freshFor: 2m # from Cache-Control"},
		"huge max-age":         {handler: reply(200, `{}`, "Cache-Control", "max-age=99999999999"), file: "freshFor: 24h"},
		"draft of the IETF":    {handler: reply(200, `{}`, "RateLimit", `"burst";r=9;t=3, "daily";r=50;t=30`, "RateLimit-Policy", `"burst";q=100;w=60,"daily";q=1000;w=86400`), file: `item: daily`},
		"Riot":                 {handler: reply(200, `{}`, "X-App-Rate-Limit", "20:1,100:120", "X-App-Rate-Limit-Count", "1:1,2:120"), file: "list: X-App-Rate-Limit, counts: X-App-Rate-Limit-Count, window: 120s"},
		"Shopify":              {handler: reply(200, `{}`, "X-Shopify-Shop-Api-Call-Limit", "1/40"), file: "limit: 40, restore: 2/s", stderr: "restore is assumed"},
		"HubSpot":              {handler: reply(200, `{}`, "X-HubSpot-RateLimit-Max", "190", "X-HubSpot-RateLimit-Remaining", "189", "X-HubSpot-RateLimit-Interval-Milliseconds", "10000", "X-HubSpot-RateLimit-Daily", "650000", "X-HubSpot-RateLimit-Daily-Remaining", "649000"), file: "limit: 190, window: 10s"},
		"OpenAI":               {handler: reply(200, `{}`, "x-ratelimit-limit-requests", "60", "x-ratelimit-remaining-requests", "59", "x-ratelimit-reset-requests", "1s", "x-ratelimit-limit-tokens", "1000", "x-ratelimit-remaining-tokens", "999", "x-ratelimit-reset-tokens", "6m0s"), file: "name: requests, limit: 60", stderr: "Tokens: 999"},
		"month":                {handler: reply(200, `{}`, "X-RateLimit-Limit-Month", "1000"), file: "window: day"},
		"a day alone":          {handler: reply(200, `{}`), args: []string{"--limit", "20000/d"}, file: "{name: second, limit: 1, window: 1s}", stderr: "needs a rate too"},
		"a day and a reported": {handler: etagReply, args: []string{"--limit", "20000/d"}, file: "name: second, limit: 1"},
		"enormous limit":       {handler: reply(200, `{}`, "X-RateLimit-Limit", "999999999999", "X-RateLimit-Remaining", "999999999999", "X-RateLimit-Reset", "1")},
		"limit of 0":           {handler: reply(200, `{}`, "X-RateLimit-Limit", "0", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1")},
		"remaining only":       {handler: reply(200, `{}`, "X-RateLimit-Remaining", "7")},
		"eleven limits":        {handler: reply(200, `{}`, "X-RateLimit-Limit-Second", "1", "X-RateLimit-Limit-Minute", "2", "X-RateLimit-Limit-Hour", "3", "X-RateLimit-Limit-Day", "4", "X-RateLimit-Limit-Month", "5", "X-App-Rate-Limit", "1:1,2:2,3:3,4:4,5:5,6:6"), stderr: "at most 4 policies"},
		"unreadable limit":     {handler: reply(200, `{}`, "RateLimit", "limit=100, remaining=50, reset=5"), stderr: "cannot read this form"},
		"hostile policy name":  {handler: reply(200, `{}`, "RateLimit", `"a}, b: [\"#\u00e9.=,";r=9;t=3`, "RateLimit-Policy", `"a}, b: [\"#\u00e9.=,";q=100;w=60`)},
		"list and Link":        {handler: reply(200, `[{"id": 1}]`, "Link", `</products?page=2>; rel="next"`), paths: []string{"/products"}, file: "paging: {link: true}", stderr: "freshet init http"},
		"list and cursor":      {handler: reply(200, `{"data": [{"id": 1}], "meta": {"next_cursor": "x"}}`), paths: []string{"/products"}, file: "paging: {cursor: meta.next_cursor, param: cursor, items: data}"},
		"list and token":       {handler: reply(200, `{"items": [{"id": 1}], "nextPageToken": "x"}`), paths: []string{"/products"}, file: "cursor: nextPageToken, param: pageToken, items: items"},
		"list and URL":         {handler: reply(200, `{"results": [{"id": 1}], "next": "https://x.example/?page=2"}`), paths: []string{"/products"}, stderr: "does not follow"},
		"hostile members": {handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"a: b\n#}.\"\\": %d, "😀": %[1]d}`, counter.Add(1))
		}, file: "ignore: ["},
		"long member": {handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"%s": %d}`, strings.Repeat("a", 5000), counter.Add(1))
		}, stderr: "1 member of the response differed"},
		"gzip bomb": {handler: gzipBomb, stderr: "init reads at most 4 MiB"},
		"90 limits": {handler: func(w http.ResponseWriter, r *http.Request) {
			var header []string
			for i := range 90 {
				header = append(header, fmt.Sprintf("X-RateLimit-%d-Limit", i), "9", fmt.Sprintf("X-RateLimit-%d-Remaining", i), "8")
			}
			reply(200, `{}`, header...)(w, r)
		}, stderr: "at most 4 policies"},
		"all members change":     {handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintf(w, `%d`, counter.Add(1)) }, stderr: "1 member of the response differed"},
		"HTML":                   {handler: reply(200, `<html>`, "Content-Type", "text/html"), stderr: "HTML, not JSON"},
		"401":                    {handler: reply(401, `{}`, "Www-Authenticate", `Bearer realm="x"`), stderr: `--auth-header NAME --auth-env VARIABLE --force; it requires Bearer`},
		"403":                    {handler: reply(403, `{}`), stderr: "needs a credential"},
		"404":                    {handler: reply(404, `{}`), stderr: "no such entity"},
		"429":                    {handler: reply(429, `{}`, "Retry-After", "7"), stderr: "requests a pause of 7s"},
		"500":                    {handler: reply(500, `oops`), stderr: "temporary fault"},
		"204":                    {handler: reply(204, ``), stderr: "only complete JSON"},
		"304":                    {handler: reply(304, ``)},
		"redirect to a host":     {handler: reply(301, ``, "Location", "https://www.example.com/products/42"), stderr: "redirects to https://www.example.com/products/42"},
		"redirect within":        {handler: func(w http.ResponseWriter, r *http.Request) { redirectOnce(w, r) }, stderr: "use the path of"},
		"redirect loop":          {handler: reply(302, ``, "Location", "/products/42"), stderr: "redirects"},
		"empty body":             {handler: reply(200, ``), stderr: "no body"},
		"huge body":              {handler: reply(200, `"`+strings.Repeat("a", 5<<20)+`"`), stderr: "init reads at most 4 MiB"},
		"invalid JSON":           {handler: reply(200, `{"a":`), stderr: "not valid JSON"},
		"deep JSON":              {handler: reply(200, strings.Repeat("[", 100_000)), stderr: "nested deeper"},
		"not UTF-8":              {handler: reply(200, "{\"a\": \"\xff\xfe\"}")},
		"control characters":     {handler: reply(500, "\x1b[2J", "Content-Type", "text/\u009b2J")},
		"no path":                {handler: reply(200, `{}`), paths: []string{""}, file: "keyPattern: all"},
		"two facets":             {handler: reply(200, `{}`), paths: []string{"/products/42", "/users/7"}, file: "user:"},
		"three facets":           {handler: reply(200, `{}`), paths: []string{"/products/42", "/users/7", "/products/42/reviews"}, file: "reviews:"},
		"same facet name":        {handler: reply(200, `{}`), paths: []string{"/a/products/42", "/b/products/42"}, file: "product-2:"},
		"limit":                  {handler: reply(200, `{}`), args: []string{"--limit", "10/s,20000/d"}, file: "{name: day, limit: 20000, window: day, timeZone: UTC, highReserve: 2000}"},
		"wrong limit":            {handler: reply(200, `{}`, "X-RateLimit-Limit", "60", "X-RateLimit-Remaining", "59", "X-RateLimit-Reset", "50"), args: []string{"--limit", "100/s"}, stderr: "--limit allows 100 calls in 1s, but the responses report 60 in 1m"},
		"key in the query":       {handler: reply(200, `{}`), paths: []string{"/products/42?api_key=s3cret-key"}, file: "auth: {query: api_key, secretEnv: LOCAL_KEY}", stderr: "export LOCAL_KEY="},
		"short key in the query": {handler: reply(301, ``, "Location", "https://x.example/?api_key=q1w"), paths: []string{"/products/42?api_key=q1w"}, stderr: "REDACTED"},
		"key in the header":      {handler: reply(200, `{}`), args: []string{"--auth-header", "X-Api-Key", "--auth-env", "SHOP_KEY"}, file: "auth: {header: X-Api-Key, secretEnv: SHOP_KEY}"},
		"bearer":                 {handler: reply(200, `{}`), args: []string{"--auth-header", "Authorization", "--auth-env", "SHOP_KEY"}, file: `prefix: "Bearer "`, stderr: "Bearer"},
		"another prefix":         {handler: reply(200, `{}`), args: []string{"--auth-header", "Authorization: Token", "--auth-env", "SHOP_KEY"}, file: `prefix: "Token "`},
		"echo of the key": {handler: func(w http.ResponseWriter, r *http.Request) {
			key := r.Header.Get("X-Api-Key")
			reply(200, `{"`+key+`": `+fmt.Sprint(counter.Add(1))+`}`, "Etag", `"`+key+`"`, "X-RateLimit-Limit", key, "Content-Type", "application/json;"+key, "RateLimit-Limit", "5", "RateLimit-Remaining", "4", "RateLimit-Bucket", key)(w, r)
		}, args: []string{"--auth-header", "X-Api-Key", "--auth-env", "SHOP_KEY"}, file: "auth: {header"},
	} {
		t.Run(name, func(t *testing.T) {
			calls := new(atomic.Int64)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				c.handler(w, r)
			}))
			t.Cleanup(s.Close)
			if c.paths == nil {
				c.paths = []string{"/products/42"}
			}
			file := filepath.Join(t.TempDir(), "freshet.yaml")
			args := append([]string{"init", "--pause", "0s", "--output", file}, c.args...)
			for _, path := range c.paths {
				args = append(args, s.URL+path)
			}
			t.Setenv("SHOP_KEY", "s3cret-key")
			code, stdout, stderr := command(t, []string{"SHOP_KEY=s3cret-key"}, args...)
			if code != 0 || stdout != "" {
				t.Fatalf("exit code: got %d with stdout %q, stderr %s; want 0 and none", code, stdout, stderr)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			checkWritten(t, file, string(text))
			if !strings.Contains(string(text), c.file) {
				t.Errorf("file: got\n%s\nwant %q in it", text, c.file)
			}
			if !strings.Contains(stderr, c.stderr) {
				t.Errorf("stderr: got\n%s\nwant %q in it", stderr, c.stderr)
			}
			all := string(text) + stderr
			if strings.Contains(all, "s3cret-key") || strings.Contains(all, "q1w") {
				t.Errorf("output: got\n%s\nwant no secret in it", all)
			}
			if strings.ContainsAny(all, "\x1b\u009b\u202e\r") {
				t.Errorf("output: got %q, want no control character", all)
			}
			if n := calls.Load(); n > 2*guess.MaxCalls || n > guess.MaxCalls && !strings.HasPrefix(name, "redirect") {
				t.Errorf("calls: got %d, want at most %d", n, guess.MaxCalls)
			}
		})
	}
}

// checkWritten checks a file of init: its length, `config check`, and its commented settings.
func checkWritten(t *testing.T, file, text string) {
	t.Helper()
	if n := strings.Count(text, "\n"); n > guess.MaxLines {
		t.Errorf("lines: got %d, want at most %d\n%s", n, guess.MaxLines, text)
	}
	for what, file := range map[string]string{"as written": file, "with prefetch": write(t, strings.ReplaceAll(text, "# prefetch:", "prefetch:"))} {
		if code, stdout, stderr := command(t, nil, "config", "check", "--config", file); code != 0 || !strings.Contains(stdout, "the configuration is valid") {
			t.Errorf("config check %s: got exit %d, want 0\n%s\n%s%s", what, code, text, stdout, stderr)
		}
	}
}

// gzipBomb responds with 16 MiB that gzip compresses to a few kilobytes.
func gzipBomb(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(w)
	_, _ = z.Write(bytes.Repeat([]byte("[0],"), 4<<20))
	_ = z.Close()
}

func redirectOnce(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/products/42" {
		http.Redirect(w, r, "/v2/products/42", http.StatusFound)
		return
	}
	_, _ = w.Write([]byte(`{}`))
}

func TestInit_ThreeHosts(t *testing.T) {
	dir := t.TempDir()
	args := []string{"init", "--pause", "0s", "--output", filepath.Join(dir, "f.yaml")}
	for range 3 {
		s := httptest.NewServer(http.HandlerFunc(etagReply))
		t.Cleanup(s.Close)
		args = append(args, s.URL+"/products/42")
	}
	code, _, stderr := command(t, nil, args...)
	if code != 0 {
		t.Fatalf("exit code: got %d, want 0\n%s", code, stderr)
	}
	text, err := os.ReadFile(filepath.Join(dir, "f.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	checkWritten(t, filepath.Join(dir, "f.yaml"), string(text))
	if n := strings.Count(string(text), "baseURL:"); n != 3 {
		t.Errorf("sources: got %d, want 3\n%s", n, text)
	}
}

// `freshet try` with the file that init has written and the example key must call the URL that was
// the argument of init.
func TestInit_WrittenPathLeadsToTheExample(t *testing.T) {
	for _, path := range []string{
		"/products/42", "/repos/octocat/hello-world", "/repos/octocat/hello-world/issues/7.json", "/weather?lat=52.52&lon=13.41&units=metric",
		"/users/7/orders?id=42", "/files/a%2Fb%20c/versions/7", "/people/J%C3%BCrgen/songs/%E2%88%9A%20x%5E", "/matches/1234/5678",
	} {
		t.Run(path, func(t *testing.T) {
			var asked []string
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.URL.RequestURI())
				reply(200, `{}`)(w, r)
			}))
			t.Cleanup(s.Close)
			file := filepath.Join(t.TempDir(), "freshet.yaml")
			code, _, stderr := command(t, nil, "init", "--pause", "0s", "--output", file, s.URL+path)
			if code != 0 {
				t.Fatalf("init: got exit %d, want 0\n%s", code, stderr)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			checkWritten(t, file, string(text))
			_, entity, _ := strings.Cut(stderr, "freshet try ")
			entity, _, _ = strings.Cut(entity, " --config")
			asked = nil
			if code, stdout, stderr := command(t, nil, "try", strings.Trim(entity, "'"), "--config", file); code != 0 {
				t.Fatalf("try %s: got exit %d, want 0\n%s%s", entity, code, stdout, stderr)
			}
			if !slices.Equal(asked, []string{path}) {
				t.Errorf("calls of try %s: got %q, want %q", entity, asked, path)
			}
		})
	}
}

// The user of a container must be able to read the file.
func TestInit_FileIsReadableByOthers(t *testing.T) {
	dir := t.TempDir()
	reference, written := filepath.Join(dir, "reference"), filepath.Join(dir, "freshet.yaml")
	if err := os.WriteFile(reference, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := command(t, nil, "init", "--output", written); code != 0 {
		t.Fatal(stderr)
	}
	want, err := os.Stat(reference)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.Stat(written); err != nil || got.Mode() != want.Mode() {
		t.Errorf("mode: got %v, %v, want %v", got.Mode(), err, want.Mode())
	}
}

func TestInit_TemplateIsValid(t *testing.T) {
	for _, args := range [][]string{{}, {"--limit", "100/m,5000/d"}, {"--auth-header", "X-Key", "--auth-env", "X_KEY"}} {
		code, stdout, stderr := command(t, nil, append([]string{"init", "--output", "-"}, args...)...)
		if code != 0 {
			t.Fatalf("exit code of %q: got %d, want 0\n%s", args, code, stderr)
		}
		checkWritten(t, write(t, stdout), stdout)
	}
}

func TestInit_ErrorsNameTheFix(t *testing.T) {
	api := httptest.NewServer(reply(200, `{}`))
	t.Cleanup(api.Close)
	existing := write(t, "mine")
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"existing file":        {[]string{api.URL, "--output", existing}, 1, "--force"},
		"four URLs":            {[]string{api.URL + "/1", api.URL + "/2", api.URL + "/3", api.URL + "/4"}, 2, "at most 3"},
		"same path":            {[]string{api.URL + "/products/1", api.URL + "/products/2"}, 2, "same path"},
		"no scheme":            {[]string{"api.example.com/products/42"}, 2, "https://"},
		"placeholder":          {[]string{api.URL + "/products/{id}"}, 2, "existing id"},
		"header without env":   {[]string{api.URL, "--auth-header", "X-Api-Key"}, 2, "--auth-env"},
		"env without header":   {[]string{api.URL, "--auth-env", "SHOP_KEY"}, 2, "--auth-header"},
		"key in place of env":  {[]string{api.URL, "--auth-header", "X-Api-Key", "--auth-env", "hunter2"}, 2, "name of an environment variable"},
		"key in the header":    {[]string{api.URL, "--auth-header", "X-Api-Key: hunter2hunter2hunter2", "--auth-env", "SHOP_KEY"}, 2, "only a prefix"},
		"unset env":            {[]string{api.URL, "--auth-header", "X-Api-Key", "--auth-env", "UNSET_KEY"}, 1, "UNSET_KEY is not set"},
		"invalid header":       {[]string{api.URL, "--auth-header", "X Api", "--auth-env", "SHOP_KEY"}, 2, "name of a header"},
		"limit":                {[]string{api.URL, "--limit", "fast"}, 2, "10/s"},
		"limit of 0":           {[]string{api.URL, "--limit", "0/s"}, 2, "at least 1"},
		"limit above all":      {[]string{api.URL, "--limit", "99999999/s"}, 2, "50,000"},
		"limit of a week":      {[]string{api.URL, "--limit", "10/168h"}, 2, "24h"},
		"pause":                {[]string{api.URL, "--pause", "-1s"}, 2, "from 0s to 1h"},
		"two keys":             {[]string{"https://me:hunter2@api.example.com/x", "--auth-header", "X-Api-Key", "--auth-env", "SHOP_KEY"}, 2, "freshet sends one"},
		"key for two hosts":    {[]string{"https://a.example/x", "https://b.example/x", "--auth-header", "X-Api-Key", "--auth-env", "SHOP_KEY"}, 2, "two hosts"},
		"query key, two hosts": {[]string{"https://a.example/x?api_key=hunter2", "https://b.example/x"}, 2, "two hosts"},
		"key over http":        {[]string{"http://a.example/x", "--auth-header", "X-Api-Key", "--auth-env", "SHOP_KEY"}, 2, "https"},
		"no server":            {[]string{"http://127.0.0.1:1/products/42"}, 1, "check the address"},
		"no folder":            {[]string{api.URL, "--output", filepath.Join(t.TempDir(), "a", "b")}, 1, "no such file"},
		"empty output":         {[]string{api.URL, "--output", ""}, 2, "--output"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"init", "--pause", "0s"}, c.args...)
			if !strings.Contains(strings.Join(args, " "), "--output") {
				args = append(args, "--output", filepath.Join(t.TempDir(), "freshet.yaml"))
			}
			code, stdout, stderr := command(t, []string{"SHOP_KEY=s3cret-key"}, args...)
			if code != c.code || stdout != "" {
				t.Errorf("exit code: got %d with stdout %q, want %d and none", code, stdout, c.code)
			}
			if !strings.Contains(stderr, c.want) {
				t.Errorf("stderr: got %s, want %q in it", stderr, c.want)
			}
			if strings.Contains(stderr, "hunter2") || strings.Contains(stderr, "s3cret-key") {
				t.Errorf("stderr: got %s, want no secret in it", stderr)
			}
		})
	}
	if text, err := os.ReadFile(existing); err != nil || string(text) != "mine" {
		t.Errorf("existing file: got %q, %v; want it unchanged", text, err)
	}
}

func TestInit_CredentialIsSentOnlyToItsHost(t *testing.T) {
	var stolen atomic.Value
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen.Store(r.Header.Get("X-Api-Key") + r.URL.RawQuery) }))
	t.Cleanup(other.Close)
	api := httptest.NewServer(reply(302, ``, "Location", other.URL+"/x"))
	t.Cleanup(api.Close)
	code, _, stderr := command(t, []string{"SHOP_KEY=s3cret-key"}, "init", api.URL+"/products/42", "--auth-header", "X-Api-Key", "--auth-env", "SHOP_KEY", "--output", filepath.Join(t.TempDir(), "f"))
	if code != 0 {
		t.Errorf("exit code: got %d, want 0\n%s", code, stderr)
	}
	if got := stolen.Load(); got != nil {
		t.Errorf("request to the other host: got %v, want none", got)
	}
}
