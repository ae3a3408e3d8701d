package client

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// unchanged answers 304 to a request with If-None-Match, and otherwise with a snapshot.
func unchanged(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h["Etag"], h["Age"], h["Cache-Control"] = []string{`W/"a"`}, []string{"6"}, []string{"private, max-age=900, stale-while-revalidate=900"}
	h["Last-Modified"] = []string{"Fri, 20 Nov 2026 20:37:53 GMT"}
	if r.Header.Get("If-None-Match") != "" {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = io.WriteString(w, freshBody)
}

// bareGet sends the same request as Get with an http.Client, and reads the response.
func bareGet(ctx context.Context, c *http.Client, base string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/nexon/character/somebody", http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+aToken)
	req.Header.Set("If-None-Match", `W/"a"`)
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// bothClients returns a Client that has the snapshot, and an http.Client with the same timeout.
func bothClients(tb testing.TB, base string, transport http.RoundTripper) (*Client, *http.Client) {
	tb.Helper()
	c, err := New(base, Options{Token: Token{Value: aToken}, Transport: transport})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := c.Get(tb.Context(), anEntity); err != nil {
		tb.Fatal(err)
	}
	return c, &http.Client{Transport: transport, Timeout: DefaultTimeout}
}

// The metric "ratio" is the rate of Get divided by that of an http.Client, in the same run.
func BenchmarkGet_NotModified(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(unchanged))
	defer server.Close()
	c, bare := bothClients(b, server.URL, http.DefaultTransport.(*http.Transport).Clone())
	defer bare.CloseIdleConnections()
	var took [2]time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := c.Get(b.Context(), anEntity); err != nil {
			b.Fatal(err)
		}
		between := time.Now()
		if err := bareGet(b.Context(), bare, server.URL); err != nil {
			b.Fatal(err)
		}
		took[0] += between.Sub(began)
		took[1] += time.Since(between)
	}
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "ratio")
}

// constant answers each request with the same header and no body.
type constant struct{ header http.Header }

func (c constant) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 304, Status: "304 Not Modified", Header: c.header, Body: http.NoBody, Request: r}, nil
}

func TestGet_AllocatesLittleForNotModified(t *testing.T) {
	w := httptest.NewRecorder()
	unchanged(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
	transport := constant{w.Header()}
	first := always(200, freshBody, "ETag", `W/"a"`)
	c, bare := bothClients(t, "http://freshet.example", first)
	c.http.Transport, bare.Transport = transport, transport
	own := testing.AllocsPerRun(1000, func() {
		if _, err := c.Get(t.Context(), anEntity); err != nil {
			t.Fatal(err)
		}
	})
	other := testing.AllocsPerRun(1000, func() {
		if err := bareGet(t.Context(), bare, "http://freshet.example"); err != nil {
			t.Fatal(err)
		}
	})
	if own > other+5 {
		t.Errorf("got %v allocations, want at most 5 more than the %v of an http.Client", own, other)
	}
}
