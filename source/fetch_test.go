package source

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// testPermits issues permits and counts them.
type testPermits struct {
	acquired, spent, released atomic.Int64
	unfinished                atomic.Int64                    // spent permits for which Finished was not called
	limit                     int64                           // maximum number of permits; 0 means no limit
	onSpend                   func(ctx context.Context) error // result of Spend; nil means that Spend succeeds
}

var errNoPermits = errors.New("no permit left")

func (b *testPermits) Acquire(context.Context, Call) (Permit, error) {
	if n := b.acquired.Add(1); b.limit > 0 && n > b.limit {
		return nil, errNoPermits
	}
	return &testPermit{b: b}, nil
}

type testPermit struct {
	b          *testPermits
	once       sync.Once
	unfinished atomic.Int32
}

func (t *testPermit) Spend(ctx context.Context) error {
	if t.b.onSpend != nil {
		if err := t.b.onSpend(ctx); err != nil {
			return err
		}
	}
	t.once.Do(func() { t.b.spent.Add(1) })
	t.unfinished.Add(1)
	t.b.unfinished.Add(1)
	return nil
}

func (t *testPermit) Credential() string { return "" }

func (t *testPermit) Written()  {}
func (t *testPermit) Answered() {}

// Finished panics if it is called more often than Spend, because each spent permit must be finished
// only once.
func (t *testPermit) Finished(CallResult) {
	if t.unfinished.Add(-1) < 0 {
		panic("a permit was finished that was not spent, or once more")
	}
	t.b.unfinished.Add(-1)
}

func (t *testPermit) Release() { t.once.Do(func() { t.b.released.Add(1) }) }

func fetch(t *testing.T, ctx context.Context, s *Source, permits Permits) (*Responses, error) {
	t.Helper()
	p, err := s.Plan(Request{Facet: "character", Key: "a"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Fetch(ctx, p, permits)
	if b, ok := permits.(*testPermits); ok {
		if n := b.unfinished.Load(); n != 0 {
			t.Errorf("got %d spent permits without Finished, want 0", n)
		}
	}
	return a, err
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

func TestFetch_UsesOnePermitAndKeepsBody(t *testing.T) {
	var arrivals atomic.Int64
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		arrivals.Add(1)
		if got := r.Header.Get("X-Api-Key"); got != "secret" {
			t.Errorf("got credential %q", got)
		}
		if got := r.Header.Get("Accept-Encoding"); got != "gzip" {
			t.Errorf("got Accept-Encoding %q", got)
		}
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write([]byte("compressed bytes"))
	})
	b := &testPermits{}
	a, err := fetch(t, t.Context(), testSource(t, url, nil), b)
	if err != nil || a.Calls != 1 || a.Bytes() != len("compressed bytes") {
		t.Fatalf("got %+v, error %v", a, err)
	}
	if arrivals.Load() != 1 || b.spent.Load() != 1 || b.acquired.Load() != 1 {
		t.Errorf("got %d arrivals with %d spent of %d acquired permits", arrivals.Load(), b.spent.Load(), b.acquired.Load())
	}
}

// flaky starts a server that answers the first request on each connection and closes the
// connection when a second request arrives.
func flaky(t *testing.T, seen ...func(r *http.Request)) (url string, arrivals *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arrivals = &atomic.Int64{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				r := bufio.NewReader(conn)
				for n := range 2 {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					for _, see := range seen {
						see(req)
					}
					_, _ = io.Copy(io.Discard, req.Body)
					arrivals.Add(1)
					if n == 0 {
						_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
					}
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return "http://" + l.Addr().String(), arrivals
}

func TestFetch_ResendNeedsSecondPermit(t *testing.T) {
	url, arrivals := flaky(t)
	s := testSource(t, url, nil)
	defer s.Close()
	for round := range 50 {
		b := &testPermits{}
		before := arrivals.Load()
		a, err := fetch(t, t.Context(), s, b)
		if err != nil {
			t.Fatal(err)
		}
		if got := arrivals.Load() - before; got != b.spent.Load() || int64(a.Calls) != got {
			t.Fatalf("round %d: got %d arrivals with %d permits and %d calls counted", round, got, b.spent.Load(), a.Calls)
		}
		if o := s.Read(a, time.Now()); o.Class != OK {
			t.Fatalf("round %d: got outcome %+v", round, o)
		}
	}
	if arrivals.Load() < 90 {
		t.Errorf("got %d arrivals in 50 rounds: no request was resent, so the test checks nothing", arrivals.Load())
	}
}

func TestFetch_NoResendWithoutPermit(t *testing.T) {
	url, arrivals := flaky(t)
	s := testSource(t, url, nil)
	defer s.Close()
	if _, err := fetch(t, t.Context(), s, &testPermits{}); err != nil {
		t.Fatal(err)
	}
	a, err := fetch(t, t.Context(), s, &testPermits{limit: 1})
	if err != nil || a.Calls != 1 || arrivals.Load() != 2 {
		t.Errorf("got %+v, error %v after %d arrivals", a, err, arrivals.Load())
	}
	if o := s.Read(a, time.Now()); o.Class != Transient || !errors.Is(o.Err, errNoPermits) {
		t.Errorf("got outcome %+v", o)
	}
}

func TestFetch_NoPermitSendsNothing(t *testing.T) {
	var arrivals, inFlight atomic.Int64
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		arrivals.Add(1)
		inFlight.Add(1)
		defer inFlight.Add(-1)
		_, _ = w.Write([]byte("{}"))
	})
	s := testSource(t, url, nil)
	refusal := errors.New("satisfied meanwhile")
	sent := int64(0)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range 4 {
		wg.Go(func() {
			for i := range 500 {
				b := &testPermits{}
				if i%5 != 0 { // refuse four of five calls; the fifth leaves an idle connection to reuse
					b.onSpend = func(context.Context) error { return refusal }
				}
				a, err := fetch(t, t.Context(), s, b)
				mu.Lock()
				if b.onSpend == nil {
					sent += b.spent.Load()
				} else if !errors.Is(err, refusal) || a != nil || b.released.Load() != 1 {
					t.Errorf("no permit: got %+v, error %v, %d released permits", a, err, b.released.Load())
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if arrivals.Load() != sent {
		t.Errorf("got %d arrivals with %d permits", arrivals.Load(), sent)
	}
}

func TestFetch_SentCallOutlivesContext(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		stop() // end the context during the call, as if the worker shut down
		_, _ = w.Write([]byte("{}"))
	})
	s := testSource(t, url, nil)
	a, err := fetch(t, ctx, s, &testPermits{})
	if err != nil || s.Read(a, time.Now()).Class != OK {
		t.Errorf("got %+v, error %v", a, err)
	}
}

func TestFetch_ContextEndsPermitWait(t *testing.T) {
	url := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("got a request, want none") })
	ctx, stop := context.WithCancel(t.Context())
	b := &testPermits{onSpend: func(ctx context.Context) error {
		stop()
		<-ctx.Done()
		return ctx.Err()
	}}
	if a, err := fetch(t, ctx, testSource(t, url, nil), b); !errors.Is(err, context.Canceled) || b.released.Load() != 1 {
		t.Errorf("got %+v, error %v", a, err)
	}
}

func TestFetch_TimesOut(t *testing.T) {
	disconnected := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/body/item" {
			_, _ = w.Write([]byte(`{"a":`))
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
		disconnected <- struct{}{}
	})
	s := testSource(t, url, func(c *Config) { c.Timeout = 20 * time.Millisecond })
	for _, key := range []string{"a", "body"} {
		p, err := s.Plan(Request{Facet: "character", Key: key})
		if err != nil {
			t.Fatal(err)
		}
		a, err := s.Fetch(t.Context(), p, &testPermits{})
		if err != nil {
			t.Fatal(err)
		}
		if o := s.Read(a, time.Now()); o.Class != Transient || !errors.Is(o.Err, errTimeout) || a.Calls != 1 {
			t.Errorf("%s: got %+v after %d calls", key, o, a.Calls)
		}
		<-disconnected
	}
}

func TestFetch_FailedDialSpendsNoPermit(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	s := testSource(t, "http://"+l.Addr().String(), nil)
	b := &testPermits{}
	a, err := fetch(t, t.Context(), s, b)
	if err != nil || a.Calls != 0 || b.spent.Load() != 0 || b.released.Load() != 1 {
		t.Fatalf("got %+v, error %v, %d spent permits", a, err, b.spent.Load())
	}
	if o := s.Read(a, time.Now()); o.Class != Transient || o.Status != 0 || !strings.Contains(o.Err.Error(), "refused") {
		t.Errorf("got outcome %+v", o)
	}
}

func threeDocuments(c *Config) {
	f := c.Facets["character"]
	f.Documents = map[string]Document{"a": {Path: "/a"}, "b": {Path: "/b"}, "c": {Path: "/c"}}
	c.Facets["character"] = f
}

func TestFetch_DocumentsRunConcurrently(t *testing.T) {
	var together sync.WaitGroup
	together.Add(3)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		together.Done()
		together.Wait() // blocks until all three requests have arrived
		_, _ = w.Write([]byte(`{"path":"` + r.URL.Path + `"}`))
	})
	s := testSource(t, url, threeDocuments)
	b := &testPermits{}
	a, err := fetch(t, t.Context(), s, b)
	if err != nil || a.Calls != 3 || b.spent.Load() != 3 {
		t.Fatalf("got %+v, error %v, %d permits", a, err, b.spent.Load())
	}
	o := s.Read(a, time.Now())
	if o.Class != OK || string(o.Content.Bytes) != `{"a":{"path":"/a"},"b":{"path":"/b"},"c":{"path":"/c"}}` {
		t.Errorf("got outcome %+v", o)
	}
}

func TestFetch_FailedDocumentCancelsUnsent(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNotFound) })
	s := testSource(t, url, threeDocuments)
	first := make(chan struct{}, 1)
	first <- struct{}{}
	b := &testPermits{onSpend: func(ctx context.Context) error {
		select {
		case <-first: // only the first Spend succeeds
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}}
	a, err := fetch(t, t.Context(), s, b)
	if err != nil || a.Calls != 1 || b.spent.Load() != 1 || b.released.Load() != 2 {
		t.Fatalf("got %+v, error %v; %d spent, %d released permits", a, err, b.spent.Load(), b.released.Load())
	}
	if o := s.Read(a, time.Now()); o.Class != NotFound || o.Status != 404 {
		t.Errorf("got outcome %+v", o)
	}
}

func TestFetch_SpentPermitAlwaysGetsResponse(t *testing.T) {
	var arrivals atomic.Int64
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		arrivals.Add(1)
		_, _ = w.Write([]byte("{}"))
	})
	s := testSource(t, url, nil)
	responses := int64(0)
	for i := range 2000 {
		ctx, stop := context.WithCancel(t.Context())
		b := &testPermits{onSpend: func(context.Context) error {
			go stop() // ctx ends at about the time at which Spend returns
			return nil
		}}
		if i%2 == 0 {
			go stop() // ctx ends at about the time of Acquire
		}
		a, err := fetch(t, ctx, s, b)
		switch {
		case err != nil && b.spent.Load() > 0:
			t.Fatalf("a permit is spent but Fetch returned %v", err)
		case err == nil && s.Read(a, time.Now()).Class != OK:
			t.Fatalf("a call with a spent permit was cancelled: %+v", s.Read(a, time.Now()))
		case err == nil:
			responses++
		}
		stop()
	}
	if arrivals.Load() != responses {
		t.Errorf("got %d arrivals but %d responses", arrivals.Load(), responses)
	}
}
