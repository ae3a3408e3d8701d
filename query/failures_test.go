package query

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
)

func withVersion(n int64, hash byte) func(*store.Snapshot) {
	return func(s *store.Snapshot) { s.Version, s.Hash[0] = n, hash }
}

// slow blocks each store read that begins from now on, until the returned function is called. A
// read that begins after that call is not blocked.
func (r *rig) slow() (pass func()) {
	hold := make(chan struct{})
	r.set(func() { r.hold = hold })
	return func() {
		r.set(func() { r.hold = nil })
		close(hold)
	}
}

// set changes fields of the rig under its lock, while requests are in flight.
func (r *rig) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// overwrite stores a snapshot without publishing a settle message.
func (r *rig) overwrite(key string, change func(*store.Snapshot)) {
	r.set(func() {
		s := r.snapshots[entity(key)]
		s.CheckedAt, s.FetchedAt = time.Now().UTC(), time.Now().UTC()
		change(&s)
		r.snapshots[entity(key)] = s
	})
}

func TestEvents_ReportAChangeAfterAFailedRead(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 0, withVersion(7, 1))
	f := r.follow("a", "")
	f.expect("changed", store.Fresh)
	pass := r.slow()
	n := r.storeReads()
	r.putSnapshot("a", 0, withVersion(9, 2))
	servicetest.WaitFor(t, testTimeout, "a read slower than fallbackTimeout", func() bool { return r.storeReads() > n })
	time.AfterFunc(3*fallbackTimeout, pass)
	f.expect("changed", store.Fresh)

	r.set(func() { r.storeErr = errors.New("a hiccup") })
	n = r.storeReads()
	r.putSnapshot("a", 0, withVersion(11, 3))
	servicetest.WaitFor(t, testTimeout, "a failing read", func() bool { return r.storeReads() > n })
	r.set(func() { r.storeErr = nil })
	f.expect("changed", store.Fresh)
}

func TestWait_DoesNotReturnAnOutdatedEntry(t *testing.T) {
	for method, path := range map[string]string{http.MethodGet: "", http.MethodPost: "/refresh"} {
		r := newRig(t)
		r.putSnapshot("a", 2*time.Hour, withVersion(7, 1))
		r.get("a")
		n := len(r.enqueued())
		answered := make(chan answer, 1)
		go func() { answered <- r.do(method, "/v1/nexon/character/a"+path+"?wait=20s") }()
		servicetest.WaitFor(t, testTimeout, "an enqueued request", func() bool { return len(r.enqueued()) == n+1 })
		pass := r.slow()
		s := r.putSnapshot("a", 0, withVersion(101, 2))
		time.AfterFunc(3*fallbackTimeout, pass)
		if a := <-answered; a.StatusCode != 200 || a.body.Freshness != store.Fresh || !a.body.LastCheckedAt.Equal(s.CheckedAt) {
			t.Errorf("%s: got %d %s, want 200 FRESH", method, a.StatusCode, a.text)
		}
		if got := len(r.enqueued()); got != n+1 {
			t.Errorf("%s: got %d update requests, want 1", method, got-n)
		}
	}
}

func TestWait_ReadsOnceMoreAtTheTimeout(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 2*time.Hour, withVersion(7, 1))
	answered := make(chan answer, 1)
	go func() { answered <- r.get("a?wait=1s") }()
	servicetest.WaitFor(t, testTimeout, "an enqueued request", func() bool { return len(r.enqueued()) > 0 })
	r.overwrite("a", func(s *store.Snapshot) { s.Version = 101 }) // a snapshot stored by a worker that crashed before it settled the request
	r.server.cache.invalidate(entity("a"))                        // make the cached entry outdated, as if its TTL had expired
	if a := <-answered; a.body.Freshness != store.Fresh {
		t.Errorf("got %s, want FRESH", a.text)
	}
}

func TestWait_PollsWhileDisconnected(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 2*time.Hour, withVersion(7, 1))
	answered := make(chan answer, 1)
	r.server.onConnection(false)
	go func() { answered <- r.get("a?wait=20s") }()
	servicetest.WaitFor(t, testTimeout, "an enqueued request", func() bool { return len(r.enqueued()) > 0 })
	r.overwrite("a", func(s *store.Snapshot) { s.Version = 101 }) // the request was settled, but the settle message was lost
	if a := <-answered; a.body.Freshness != store.Fresh {
		t.Errorf("got %s, want FRESH", a.text)
	}
}

func TestSettle_EnqueuesNothingWhileReadsFail(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 2*time.Hour, withVersion(7, 1))
	r.get("a")
	r.set(func() { r.storeErr = errors.New("reads fail, writes go on") })
	for i := range int64(20) { // while the store fails, a read after a settle message must not enqueue the next refresh
		r.settle("a", 200+i)
		if a := r.get("a"); a.StatusCode != 200 || a.body.Refresh.Queued || a.body.Refresh.Reason != ReasonDown {
			t.Errorf("got %d %s, want 200", a.StatusCode, a.text)
		}
	}
	if n := len(r.enqueued()); n != 1 {
		t.Errorf("got %d update requests, want 1", n)
	}
}

func TestCache_DoesNotShareALoadFromBeforeAReconnect(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 2*time.Hour, withVersion(7, 1))
	r.server.onConnection(false)
	pass := r.slow()
	early := make(chan answer, 1)
	go func() { early <- r.get("a") }()
	servicetest.WaitFor(t, testTimeout, "the early read", func() bool { return r.storeReads() == 1 })
	r.set(func() { r.hold = nil })
	r.overwrite("a", func(s *store.Snapshot) { s.Version = 9 }) // a snapshot is stored while the settle subscription is disconnected, so its settle message is lost
	r.server.onConnection(true)
	if a := r.get("a"); a.body.Freshness != store.Fresh {
		t.Errorf("after the reconnect: got %s, want FRESH", a.text)
	}
	pass()
	<-early
	if a := r.get("a"); a.body.Freshness != store.Fresh {
		t.Errorf("the overtaken load was cached: got %s, want FRESH", a.text)
	}
}

func TestCache_EarlierLoadDoesNotReplaceALaterOne(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute, withVersion(7, 1))
	pass := r.slow()
	early := make(chan answer, 1)
	go func() { early <- r.get("a") }()
	servicetest.WaitFor(t, testTimeout, "the early read", func() bool { return r.storeReads() == 1 })
	r.set(func() { r.hold = nil })
	r.overwrite("a", func(s *store.Snapshot) { s.Version = 9 }) // simulate a snapshot that is stored and whose request is not settled yet
	r.server.cache.getAll(t.Context(), everything.Name, []schemas.Entity{entity("a")}, r.facet())
	pass()
	<-early
	if e, _, err := r.server.cache.get(t.Context(), everything.Name, entity("a"), r.facet()); err != nil || e.Version != 9 {
		t.Errorf("version: got %d, %v, want 9", e.Version, err)
	}
}

func TestBatch_FailsOnlyForAllItems(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("good", time.Minute)
	r.putSnapshot("bad", time.Minute, func(s *store.Snapshot) { s.Encoding = "brotli" })
	for _, as := range []string{"", "gzip", "zstd"} {
		a := r.do(http.MethodGet, "/v1/nexon/character?key=good&key=bad&key=good", "Accept-Encoding", as)
		if a.StatusCode != 200 || len(a.body.Items) != 3 || a.body.Items[1].Status != 500 || string(a.body.Items[2].Snapshot) != content {
			t.Errorf("%q: got %d %s, want 200", as, a.StatusCode, a.text)
		}
	}
	if a := r.do(http.MethodGet, "/v1/nexon/character?key=good&key=%zz&key=c"); a.StatusCode != 400 {
		t.Errorf("a key with an invalid percent-encoding: got %d %s, want 400", a.StatusCode, a.text)
	}
	pass := r.slow()
	defer pass()
	r.settle("good", 9)
	if a := r.do(http.MethodGet, "/v1/nexon/character?key=good"); a.StatusCode != 200 || a.body.Items[0].Status != 200 { // the batch must serve the cached entry and not wait for the blocked store
		t.Errorf("got %d %s, want 200", a.StatusCode, a.text)
	}
}

func TestResponse_AbortedByAPanicIsLogged(t *testing.T) {
	r := newRig(t)
	var log strings.Builder
	r.server.log = slog.New(slog.NewTextHandler(&log, nil))
	r.putSnapshot("a", 0)
	defer func() {
		if p := recover(); p != http.ErrAbortHandler || !strings.Contains(log.String(), "boom") { //nolint:errorlint // net/http compares the value
			t.Errorf("panic: got %v and the log %s, want %v and boom", p, log.String(), http.ErrAbortHandler)
		}
	}()
	r.server.ServeHTTP(&panickingWriter{httptest.NewRecorder()}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/nexon/character/a", nil))
}

type panickingWriter struct{ *httptest.ResponseRecorder }

func (p *panickingWriter) Write([]byte) (int, error) { panic("boom") }

func TestShutdown_ClosesUnreadResponses(t *testing.T) {
	r := newRig(t)
	p := store.Encode([]byte(`{"d":"` + strings.Repeat("0123456789abcdef", 1<<21) + `"}`))
	r.putSnapshot("a", 0, func(s *store.Snapshot) { s.Payload, s.Size = p.Bytes, p.Size })
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.server.serveUntil(ctx, l, 200*time.Millisecond) }()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("GET /v1/nexon/character/a HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	servicetest.WaitFor(t, testTimeout, "the read", func() bool { return r.storeReads() == 1 })
	stop()
	if err := <-ended; err != nil {
		t.Errorf("shutdown with a client that never reads: got %v, want no error", err)
	}
}

func TestRefresh_NoticesADisconnectAfterABody(t *testing.T) {
	r := newRig(t)
	server := httptest.NewServer(r.server)
	defer server.Close()
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/v1/nexon/character/a/refresh?wait=30s", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	servicetest.WaitFor(t, testTimeout, "it waits", func() bool { return r.server.waits.set.count.Load() == 1 })
	leave()
	<-done
	servicetest.WaitFor(t, testTimeout, "it has left", func() bool { return r.server.waits.set.count.Load() == 0 })
}

func TestEvents_ReportDeletionAndKeepForEnd(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 0, withVersion(7, 1))
	f := r.follow("a", "")
	f.expect("changed", store.Fresh)
	r.set(func() { delete(r.snapshots, entity("a")) })
	r.settle("a", 8)
	f.expect("state", store.Updating)
	r.putSnapshot("k", 0, withVersion(9, 1), func(s *store.Snapshot) { s.FetchedAt = time.Now().Add(-200 * time.Hour) })
	if e := r.follow("k", "").expect("state", store.Updating); e.data.ETag != nil {
		t.Errorf("ETag that no read returns: got %s, want none", *e.data.ETag)
	}
}
