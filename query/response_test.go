package query

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
)

// pipeListener is a listener with unbuffered connections: bytes that the client does not read
// remain in the server.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// sendRequest sends a request and does not read the response.
func (p *pipeListener) sendRequest(t *testing.T, path, encoding string) net.Conn {
	t.Helper()
	mine, theirs := net.Pipe()
	p.conns <- theirs
	if _, err := fmt.Fprintf(mine, "GET %s HTTP/1.1\r\nHost: x\r\nAccept-Encoding: %s\r\n\r\n", path, encoding); err != nil {
		t.Fatal(err)
	}
	return mine
}

// listen serves the query service on a pipeListener until the test ends.
func (r *rig) listen(t *testing.T) *pipeListener {
	t.Helper()
	p := newPipeListener()
	r.serveOn(t, p)
	return p
}

// serveOn serves the query service on a listener until the test ends.
func (r *rig) serveOn(t *testing.T, l net.Listener) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.server.serveUntil(ctx, l, time.Second) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// large is 1 MB of JSON that zstd compresses to some kilobytes; dense is 1 MB that it can't
// compress. Both are encoded once and outside of any synctest bubble, because the zstd codec keeps
// channels between its calls.
var (
	large = strings.Repeat(`{"name":"a","level":200},`, 40_000)
	dense = func() string {
		random, b := rand.New(rand.NewPCG(5, 6)), make([]byte, 1<<20)
		for i := range b {
			b[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[random.IntN(64)]
		}
		return string(b)
	}()
	largeStored = store.Encode([]byte(`{"d":[` + strings.TrimSuffix(large, ",") + `]}`))
	denseStored = store.Encode([]byte(`{"d":"` + dense + `"}`))
)

func withPayload(p store.Payload) func(*store.Snapshot) {
	return func(s *store.Snapshot) { s.Payload, s.Size = p.Bytes, p.Size }
}

// storeHundred stores 100 snapshots and returns the path that reads them.
func (r *rig) storeHundred(prefix string, p store.Payload) string {
	r.Helper()
	var path strings.Builder
	path.WriteString("/v1/nexon/character?")
	for i := range 100 {
		key := prefix + strconv.Itoa(i)
		r.putSnapshot(key, time.Minute, withPayload(p))
		fmt.Fprintf(&path, "key=%s&", key)
	}
	return strings.TrimSuffix(path.String(), "&")
}

func (b *responseBudget) now() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reserved
}

func heapSize() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Eight clients request batches of 100 documents of 1 MB, and do not read the responses. Unpacked,
// the documents would need 800 MB of memory; each response may unpack only one document at a time.
func TestBatch_UnreadHoldsOneDocumentEach(t *testing.T) {
	for _, as := range []string{"identity", "gzip", "zstd"} {
		t.Run(as, func(t *testing.T) {
			r := newRig(t, func(r *rig) { r.config.Memory = 16 << 20 })
			p := r.listen(t)
			path := r.storeHundred("", largeStored)
			before := heapSize()
			for range 8 {
				defer func(c net.Conn) { _ = c.Close() }(p.sendRequest(t, path, as))
			}
			item := r.server.entryOf("0")
			each := 100 * (item.responseSize(&item.bodies[zstandard]) + 8) // an item may need up to 8 bytes more than item 0, because the length of timestamps varies
			if as != "zstd" {
				each += int64(largeStored.Size)
			}
			servicetest.WaitFor(t, testTimeout, "eight responses in flight", func() bool { return r.server.responder.budget.now() > 7*each })
			if got := r.server.responder.budget.now(); got > 8*each {
				t.Errorf("budget: got %d bytes, want at most %d", got, 8*each)
			}
			if grown := heapSize() - before; grown > 64<<20 {
				t.Errorf("growth of the heap: got %d MB, want at most 64", grown>>20)
			}
			ninth := p.sendRequest(t, "/v1/nexon/character/0", as)
			defer func() { _ = ninth.Close() }()
			resp, err := http.ReadResponse(bufio.NewReader(ninth), nil)
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("ninth client: got %v, %v, want status 200", resp, err)
			}
			defer func() { _ = resp.Body.Close() }()
			if n, err := io.Copy(io.Discard, resp.Body); err != nil || n == 0 {
				t.Errorf("bytes of the ninth client: got %d, %v, want some", n, err)
			}
		})
	}
}

// entryOf returns the cache entry of a key, and waits for it if necessary.
func (s *Server) entryOf(key string) *entry {
	for {
		if e, ok := s.cache.entries.GetIfPresent(entity(key)); ok && e != nil {
			return e
		}
		runtime.Gosched()
	}
}

func TestResponseBudget_RefusesAClientAndThenAll(t *testing.T) {
	r := newRig(t, func(r *rig) { r.config.ResponseMemory, r.config.Memory = 7*int64(len(denseStored.Bytes)), 64<<20 })
	p := r.listen(t)
	r.putSnapshot("a", time.Minute, withPayload(denseStored))
	open := func(client string, want int64) net.Conn {
		r.set(func() { r.client.Name = client })
		c := p.sendRequest(t, "/v1/nexon/character/a", "zstd")
		servicetest.WaitFor(t, testTimeout, "a response of "+client, func() bool { return r.server.responder.budget.now() >= want*int64(len(denseStored.Bytes)) })
		return c
	}
	for i := range int64(3) { // three responses fill the half of the budget that one client may use
		defer func(c net.Conn) { _ = c.Close() }(open("ip:a", i+1))
	}
	refused := r.get("a", "Accept-Encoding", "zstd")
	if refused.StatusCode != 503 || refused.body.Code != "response-memory" || refused.Header.Get("Retry-After") != "1" || !strings.Contains(refused.text, "this client") {
		t.Errorf("beyond a client's share: got %d %.300s, want 503 response-memory", refused.StatusCode, refused.text)
	}
	for i := range int64(3) {
		defer func(c net.Conn) { _ = c.Close() }(open("ip:b", i+4))
	}
	r.set(func() { r.client.Name = "ip:c" })
	refused = r.get("a", "Accept-Encoding", "zstd")
	if refused.StatusCode != 503 || !strings.Contains(refused.text, "query.maxResponseMemory") {
		t.Errorf("beyond the budget of all: got %d %.300s, want 503", refused.StatusCode, refused.text)
	}
	if a := r.do(http.MethodGet, "/v1/nexon/character?key=a&key=a", "Accept-Encoding", "gzip"); a.StatusCode != 503 || a.body.Code != "response-memory" {
		t.Errorf("a batch: got %d %.300s, want 503 response-memory", a.StatusCode, a.text)
	}
	r.putSnapshot("small", time.Minute)
	for _, key := range []string{"small", "small?wait=1s"} {
		if a := r.get(key); a.StatusCode != 200 {
			t.Errorf("%s, which is not counted: got %d, want 200", key, a.StatusCode)
		}
	}
}

// A host with an IPv6 network can use many addresses. All addresses of the network must share the
// budget of one client.
func TestResponseBudget_CountsAnIPv6NetworkAsOneClient(t *testing.T) {
	r := newRig(t, func(r *rig) { r.config.ResponseMemory, r.config.Memory = 2*int64(len(denseStored.Bytes)), 64<<20 })
	p := r.listen(t)
	r.putSnapshot("a", time.Minute, withPayload(denseStored))
	r.set(func() { r.client.Name = "unauthenticated@2001:db8::1" })
	defer func(c net.Conn) { _ = c.Close() }(p.sendRequest(t, "/v1/nexon/character/a", "zstd"))
	servicetest.WaitFor(t, testTimeout, "a response in flight", func() bool { return r.server.responder.budget.now() > 0 })
	r.set(func() { r.client.Name = "unauthenticated@2001:db8::2" })
	for _, path := range []string{"/v1/nexon/character/a", "/v1/nexon/character?key=a"} {
		if got := r.do(http.MethodGet, path, "Accept-Encoding", "zstd"); got.StatusCode != 503 || !strings.Contains(got.text, "this client") {
			t.Errorf("%s, another address of the network: got %d %.200s, want 503 for this client", path, got.StatusCode, got.text)
		}
	}
}

func TestResponseBudget_AllowsALargerResponseAlone(t *testing.T) {
	r := newRig(t, func(r *rig) { r.config.ResponseMemory, r.config.Memory = 1<<10, 64<<20 })
	r.putSnapshot("a", time.Minute, withPayload(denseStored))
	for _, as := range []string{"zstd", "gzip", "identity"} {
		for range 2 {
			if a := r.get("a", "Accept-Encoding", as); a.StatusCode != 200 || len(a.body.Snapshot) != denseStored.Size {
				t.Errorf("%s: got %d with %d bytes, want 200", as, a.StatusCode, len(a.body.Snapshot))
			}
		}
	}
	if got := r.server.responder.budget; got.now() != 0 || len(got.clients) != 0 {
		t.Errorf("budget of an idle server: got %d bytes of %d clients, want none", got.now(), len(got.clients))
	}
}

// A response returns its memory to the budget, even after an error.
func TestResponseBudget_IsReturnedByBrokenResponses(t *testing.T) {
	r := newRig(t, func(r *rig) { r.config.Memory = 64 << 20 })
	p := r.listen(t)
	path := r.storeHundred("", largeStored)
	for _, target := range []string{path, "/v1/nexon/character/0"} {
		c := p.sendRequest(t, target, "identity")
		servicetest.WaitFor(t, testTimeout, "a response in flight", func() bool { return r.server.responder.budget.now() > 0 })
		_ = c.Close()
		servicetest.WaitFor(t, testTimeout, "the return of its memory", func() bool { return r.server.responder.budget.now() == 0 })
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	func() {
		defer func() {
			if p := recover(); p != http.ErrAbortHandler { //nolint:errorlint // net/http compares the value
				t.Errorf("panic: got %v, want %v", p, http.ErrAbortHandler)
			}
		}()
		r.server.ServeHTTP(&panickingWriter{httptest.NewRecorder()}, req)
	}()
	if got := r.server.responder.budget.now(); got != 0 {
		t.Errorf("budget after a panic: got %d bytes, want 0", got)
	}
}

func TestResponse_UnreadIsAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.config.Memory = 64 << 20 })
		p := r.listen(t)
		r.putSnapshot("a", time.Minute, withPayload(denseStored))
		for _, path := range []string{"/v1/nexon/character/a", "/v1/nexon/character?key=a&key=a"} {
			before := testutil.ToFloat64(r.server.metrics.timedOut)
			began := time.Now()
			c := p.sendRequest(t, path, "zstd")
			synctest.Wait()
			if r.server.responder.budget.now() == 0 {
				t.Fatalf("%s: budget in use: got 0, want more", path)
			}
			time.Sleep(writeTimeout) // this is virtual time, because the test runs in a synctest bubble
			synctest.Wait()
			if got := r.server.responder.budget.now(); got != 0 {
				t.Errorf("%s: budget: got %d bytes after %v, want 0", path, got, time.Since(began))
			}
			if got := testutil.ToFloat64(r.server.metrics.timedOut) - before; got != 1 {
				t.Errorf("%s: timed-out responses: got %v, want 1", path, got)
			}
			_ = c.Close()
		}
	})
}

// A client that reads 8 KiB/s needs minutes for a megabyte, longer than any single deadline. It must
// still receive the whole response.
func TestResponse_ReadSlowlyIsReadToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.config.Memory = 64 << 20 })
		p := r.listen(t)
		r.putSnapshot("a", time.Minute, withPayload(denseStored))
		for _, path := range []string{"/v1/nexon/character/a", "/v1/nexon/character?key=a&key=a"} {
			began := time.Now()
			c := p.sendRequest(t, path, "zstd")
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			read, piece := int64(0), make([]byte, 8<<10)
			for {
				n, err := io.ReadFull(resp.Body, piece)
				read += int64(n)
				if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && read == resp.ContentLength {
					break
				}
				if err != nil {
					t.Fatalf("%s: bytes: got %d after %v, %v, want %d", path, read, time.Since(began), err, resp.ContentLength)
				}
				time.Sleep(time.Second) // this is virtual time, because the test runs in a synctest bubble
			}
			if read != resp.ContentLength || time.Since(began) < time.Minute {
				t.Errorf("%s: bytes: got %d in %v, want %d in at least 1m0s", path, read, time.Since(began), resp.ContentLength)
			}
			_ = c.Close()
		}
	})
}
