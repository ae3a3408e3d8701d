package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/e2e/harness"
)

// Eight clients request 100 documents of real size each, 197 MB of JSON in total, and do not read
// the responses. The query service must not hold the decompressed documents in memory.
func TestUnreadResponses_UseBoundedMemory(t *testing.T) {
	const (
		connections = 8
		keys        = 100
		maxGrowth   = 128 << 20
	)
	f := newFleet(t)
	f.check(f.Store(t.Context(), harness.Stored{Facet: "character", Prefix: "large-", Count: connections*keys + 1, Checked: time.Now()}))
	p := f.queryProcess()
	before, err := harness.PeakMemory(p.Process.Pid)
	f.check(err)
	for i := range connections {
		query := url.Values{}
		for n := range keys {
			query.Add("key", fmt.Sprint("large-", i*keys+n))
		}
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Match)
		f.check(err)
		t.Cleanup(func() { _ = conn.Close() })
		f.check(conn.(*net.TCPConn).SetReadBuffer(4096))
		_, err = fmt.Fprintf(conn, "GET /v1/%s/character?%s HTTP/1.1\r\nHost: %s\r\nAccept-Encoding: identity\r\n\r\n", f.Source, query.Encode(), p.Match)
		f.check(err)
		status, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
		f.check(err)
		if !strings.Contains(status, "200") {
			t.Errorf("response %d: got %q, want status 200", i, strings.TrimSpace(status))
		}
	}
	got, err := f.newClient(p.URL()).Get(t.Context(), client.Entity{Source: f.Source, Facet: "character", Key: fmt.Sprint("large-", connections*keys)})
	if err != nil || got.Snapshot == nil {
		t.Errorf("the ninth client: got %d bytes, %v, want a snapshot", len(got.Snapshot), err)
	}
	after, err := harness.PeakMemory(p.Process.Pid)
	f.check(err)
	t.Logf("peak memory of the query service: %d MB, before %d MB", after>>20, before>>20)
	if growth := after - before; growth > maxGrowth {
		t.Errorf("growth of the query service's memory: got %d MB, want at most %d MB", growth>>20, maxGrowth>>20)
	}
}
