package query

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// writeFile writes a file below a directory, with a modification time.
func writeFile(t testing.TB, dir, name, text string, modified time.Time) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	temporary := filepath.Join(dir, ".new")
	if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(temporary, modified, modified); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, path); err != nil { // replace the file in one step, so that a reader sees either the old or the new file
		t.Fatal(err)
	}
}

// newStaticRig has the raw facet "character" with a directory of the static files a.xml and b/c.xml.
func newStaticRig(t testing.TB, order string, change ...func(*source.Facet)) (r *rig, dir string) {
	dir = t.TempDir()
	modified := time.Now().Add(-time.Hour)
	writeFile(t, dir, "a.xml", layout, modified)
	writeFile(t, dir, "b/c.xml", "<c/>", modified)
	r = newRawRig(t, append([]func(*source.Facet){func(f *source.Facet) {
		f.KeyPattern = `[a-z/]+\.xml`
		f.Static = &source.Static{Dir: dir, Order: order}
	}}, change...)...)
	return r, dir
}

// rescan searches the directories as the background task of the service does.
func (r *rig) rescan() {
	r.Helper()
	if _, err := r.server.cache.static.scan(); err != nil {
		r.Error(err)
	}
	if err := r.server.cache.static.check(r.Context(), r); err != nil {
		r.Error(err)
	}
}

func (r *rig) wantContent(key, want string) {
	r.Helper()
	if a := r.get(key); a.StatusCode != http.StatusOK || a.text != want {
		r.Errorf("%s: got %d %.60q, want %.60q", key, a.StatusCode, a.text, want)
	}
}

func TestStatic_AsksNeitherStoreNorUpstream(t *testing.T) {
	r, _ := newStaticRig(t, "first")
	r.mu.Lock()
	r.storeErr = errors.New("stopped")
	r.mu.Unlock()
	for range 3 {
		r.wantContent("a.xml", layout)
		r.wantContent("b/c.xml", "<c/>")
	}
	a := r.get("a.xml")
	if a.Header.Get("Freshet-Degraded") != "" || a.Header.Get("Cache-Control") != "public, max-age=31536000, immutable" {
		t.Errorf("got headers %v, want an immutable response that is not degraded", a.Header)
	}
	if r.storeReads() != 0 || len(r.enqueued()) != 0 || testutil.ToFloat64(r.server.metrics.fromStatic) != 7 {
		t.Errorf("got %d reads of the store, %d update requests and %v static reads, want 0, 0 and 7", r.storeReads(), len(r.enqueued()), testutil.ToFloat64(r.server.metrics.fromStatic))
	}
	if a := r.get("d.xml"); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("no file: got %d, want that of the store", a.StatusCode)
	}
}

// A snapshot and a file of the same bytes have the same tag, so a client keeps its copy.
func TestStatic_HasTheTagOfTheSnapshot(t *testing.T) {
	r, dir := newStaticRig(t, "first")
	file := r.get("a.xml").Header.Get("ETag")
	if err := os.Remove(filepath.Join(dir, "a.xml")); err != nil {
		t.Fatal(err)
	}
	r.rescan()
	r.putSnapshot("a.xml", 0, asLayout, func(s *store.Snapshot) { s.ExtractVersion = r.facet().ExtractVersion() })
	if stored := r.get("a.xml").Header.Get("ETag"); stored != file {
		t.Errorf("got the tag %s of the snapshot, want %s", stored, file)
	}
}

func TestStatic_ReplacedWhileServed(t *testing.T) {
	r, dir := newStaticRig(t, "first")
	before := r.get("a.xml")
	writeFile(t, dir, "a.xml", "<new/>", time.Now())
	r.rescan()
	r.wantContent("a.xml", "<new/>")
	if a := r.get("a.xml", "If-None-Match", before.Header.Get("ETag")); a.StatusCode != http.StatusOK {
		t.Errorf("conditional read after a change: got %d, want 200", a.StatusCode)
	}
	writeFile(t, dir, "a.xml", "<truncated", time.Now())
	r.rescan()
	r.wantContent("a.xml", "<new/>") // the new file is invalid, so the last valid version is served
	same := time.Now().Add(-time.Minute)
	writeFile(t, dir, "a.xml", "<one/>", same)
	r.rescan()
	writeFile(t, dir, "a.xml", "<two/>", same) // the new file has the same size and time as the old one, but it is another file
	r.rescan()
	r.wantContent("a.xml", "<two/>")
	writeFile(t, dir, "e/f.xml", "<f/>", same)
	r.rescan()
	r.wantContent("e/f.xml", "<f/>")
	if err := os.RemoveAll(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	r.rescan()
	if a := r.get("b/c.xml"); a.StatusCode != http.StatusAccepted {
		t.Errorf("deleted file: got %d, want 202", a.StatusCode)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := r.server.cache.static.scan(); err == nil {
		t.Error("a missing directory: got no error")
	}
	r.wantContent("a.xml", "<two/>") // while the directory can't be read, its files are still served
}

func TestStatic_LaterRefreshWins(t *testing.T) {
	r, dir := newStaticRig(t, "first")
	version := r.facet().ExtractVersion()
	put := func(age time.Duration, text string, change ...func(*store.Snapshot)) {
		p := store.Encode([]byte(text))
		r.putSnapshot("a.xml", age, append([]func(*store.Snapshot){asLayout, func(s *store.Snapshot) {
			s.Payload, s.Size, s.Hash, s.ExtractVersion, s.Manual = p.Bytes, p.Size, store.Hash([]byte(text + strings.Repeat(" ", 32))[:32]), version, true
		}}, change...)...)
	}
	put(2*time.Hour, "<older/>")
	r.wantContent("a.xml", layout) // the file was modified an hour ago, after the refresh, so the file is served
	put(time.Minute, "<scheduled/>", func(s *store.Snapshot) { s.Manual = false })
	r.wantContent("a.xml", layout)
	put(time.Minute, "<json/>", func(s *store.Snapshot) { s.MediaType = "" })
	r.wantContent("a.xml", layout)
	put(time.Minute, "<refreshed/>")
	r.wantContent("a.xml", "<refreshed/>")
	reads := r.storeReads()
	r.wantContent("a.xml", "<refreshed/>")
	if r.storeReads() != reads {
		t.Error("the newer snapshot is not served from memory")
	}
	r.mu.Lock()
	r.storeErr = errors.New("stopped")
	r.mu.Unlock()
	r.settle("a.xml", 9)
	r.wantContent("a.xml", "<refreshed/>") // the snapshot in memory is newer than the file, so it is served while the database is down
	r.mu.Lock()
	r.storeErr = nil
	r.mu.Unlock()
	writeFile(t, dir, "a.xml", "<deployed/>", time.Now())
	r.rescan()
	r.wantContent("a.xml", "<deployed/>")
}

// A process that starts later learns about newer snapshots without a settle message.
func TestStatic_ChecksStoreAfterStart(t *testing.T) {
	r, _ := newStaticRig(t, "first")
	s := r.putSnapshot("other", time.Minute, asLayout, func(s *store.Snapshot) { s.Entity = entity("a.xml"); s.Manual = true })
	p := store.Encode([]byte("<stored/>"))
	s.Payload, s.Size = p.Bytes, p.Size
	r.mu.Lock()
	r.snapshots[s.Entity] = s
	r.mu.Unlock()
	r.wantContent("a.xml", layout)
	r.rescan()
	r.wantContent("a.xml", "<stored/>")
	r.wantContent("b/c.xml", "<c/>")
}

func TestStatic_StoreDownServesFile(t *testing.T) {
	r, _ := newStaticRig(t, "first")
	r.settle("a.xml", 5) // after this settle message, the database may have a newer snapshot than the file
	r.mu.Lock()
	r.storeErr = errors.New("stopped")
	r.mu.Unlock()
	a := r.get("a.xml")
	if a.text != layout || a.Header.Get("Freshet-Degraded") != "STORE_UNAVAILABLE" || !strings.Contains(a.Header.Get("Cache-Status"), `detail="static; STORE_UNAVAILABLE"`) || a.Header.Get("Cache-Control") != "no-cache" {
		t.Errorf("got %d %.40q, headers %v, want the file, degraded by STORE_UNAVAILABLE", a.StatusCode, a.text, a.Header)
	}
}

func TestStatic_LastIsTheFallback(t *testing.T) {
	r, _ := newStaticRig(t, "last")
	degraded := func(key, want string) {
		t.Helper()
		a := r.get(key)
		if a.StatusCode != http.StatusOK || a.Header.Get("Freshet-Degraded") != want {
			t.Errorf("%s: got %d %s, degraded %q, want %q", key, a.StatusCode, a.text, a.Header.Get("Freshet-Degraded"), want)
		}
	}
	degraded("a.xml", "UPDATING")
	if len(r.enqueued()) != 1 {
		t.Errorf("got the update requests %v, want one", r.enqueued())
	}
	degraded("a.xml?wait=10ms", "WAIT_EXPIRED")
	r.blocked = ReasonStopped
	degraded("a.xml", "STOPPED")
	r.blocked = ""
	r.respond = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Reason: HeldReason("FAILED")} }
	degraded("b/c.xml", "HELD_FAILED")
	r.respond = func(context.Context, UpdateRequest) EnqueueResult {
		return EnqueueResult{Reason: HeldReason("NOT_FOUND")}
	}
	if a := r.get("a.xml"); a.StatusCode != http.StatusNotFound {
		t.Errorf("the upstream has no such document: got %d, want 404", a.StatusCode)
	}
	r.putSnapshot("a.xml", time.Minute, asLayout, func(s *store.Snapshot) { p := store.Encode([]byte("<s/>")); s.Payload, s.Size = p.Bytes, p.Size })
	r.wantContent("a.xml", "<s/>")
	r.mu.Lock()
	r.storeErr, r.respond = errors.New("stopped"), nil
	r.mu.Unlock()
	r.settle("b/c.xml", 9)
	degraded("b/c.xml", "STORE_UNAVAILABLE")
}

// No file name and no symbolic link may lead to a file outside of the directory.
func TestStatic_NothingOutsideIsServed(t *testing.T) {
	outside := t.TempDir()
	writeFile(t, outside, "secret.xml", "<secret/>", time.Now())
	var logged bytes.Buffer
	dir := t.TempDir()
	writeFile(t, dir, "in.xml", "<in/>", time.Now())
	writeFile(t, dir, ".hidden/a.xml", "<hidden/>", time.Now())
	writeFile(t, dir, "..data/a.xml", "<data/>", time.Now())
	writeFile(t, dir, "bad%2fname.xml", "<bad/>", time.Now())
	writeFile(t, dir, "C:a.xml", "<bad/>", time.Now())
	writeFile(t, dir, `back\slash.xml`, "<bad/>", time.Now())
	writeFile(t, dir, "\xc0\xaf.xml", "<bad/>", time.Now())
	writeFile(t, dir, "page.xml", "<html>", time.Now())
	for link, to := range map[string]string{
		"link.xml": filepath.Join(outside, "secret.xml"), "up.xml": "../" + filepath.Base(outside) + "/secret.xml", "dirlink": outside,
		"inner.xml": "in.xml", "mounted.xml": "..data/a.xml", "loop.xml": "loop.xml", "etc.xml": "/etc/passwd",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	r, _ := newStaticRig(t, "first", func(f *source.Facet) {
		f.KeyPattern = `[^x\x00]+\.xml`
		f.KeyPattern = `[a-zA-Z0-9/.:%\\_-]+\.xml`
		f.Static = &source.Static{Dir: dir}
	})
	r.server.cache.static.scanner.log = slog.New(slog.NewTextHandler(&logged, nil))
	r.server.cache.static.scanner.dirs[0].rejected = nil
	r.rescan()
	files := *r.server.cache.static.files.Load()
	got := map[string]bool{}
	for e, file := range files {
		got[e.Key] = true
		if text, err := file.appendText(nil); err != nil || strings.Contains(string(text), "secret") || strings.Contains(string(text), "root:") {
			t.Errorf("%s: got %q, %v, want no content from outside of the directory", e.Key, text, err)
		}
	}
	for _, key := range []string{"in.xml", "inner.xml", "mounted.xml"} {
		if !got[key] {
			t.Errorf("%s is not served", key)
		}
	}
	for key := range got {
		if strings.HasPrefix(key, ".") || strings.HasPrefix(key, "dirlink") || key == "link.xml" || key == "up.xml" || key == "etc.xml" || key == "loop.xml" || key == "page.xml" {
			t.Errorf("%s is served", key)
		}
	}
	for _, key := range []string{"..%2f" + filepath.Base(outside) + "%2fsecret.xml", "..%2Fsecret.xml", "%2e%2e/secret.xml", "/secret.xml", "//host/secret.xml", "%5c..%5csecret.xml", "a%00.xml", "%c0%ae%c0%ae/secret.xml"} {
		if a := r.get(key); a.StatusCode == http.StatusOK || strings.Contains(a.text, "secret/>") {
			t.Errorf("%s: got %d %s, want an error without content", key, a.StatusCode, a.text)
		}
	}
	lines := strings.Count(logged.String(), "static file rejected")
	r.rescan()
	if again := strings.Count(logged.String(), "static file rejected"); lines < 5 || again != lines {
		t.Errorf("got %d log lines of rejected files, and %d after a second scan, want at least 5, and no new line", lines, again)
	}
}

func TestStatic_StartNamesProblem(t *testing.T) {
	large := t.TempDir()
	writeFile(t, large, "a.xml", "<a>"+strings.Repeat(" ", 100)+"</a>", time.Now())
	for want, static := range map[string]source.Static{
		"sources.nexon.facets.character.static: ": {Dir: filepath.Join(large, "missing")},
		"increase maxSize":                        {Dir: large, MaxSize: 50},
	} {
		config := source.DefaultConfig()
		config.BaseURL = "http://upstream.example"
		f := source.DefaultFacet()
		rawFacet(&f)
		f.KeyPattern, f.Static, f.Documents = `[a-z]+\.xml`, &static, map[string]source.Document{"d": {Path: "/{key}"}}
		config.Facets = map[string]source.Facet{"character": f}
		src, err := source.New("nexon", config, nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		_, err = newStaticFiles(map[string]Source{"nexon": limitedSource{src, nil}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one that contains %q", err, want)
		}
	}
}

// serveHit returns a function that serves one request from the cache.
func serveHit(b *testing.B, r *rig, key string) func() {
	req := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/v1/nexon/character/"+key, nil)
	req.Header.Set("Accept-Encoding", "zstd")
	w := &discardWriter{http.Header{}}
	return func() {
		clear(w.h)
		r.server.ServeHTTP(w, req)
		if w.h["Etag"] == nil {
			b.Fatal("no snapshot")
		}
	}
}

// compareHits measures two kinds of cache hits in turn, each several times. It reports the rate of the
// first kind divided by that of the second kind.
func compareHits(b *testing.B, name string, first, second func()) {
	const turn = 1000
	serve, took, turns := []func(){first, second}, [2]time.Duration{}, 0
	for b.Loop() {
		for i := range serve {
			which := (i + turns) % 2
			began := time.Now()
			for range turn {
				serve[which]()
			}
			took[which] += time.Since(began)
		}
		turns++
	}
	b.ReportMetric(float64(took[0].Nanoseconds())/float64(turns*turn), "ns/"+strings.Split(name, ":")[0])
	b.ReportMetric(float64(took[1])/float64(took[0]), name)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHits compares the rate of hits of a static file with that of a raw snapshot in memory. It also
// compares a raw snapshot with a JSON snapshot of the same size.
func BenchmarkHits(b *testing.B) {
	b.Run("static", func(b *testing.B) {
		static, _ := newStaticRig(b, "first")
		memory := newRawRig(b)
		memory.putSnapshot("a.xml", time.Minute, asLayout)
		compareHits(b, "static:memory", serveHit(b, static, "a.xml"), serveHit(b, memory, "a.xml"))
	})
	b.Run("raw", func(b *testing.B) {
		raw, json := newRawRig(b), newRig(b)
		raw.putSnapshot("a", time.Minute, asLayout)
		json.putSnapshot("a", time.Minute, func(s *store.Snapshot) { // the same payload, as JSON would be stored
			s.Payload, s.Size = encodedLayout.Bytes, encodedLayout.Size
		})
		compareHits(b, "raw:json", serveHit(b, raw, "a"), serveHit(b, json, "a"))
	})
}
