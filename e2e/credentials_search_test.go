package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
)

// traces is a collector of spans (OTLP over HTTP). It keeps the bodies of the exports.
type traces struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (c *traces) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	body := io.Reader(req.Body)
	if req.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return
		}
		body = unpacked
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.text.ReadFrom(body)
}

func (c *traces) all() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// showsNone fails the test if the text contains a secret.
func (r *renewing) showsNone(what, text string) {
	r.Helper()
	r.searched++
	for _, secret := range append(r.server.Secrets(), r.secret) {
		for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), fmt.Sprintf("%x", secret)} {
			if strings.Contains(text, form) {
				r.Errorf("%s shows the secret %s", what, secret)
			}
		}
	}
}

// search reads a URL and fails the test if the response contains a secret.
func (r *renewing) search(url string) string {
	r.Helper()
	resp, err := r.client.Get(url)
	r.check(err)
	defer func() { _ = resp.Body.Close() }()
	var text strings.Builder
	r.check(resp.Write(&text))
	r.showsNone(url, text.String())
	return text.String()
}

// dump returns all rows of all tables as text.
func (r *renewing) dump() string {
	r.Helper()
	rows, err := r.db.Query(r.Context(), "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
	r.check(err)
	var tables []string
	for rows.Next() {
		var name string
		r.check(rows.Scan(&name))
		tables = append(tables, name)
	}
	r.check(rows.Err())
	var all strings.Builder
	for _, name := range tables {
		var text string
		r.check(r.db.QueryRow(r.Context(), "SELECT coalesce(string_agg(t::text, E'\\n'), '') FROM "+name+" t").Scan(&text))
		all.WriteString(text)
	}
	return all.String()
}

// searchAll makes a dead letter and searches all outputs for secrets: metrics, console, dead letter,
// database, commands and logs. After the processes have ended, it searches their spans.
func (r *renewing) searchAll(metrics []string, processes []*harness.Process) {
	r.Helper()
	content := r.search(r.api + "/v1/" + r.Source + "/item/bad-0?wait=3s")
	r.until(timeout, "a dead letter", func() bool { return r.one("SELECT count(*) FROM dead_letters") > 0 })
	records, err := r.ReadTopic(r.Context(), schemas.DeadLetterTopic(r.Source))
	r.check(err)
	letters := ""
	for _, record := range records {
		letters += fmt.Sprintf("%s %s %s\n", record.Key, record.Value, record.Headers)
	}
	if r.showsNone("the dead letter", letters); !strings.Contains(letters, "REDACTED") {
		r.Errorf("dead letter: got %s after %s, want REDACTED in place of the token", letters, content)
	}
	for _, url := range metrics {
		if text := r.search(url); !strings.Contains(text, "freshet_") {
			r.Errorf("%s: got %.200s, want metrics", url, text)
		}
	}
	pages := crawlConsole(func(path string) string { return r.search(r.api + path) }, "/console", "/console/lookup?source="+r.Source+"&facet=item&key=bad-0")
	atLeast(r, "pages of the console", pages, 10)
	r.showsNone("the database", r.dump())
	for _, args := range []string{"credentials list", "config print", "config check", "dlq list --addr " + r.api, "dlq list -o json --addr " + r.api, "settings audit --addr " + r.api} {
		r.showsNone(args, r.must(strings.Fields(args)...))
	}
	for _, p := range processes {
		r.terminate(p, false) // a process exports its last spans when it ends
	}
	r.showsNone("the spans", r.traces.all())
	if !strings.Contains(r.traces.all(), "wait for a permit") {
		r.Errorf("spans: got %d bytes, want a span of a worker", len(r.traces.all()))
	}
	r.showsNoneInLogs()
	r.Logf("%d texts, %d pages and %d bytes of spans searched for %d secrets; %+v", r.searched, pages, len(r.traces.all()), len(r.server.Secrets())+1, r.server.Stats())
}

func (r *renewing) showsNoneInLogs() {
	r.Helper()
	logs, err := filepath.Glob(filepath.Join(r.Dir, "*.log"))
	r.check(err)
	for _, name := range logs {
		text, err := os.ReadFile(name)
		r.check(err)
		r.showsNone(name, string(text))
	}
	atLeast(r, "searched logs", len(logs), 1)
}
