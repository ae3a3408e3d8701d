package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/source/nexon"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(productionDir)
		os.Exit(code)
	}))
}

// characters returns n keys: prefix0, prefix1 and so on.
func characters(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = prefix + strconv.Itoa(i)
	}
	return keys
}

// eventTimeout bounds every wait for an expected event.
const eventTimeout = 2 * time.Minute

// command runs a freshet command until it ends, and returns its exit code and output.
func command(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, env, &out, &errs)
	return code, out.String(), errs.String()
}

// dev is a running `freshet dev` in the test process.
type dev struct {
	*testing.T
	api, upstream string
	text          string // text that dev printed until it was ready
	client        *http.Client
	stop          func() (code int, stderr string)
}

func startDev(t *testing.T, args ...string) *dev {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	reader, writer := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		c := run(ctx, append([]string{"dev", "--listen", "127.0.0.1:0"}, args...), nil, writer, &stderr)
		_ = writer.CloseWithError(io.EOF)
		code <- c
	}()
	d := &dev{T: t, client: &http.Client{Transport: &http.Transport{DisableCompression: true}}}
	d.stop = sync.OnceValues(func() (int, string) {
		cancel()
		d.client.CloseIdleConnections()
		return <-code, stderr.String()
	})
	t.Cleanup(func() {
		if _, log := d.stop(); t.Failed() {
			t.Logf("log of dev:\n%s", log)
		}
	})
	lines := bufio.NewScanner(reader)
	for lines.Scan() {
		d.text += lines.Text() + "\n"
		if strings.HasPrefix(lines.Text(), "Ready in") {
			go func() { _, _ = io.Copy(io.Discard, reader) }()
			d.api = regexp.MustCompile(`http://[0-9.:]+`).FindString(regexp.MustCompile(`Query API .*`).FindString(d.text))
			d.upstream = regexp.MustCompile(`http://[0-9.:]+`).FindString(regexp.MustCompile(`Upstream .*`).FindString(d.text))
			return d
		}
	}
	c, errs := d.stop()
	t.Fatalf("start of dev: got exit %d, want it ready: %s%s", c, d.text, errs)
	return nil
}

// nexonByOcid returns a configuration of the source nexon with only one facet, "character". Its key is
// the ocid, the id of a character. A fetch of this facet makes one call.
func nexonByOcid() string {
	head, facets, _ := strings.Cut(string(nexon.Config), "\nfacets:\n")
	_, facet, _ := strings.Cut(facets, "  character-by-ocid: # for programs that know the ocid\n")
	return head + "\nfacets:\n  character:\n" + facet
}

// smallDocument writes nexon's configuration with a document of 1 KB instead of 200 KB, for tests that
// make many calls. Its only facet is character, with the ocid as key. `oldnew` lists further replacements in the configuration, in the form that
// strings.NewReplacer needs.
func smallDocument(t *testing.T, oldnew ...string) (file string) {
	t.Helper()
	config := strings.NewReplacer(append(oldnew, "item-equipment", "basic")...).Replace(nexonByOcid())
	return write(t, "sources:\n  nexon:\n    "+strings.ReplaceAll(config, "\n", "\n    "))
}

type read struct {
	status int
	body   struct {
		Snapshot  json.RawMessage `json:"snapshot"`
		Freshness string          `json:"freshness"`
		Refresh   refreshState    `json:"refresh"`
		CheckedAt time.Time       `json:"lastCheckedAt"`
	}
}

func (d *dev) do(method, url string) (int, []byte) {
	d.Helper()
	req, err := http.NewRequestWithContext(d.Context(), method, url, nil)
	if err != nil {
		d.Fatal(err)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		d.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		d.Fatal(err)
	}
	return resp.StatusCode, text
}

func (d *dev) read(key string) read {
	d.Helper()
	status, text := d.do(http.MethodGet, d.api+"/v1/nexon/character/"+key)
	r := read{status: status}
	if err := json.Unmarshal(text, &r.body); err != nil {
		d.Fatalf("%s: %v", text, err)
	}
	return r
}

// until reads a key repeatedly until the function `holds` returns true for the response, and returns
// that response. Each read after the first one waits for the refresh in flight. Without this wait it
// could find the old snapshot, and enqueue a second refresh after the first has ended. Tests that
// count calls expect only one refresh.
func (d *dev) until(what, key string, holds func(read) bool) read {
	d.Helper()
	deadline := time.After(eventTimeout)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for path := key; ; path = key + "?wait=1s" {
		r := d.read(path)
		if holds(r) {
			return r
		}
		select {
		case <-look.C:
		case <-deadline:
			d.Fatalf("%s: got none within %v, want one; the last answer: %d %s", what, eventTimeout, r.status, r.body.Freshness)
		}
	}
}

func isFresh(r read) bool { return r.status == 200 && r.body.Freshness == "FRESH" }

func TestRead_NewKeyIs202ThenFresh(t *testing.T) {
	d := startDev(t, "--no-demo")
	// On a busy machine Redis may respond too late; the response then has the reason SLOW.
	if r := d.read("somebody"); r.status != 202 || r.body.Freshness != "UPDATING" || (!r.body.Refresh.Queued && r.body.Refresh.Reason != "SLOW") {
		t.Errorf("first read: got %+v, want status 202, UPDATING, a queued refresh or the reason SLOW", r)
	}
	r := d.until("a fresh answer", "somebody", isFresh)
	if n := len(r.body.Snapshot); n < 200_000 || !bytes.HasPrefix(r.body.Snapshot, []byte(`{"item-equipment":{`)) {
		t.Errorf("snapshot: got %d bytes, %.60s; want at least 200000, beginning with %s", n, r.body.Snapshot, `{"item-equipment":{`)
	}

	if status, text := d.do(http.MethodPost, d.api+"/v1/nexon/character/somebody/refresh"); status != 202 {
		t.Errorf("refresh: got %d %s, want 202", status, text)
	}
	d.until("the refresh", "somebody", func(again read) bool { return isFresh(again) && again.body.CheckedAt.After(r.body.CheckedAt) })

	d.until("a not-found result", "notfound-one", func(r read) bool { return r.status == 404 && r.body.Freshness == "NOT_FOUND" })

	var stats struct {
		Arrivals          int      `json:"arrivals"`
		UnknownPaths      []string `json:"unknownPaths"`
		UnknownParameters []string `json:"unknownParameters"`
	}
	if _, text := d.do(http.MethodGet, d.upstream+"/_stats"); json.Unmarshal(text, &stats) != nil || stats.Arrivals != 4 || len(stats.UnknownPaths)+len(stats.UnknownParameters) != 0 {
		t.Errorf("upstream: got %+v from %s, want 4 arrivals, no unknown path or parameter", stats, text)
	}
	for _, want := range []string{
		`freshet_rate_limiter_acquired_total{priority="HIGH",source="nexon"} 4`,
		`freshet_settled_total{end="changed",priority="HIGH",source="nexon"} 2`,
		`freshet_settled_total{end="touched",priority="HIGH",source="nexon"} 1`,
		`freshet_settled_total{end="not_found",priority="HIGH",source="nexon"} 2`,
		`freshet_build_info{`,
	} {
		servicetest.WaitFor(t, eventTimeout, "the metric "+want, func() bool { // a request is counted shortly after its result can be read
			_, text := d.do(http.MethodGet, d.api+"/metrics")
			return strings.Contains(string(text), want)
		})
	}
	if _, text := d.do(http.MethodGet, d.api+"/healthz?verbose"); !strings.Contains(string(text), `"ready":true`) || strings.Contains(string(text), `"state":"error"`) {
		t.Errorf("health: got %s, want a text that contains %s, not %s", text, `"ready":true`, `"ok":false`)
	}
	if code, stderr := d.stop(); code != 0 || stderr != "" {
		t.Errorf("stop: got exit %d, want 0: %s", code, stderr)
	}
}

func TestDev_PrintedURLsAnswer(t *testing.T) {
	d := startDev(t, "--no-demo")
	for _, want := range []string{
		"\n\n  Console    " + d.api + "/console ", "Query API  " + d.api + "/v1/nexon/character/{key}", "Metrics", "Upstream   " + d.upstream, "Kafka", "Redis", "in memory",
		"lost on exit. --data-dir DIR", "curl -i " + d.api + "/v1/nexon/character/somebody", "-X POST", "Ready in ",
	} {
		if !strings.Contains(d.text, want) {
			t.Errorf("output of dev: got\n%s\nwant a text that contains %q", d.text, want)
		}
	}
	for _, path := range []string{"/openapi.yaml", "/livez", "/readyz"} {
		if status, _ := d.do(http.MethodGet, d.api+path); status != 200 {
			t.Errorf("%s: got status %d, want 200", path, status)
		}
	}
}

func TestDemo_GeneratesLoad(t *testing.T) {
	t.Parallel()
	d := startDev(t)
	deadline := time.Now().Add(eventTimeout)
	for {
		_, text := d.do(http.MethodGet, d.upstream+"/_stats")
		var stats struct {
			Accepted int `json:"accepted"`
		}
		if err := json.Unmarshal(text, &stats); err != nil {
			t.Fatal(err)
		}
		if stats.Accepted >= 3 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("demo load: got none within the timeout, want some")
		}
	}
}

func TestDev_DataDirPersists(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d := startDev(t, "--no-demo", "--data-dir", dir)
	d.until("a fresh answer", "somebody", isFresh)
	if !strings.Contains(d.text, dir) {
		t.Errorf("output: got\n%s\nwant a text that contains %s", d.text, dir)
	}
	d.stop()
	again := startDev(t, "--no-demo", "--data-dir", dir)
	if r := again.read("somebody"); !isFresh(r) {
		t.Errorf("after a restart: got %d %s, want a fresh answer", r.status, r.body.Freshness)
	}
	again.until("a fresh answer for another", "somebody-else", isFresh)
}

func TestRead_HostileKeysKeepUpstreamPath(t *testing.T) {
	file := filepath.Join(t.TempDir(), "open.yaml") // configuration of a facet that accepts any key and sends it in the path and in the query
	config := `
sources:
  nexon:
    baseURL: https://upstream.example/maplestory/v1
    quota: {policies: [{name: second, limit: 500, window: 1s, target: 450, highReserve: 100}]}
    facets:
      character:
        keyPattern: "(?s).*"
        documents: {basic: {path: "/character/basic?ocid={key}"}}
`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDev(t, "--simulate", "--config", file)
	keys := []string{
		"..%2F", "..%2F..%2F_control", "%3F", "%26", "%26ocid=x", "a%26date=2020-01-01", "a%23b", "a%2Fb%2F", "%25", "%252e%252e",
		"%20", "+", ";", "%EA%B0%80", "a%3D", "{key}", "%5C", "%2e", "a%00b", "%0D%0AHost:x", "..", "%2E%2E", strings.Repeat("k", 10<<10),
	}
	fetched := 0
	for _, key := range keys {
		r := d.read(key)
		switch r.status {
		case 202:
			d.until("an answer for "+key, key, isFresh)
			fetched++
		case 400, 404:
		default:
			t.Errorf("%q: got status %d, want 202, 400 or 404", key, r.status)
		}
	}
	var stats struct {
		Arrivals          int            `json:"arrivals"`
		DistinctKeys      int            `json:"distinctKeys"`
		ByPath            map[string]int `json:"byPath"`
		UnknownPaths      []string       `json:"unknownPaths"`
		UnknownParameters []string       `json:"unknownParameters"`
	}
	_, text := d.do(http.MethodGet, d.upstream+"/_stats")
	if err := json.Unmarshal(text, &stats); err != nil {
		t.Fatal(err)
	}
	if len(stats.UnknownPaths)+len(stats.UnknownParameters) > 0 || len(stats.ByPath) != 1 || stats.DistinctKeys != fetched || fetched < 14 {
		t.Errorf("fetched keys: got %d, upstream %+v; want at least 14, as many distinct keys, 1 path, nothing unknown", fetched, stats)
	}
}

func TestCommand_ErrorsNameTheFix(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	nexon := "FRESHET_CONFIG=" + file(nexonSource)
	for _, c := range []struct {
		args []string
		env  []string
		code int
		want []string
	}{
		{[]string{"dev", "--listen", taken.Addr().String()}, nil, 1, []string{"address already in use", "--listen"}},
		{[]string{"dev", "--listen", "0.0.0.0:0"}, nil, 2, []string{"loopback only"}},
		{[]string{"dev", "--listen", "8080"}, nil, 2, []string{"host:port"}},
		{[]string{"dev", "--upstream", "nexon"}, nil, 2, []string{"scheme://host:port"}},
		{[]string{"dev", "--listen", "127.0.0.1:0", "--data-dir", os.Args[0]}, nil, 1, []string{"--data-dir"}},
		{[]string{"dev", "--nope"}, nil, 2, []string{"unknown flag: --nope", "freshet dev --help"}},
		{[]string{"dev", "extra"}, nil, 2, []string{"extra"}},
		{[]string{"quary"}, nil, 2, []string{`unknown command "quary" (did you mean query?)`}},
		{[]string{"topics"}, nil, 2, []string{"a subcommand is missing", "topics --help"}},
		{[]string{"topics", "lag", "-o", "xml"}, nil, 2, []string{"table, json or jsonl"}},
		{[]string{"worker", "--lane", "middle"}, nil, 2, []string{"high, low or both"}},
		{[]string{"simulate", "--limit", "fast"}, nil, 2, []string{"500/1s"}},
		{[]string{"simulate", "--latency", "slow"}, nil, 2, []string{"30ms-1.7s"}},
		{[]string{"simulate", "--contract", "githup"}, nil, 2, []string{`"githup"`, "github-rest, hubspot"}},
		{[]string{"simulate", "--contract", "ietf", "--speed", "-1"}, nil, 2, []string{"above 0"}},
		{[]string{"simulate", "--contract", "ietf", "--speed", "0"}, nil, 2, []string{"above 0"}},
		{[]string{"simulate", "--speed", "60"}, nil, 2, []string{"--contract"}},
		{[]string{"simulate", "--contract", "ietf", "--limit", "5/1s"}, nil, 2, []string{"--limit", "--contract"}},
		{[]string{"simulate", "--contract", "ietf", "--listen", taken.Addr().String()}, nil, 1, []string{"address already in use", "--listen"}},
		{[]string{"simulate", "--listen", taken.Addr().String()}, nil, 1, []string{"address already in use", "--listen"}},
		{[]string{"query", "--listen", taken.Addr().String()}, []string{nexon}, 1, []string{"address already in use", "--listen", "query.listen"}},
		{[]string{"query", "--listen", "127.0.0.1:0"}, []string{nexon, "FRESHET_DATABASE_URL=postgres://127.0.0.1:1/x"}, 1, []string{"connect to the database", "database.url", "freshet migrate up"}},
		{[]string{"healthcheck", "--addr", "127.0.0.1:1"}, nil, 1, []string{"no response"}},
		{[]string{"config", "check", "--config", "/does/not/exist"}, nil, 1, []string{"/does/not/exist"}},
		{[]string{"config", "check", "--config", file("kafka: {brokerz: []}")}, nil, 1, []string{"kafka.brokerz: unknown setting; did you mean brokers?", "^"}},
		{[]string{"config", "check", "--config", file("sources:\n  mine:\n    timeout: fast\n")}, nil, 1, []string{":3:14", `"fast" is not a duration`, "30s or 1h", "^"}},
		{[]string{"config", "check", "--config", file("redis: {mode: clustr}")}, nil, 1, []string{`redis.mode: "clustr" must be single, sentinel or cluster`, ">   1 | redis", "^"}},
		{
			[]string{"config", "check", "--config", file("sources:\n  mine:\n    quota:\n      policies:\n        - {name: s, limit: 120, window: 1s, target: 120}\n")},
			nil, 1,
			[]string{"sources.mine.quota.policies[0]", "up to 131 calls could reach the upstream", ">   5 |", "baseURL", "facets: a source needs at least one"},
		},
		{[]string{"config", "check"}, []string{"FRESHET_KAFKA_GROUP_PROTOCOL=eager"}, 1, []string{"kafka.groupProtocol", "classic or consumer"}},
		{[]string{"config", "check"}, []string{"FRESHET_DATABASE_ULR=x"}, 1, []string{"FRESHET_DATABASE_ULR", "did you mean FRESHET_DATABASE_"}},
		{[]string{"config", "check"}, []string{nexon, "FRESHET_SOURCES_NEXON_TIMEOUT=soon"}, 1, []string{"FRESHET_SOURCES_NEXON_TIMEOUT", "soon"}},
		{[]string{"config", "check"}, []string{"FRESHET_SOURCES_NEXON_TIMEOUT=1s"}, 1, []string{"FRESHET_SOURCES_NEXON_TIMEOUT", "cannot add one", "--config FILE"}},
		{[]string{"config", "check"}, []string{"FRESHET_DATABASE_URL=mysql://u:hunter2@h/x"}, 1, []string{"database.url", "postgres://user:password@host:port/name"}},
	} {
		code, stdout, stderr := command(t, c.env, c.args...)
		if code != c.code || stdout != "" || !strings.HasPrefix(stderr, "freshet: ") {
			t.Errorf("%q: got exit %d, stdout %q, stderr %q; want %d, none, an error of freshet", c.args, code, stdout, stderr, c.code)
		}
		for _, want := range c.want {
			if !strings.Contains(stderr, want) {
				t.Errorf("%q: got %q, want %q in it", c.args, stderr, want)
			}
		}
		if strings.Contains(stderr, "hunter2") || strings.Contains(stderr, "goroutine") {
			t.Errorf("%q: got %q, want a text without a secret and without a stack trace", c.args, stderr)
		}
	}
}

var update = flag.Bool("update", false, "write the golden files")

func TestDocs_HelpMatchesGoldenFile(t *testing.T) {
	var all strings.Builder
	for _, args := range [][]string{
		{}, {"dev"}, {"query"}, {"worker"}, {"settings"}, {"settings", "get"}, {"settings", "set"}, {"settings", "audit"}, {"entities"}, {"entities", "import"}, {"entities", "list"}, {"entities", "show"}, {"entities", "enable"}, {"entities", "disable"}, {"snapshot"}, {"snapshot", "get"}, {"snapshot", "refresh"}, {"snapshot", "delete"}, {"limiter"}, {"stop"}, {"resume"}, {"dlq", "list"}, {"dlq", "replay"}, {"keys"}, {"keys", "create"}, {"keys", "list"}, {"keys", "revoke"}, {"simulate"}, {"migrate"}, {"migrate", "up"}, {"topics"}, {"topics", "lag"}, {"config"}, {"init"}, {"try"}, {"healthcheck"}, {"version"},
	} {
		code, stdout, stderr := command(t, nil, append(args, "--help")...)
		if code != 0 || stderr != "" {
			t.Errorf("%q: got exit %d, stderr %s; want 0, none", args, code, stderr)
		}
		fmt.Fprintf(&all, "$ freshet %s\n%s\n", strings.Join(append(args, "--help"), " "), stdout)
	}
	const golden = "testdata/help.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(all.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if all.String() != string(want) {
		t.Errorf("help: got\n%s\nwant\n%s\nread the new help, and write it with: go test ./cmd/freshet -run HelpMatches -update",
			all.String(), want)
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
