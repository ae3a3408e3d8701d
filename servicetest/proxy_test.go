package servicetest

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// The proxy closes a connection at the first piece that its filter rejects: before the server gets a
// request, or before the client gets a reply.
func TestProxy_ClosesAtARejectedPiece(t *testing.T) {
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		_, _ = w.Write([]byte("reply"))
	}))
	defer server.Close()
	containsNot := func(text string) Filter {
		return func(piece []byte) bool { return !bytes.Contains(piece, []byte(text)) }
	}
	for _, c := range []struct {
		name    string
		filters func() (request, reply Filter)
		served  int64
		replied bool
	}{
		{"no filters", nil, 1, true},
		{"filters that pass", func() (Filter, Filter) { return containsNot("x-never"), containsNot("x-never") }, 1, true},
		{"a rejected request", func() (Filter, Filter) { return containsNot("GET /"), nil }, 0, false},
		{"a rejected reply", func() (Filter, Filter) { return nil, containsNot("200 OK") }, 1, false},
	} {
		served.Store(0)
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", Proxy(t, strings.TrimPrefix(server.URL, "http://"), c.filters))
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		reply, _ := io.ReadAll(conn) // the read can end with an error, because the proxy closes the connection
		_ = conn.Close()
		if got := bytes.HasSuffix(reply, []byte("reply")); got != c.replied || served.Load() != c.served {
			t.Errorf("%s: got a reply: %v, and %d requests served; want %v and %d", c.name, got, served.Load(), c.replied, c.served)
		}
	}
}
