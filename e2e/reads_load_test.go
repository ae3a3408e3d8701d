package e2e

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
)

// tool returns the path of a program. If it is not installed, the test fails with the command that
// installs it.
func tool(t *testing.T, name, pkg string) string {
	t.Helper()
	for _, at := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(at); err == nil {
			return path
		}
	}
	t.Fatalf("%s is not installed; install it with: apt-get install -y --no-install-recommends %s", name, pkg)
	return ""
}

// keyRange is a range of keys: prefix0, prefix1 and so on.
type keyRange struct {
	prefix string
	count  int
}

func (k keyRange) path(source string, i int) string {
	return fmt.Sprintf("/v1/%s/character/%s%d", source, k.prefix, i%k.count)
}

// readSize is one size of snapshots: the name of the simulator's document that is stored, and the
// number of cold keys (keys that are read at most once, so that no cache has them).
type readSize struct {
	document string
	cold     int
}

// sample returns the content of an entity as JSON text and as the payload that a worker would
// store.
func (s readSize) sample(t *testing.T, upstream *simulator.Simulator, key string) (text []byte, p store.Payload) {
	t.Helper()
	text = []byte(`{"` + s.document + `":` + get(t, upstream, "/maplestory/v1/character/"+s.document+"?ocid="+key) + "}")
	return text, store.Encode(text)
}

func (s readSize) describe(t *testing.T) string {
	t.Helper()
	upstream := simulator.New(simulator.Config{Seed: 1, Identity: true})
	defer upstream.Close()
	text, p := s.sample(t, upstream, "0")
	return fmt.Sprintf("%s: %d bytes of JSON, stored as %d of zstd", s.document, len(text), len(p.Bytes))
}

// storeReads writes fresh snapshots for the hot keys (read repeatedly) and the cold keys (read
// once) into the database.
func (f *fleet) storeReads(t *testing.T, s readSize) (hot, cold keyRange) {
	t.Helper()
	db, err := postgres.Open(f.Context(), f.Database)
	if err != nil {
		f.Fatal(err)
	}
	defer db.Close()
	upstream := simulator.New(simulator.Config{Seed: 1, Identity: true})
	defer upstream.Close()
	type content struct {
		hash    store.Hash
		payload store.Payload
	}
	var contents []content
	for i := range 64 { // 64 different contents are enough for all keys
		text, p := s.sample(t, upstream, fmt.Sprint(i))
		contents = append(contents, content{sha256.Sum256(text), p})
	}
	hot, cold = keyRange{"hot-" + s.document + "-", hotKeys}, keyRange{"cold-" + s.document + "-", s.cold}
	now := time.Now()
	for _, keys := range []keyRange{hot, cold} {
		const most = 500
		for from := 0; from < keys.count; from += most {
			var writes []store.Write
			for i := from; i < min(from+most, keys.count); i++ {
				c := contents[i%len(contents)]
				writes = append(writes, store.Write{
					Entity:  schemas.Entity{Source: f.Source, Facet: "character", Key: fmt.Sprint(keys.prefix, i)},
					Version: 1, CheckedAt: now, Hash: c.hash,
					Payload: func() (store.Payload, error) { return c.payload, nil },
				})
			}
			if _, err := db.Write(f.Context(), writes); err != nil {
				f.Fatal(err)
			}
		}
	}
	for _, sql := range []string{"VACUUM (ANALYZE) snapshot_state, snapshot_payload", "CHECKPOINT"} { // run VACUUM and CHECKPOINT now, so that PostgreSQL does not run them during the measurement
		if _, err := f.db.Exec(f.Context(), sql); err != nil {
			f.Fatal(err)
		}
	}
	return hot, cold
}

// readEncoded reads a URL with the given Accept-Encoding. It returns the response's headers, and
// its body as sent and after decoding.
func (f *fleet) readEncoded(url, encoding string) (header http.Header, wire, plain []byte) {
	f.Helper()
	req, err := http.NewRequestWithContext(f.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		f.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", encoding)
	resp, err := f.client.Do(req)
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if wire, err = io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		f.Fatalf("%s: %d %.300s, %v", url, resp.StatusCode, wire, err)
	}
	var decoder io.Reader
	switch got := resp.Header.Get("Content-Encoding"); got {
	case "zstd":
		z, err := zstd.NewReader(strings.NewReader(string(wire)), zstd.WithDecoderConcurrency(1))
		if err != nil {
			f.Fatal(err)
		}
		defer z.Close()
		decoder = z
	case "gzip":
		if decoder, err = gzip.NewReader(strings.NewReader(string(wire))); err != nil {
			f.Fatal(err)
		}
	case "", "identity":
		return resp.Header, wire, wire
	default:
		f.Fatalf("%s with Accept-Encoding %s: got the encoding %s", url, encoding, got)
	}
	if plain, err = io.ReadAll(decoder); err != nil {
		f.Fatalf("%s in %s: %v", url, encoding, err)
	}
	return resp.Header, wire, plain
}

// onlyAnswer reads a URL and returns the encoding and the length of the response body, which must
// be JSON.
func (f *fleet) onlyAnswer(url, encoding string) answered {
	f.Helper()
	header, wire, plain := f.readEncoded(url, encoding)
	if !json.Valid(plain) {
		f.Fatalf("%s in %s is no JSON: %.100s", url, encoding, plain)
	}
	a := answered{"identity", len(wire)}
	if e := header.Get("Content-Encoding"); e != "" {
		a.encoding = e
	}
	return a
}

const (
	wrkThreads     = 2
	wrkConnections = 64
)

// wrk is the load generator wrk. It uses less CPU than a client in Go.
type wrk struct {
	path, version, dir string
	round              time.Duration
}

func newWrk(t *testing.T, round time.Duration) *wrk {
	t.Helper()
	w := &wrk{path: tool(t, "wrk", "wrk"), dir: t.TempDir(), round: round}
	out, _ := exec.CommandContext(t.Context(), w.path, "--version").CombinedOutput() // wrk exits with code 1 although it prints its version
	if words := strings.Fields(string(out)); len(words) > 1 {
		w.version = strings.Join(words[:2], " ")
	}
	return w
}

// wrkScript is a Lua script that requests the keys prefix0, prefix1 and so on. Each thread requests
// its own part of the keys, and starts again after the last key of that part.
const wrkScript = `
local threads = 0
function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end
local head, tail, count = %q, %q, %d
function init(args)
  share = math.floor(count / %d)
  first, n = number * share, 0
end
function request()
  n = n + 1
  return head .. (first + n %% share) .. tail
end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\nJSON {"requests":%%d,"micros":%%d,"p50":%%d,"p99":%%d,"errors":%%d}\n', summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), e.connect + e.read + e.write + e.status + e.timeout))
end
`

// run sends requests to a server for one round and returns the measurements. pids are the processes
// of the server.
func (w *wrk) run(t *testing.T, at, source string, keys keyRange, encoding string, pids []int) figures {
	t.Helper()
	host, folder, _ := strings.Cut(strings.TrimPrefix(at, "http://"), "/")
	path := strings.TrimSuffix(keys.path(source, 0), "0")
	if folder != "" {
		path = "/" + folder + path
	}
	head := "GET " + path
	tail := " HTTP/1.1\r\nHost: " + host + "\r\nAccept-Encoding: " + encoding + "\r\n\r\n"
	script := filepath.Join(w.dir, "reads.lua")
	text := fmt.Sprintf(wrkScript, head, tail, keys.count, wrkThreads)
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	before := usedBy(t, pids)
	ctx, cancel := context.WithTimeout(t.Context(), w.round+timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, w.path, "--latency", "-t", fmt.Sprint(wrkThreads), "-c", fmt.Sprint(wrkConnections),
		"-d", fmt.Sprint(int(w.round.Seconds()), "s"), "--timeout", "10s", "-s", script, "http://"+host).CombinedOutput()
	after := usedBy(t, pids)
	_, result, found := strings.Cut(string(out), "JSON ")
	var r struct{ Requests, Micros, P50, P99, Errors float64 }
	if err != nil || !found || json.Unmarshal([]byte(result), &r) != nil || r.Requests == 0 {
		t.Fatalf("wrk on %s%s: %v\n%s", host, path, err, out)
	}
	if r.Errors > 0 {
		t.Errorf("%.0f of %.0f reads of %s%s failed\n%s", r.Errors, r.Requests, host, path, out)
	}
	return figures{
		perSecond: r.Requests / r.Micros * 1e6, p50: r.P50 / 1000, p99: r.P99 / 1000,
		cpu: (after.cpu - before.cpu).Seconds() * 1e6 / r.Requests, memory: after.peak,
	}
}

// usedBy returns the sum of the processor time and memory of the processes.
func usedBy(t *testing.T, pids []int) (sum usage) {
	t.Helper()
	for _, pid := range pids {
		u := used(t, pid)
		sum.cpu, sum.peak = sum.cpu+u.cpu, sum.peak+u.peak
	}
	return sum
}
