package harness

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// startEcho starts a TCP server that echoes its input, and returns its address.
func startEcho(t *testing.T) string {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	}()
	return l.Addr().String()
}

// conversation is a client connection through a proxy to the echo server.
type conversation struct {
	net.Conn
	*testing.T
	answers *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *conversation {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(Timeout))
	return &conversation{conn, t, bufio.NewReader(conn)}
}

func (l *conversation) send(text string) {
	l.Helper()
	if _, err := l.Write([]byte(text + "\n")); err != nil {
		l.Fatal(err)
	}
}

func (l *conversation) expect(want string) {
	l.Helper()
	if text, err := l.answers.ReadString('\n'); err != nil || text != want+"\n" {
		l.Errorf("reply: got %q, %v, want %q", text, err, want)
	}
}

// expectEnd checks that the connection was closed. A read that only times out fails the test.
func (l *conversation) expectEnd() {
	l.Helper()
	text, err := l.answers.ReadString('\n')
	var silent net.Error
	if err == nil || errors.As(err, &silent) && silent.Timeout() {
		l.Errorf("read: got %q, %v, want the end of the connection", text, err)
	}
}

func TestProxy_DelaysStallsRefusesAndCuts(t *testing.T) {
	service := startEcho(t)
	p, err := NewProxy(t.Context(), service, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	beside, err := NewProxy(t.Context(), service, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()
	first, other := dial(t, p), dial(t, beside)
	first.send("well")
	first.expect("well")

	const delay = 50 * time.Millisecond
	p.SetDelay(delay)
	began := time.Now()
	first.send("slow")
	first.expect("slow")
	if took := time.Since(began); took < 2*delay {
		t.Errorf("round trip: got %v, want at least %v", took, 2*delay)
	}
	p.SetDelay(0)

	p.Stall(true)
	second := dial(t, p) // a stalled proxy accepts connections
	first.send("held")
	second.send("held too")
	other.send("beside") // a second proxy to the same service is not stalled
	other.expect("beside")
	_ = first.SetReadDeadline(time.Now().Add(delay))
	if b, err := first.answers.ReadByte(); err == nil {
		t.Errorf("read from a stalled proxy: got %q, want a timeout", b)
	}
	_ = first.SetReadDeadline(time.Now().Add(Timeout))
	p.Stall(false)
	first.expect("held")
	second.expect("held too")

	p.Corrupt(1)
	first.send("abc")
	first.expect("abc") // unchanged: the proxy flips the same bit on the way to the server and on the way back
	p.Corrupt(2)
	first.send("abc")
	first.expect("abb")
	p.Corrupt(0)

	p.Cut()
	first.expectEnd()
	second.expectEnd()
	other.send("still there")
	other.expect("still there")

	p.Refuse(true)
	dial(t, p).expectEnd()
	p.Refuse(false)
	again := dial(t, p)
	again.send("again")
	again.expect("again")
	p.Stall(true)
	p.Close() // Close must work while the proxy is stalled
	again.expectEnd()
}

func TestSite_ConnectsOnlyThroughItsProxies(t *testing.T) {
	s := &Site{Dir: t.TempDir(), Source: "s", Redis: &Process{Address: "127.0.0.1:1"}, Database: "postgres://somebody@127.0.0.1:2/theirs?sslmode=disable"}
	defer s.Close(false)
	if err := s.UseProxies(t.Context()); err != nil {
		t.Fatal(err)
	}
	env, err := s.Configure("led", "127.0.0.1:3", "")
	if err != nil {
		t.Fatal(err)
	}
	if want := "FRESHET_DATABASE_URL=postgres://somebody@" + s.DatabaseProxy.Address() + "/theirs?sslmode=disable"; !slices.Contains(env, want) {
		t.Errorf("environment: got %v, want %s in it", env, want)
	}
	text, err := os.ReadFile(filepath.Join(s.Dir, "led.yaml"))
	if want := `redis: {mode: single, addresses: ["` + s.RedisProxy.Address() + `"]}`; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("configuration: got %s, %v, want %s in it", text, err, want)
	}
	if s.DatabaseProxy.service != "127.0.0.1:2" || s.RedisProxy.service != s.Redis.Address {
		t.Errorf("services of the proxies: got %s and %s, want the database and Redis", s.DatabaseProxy.service, s.RedisProxy.service)
	}
}
