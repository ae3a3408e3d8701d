package virtual

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// connected returns both ends of a connection from the process "a#1" to Redis.
func connected(t *testing.T, n *network) (client, server net.Conn) {
	l, err := n.Listen("tcp", redisAddress)
	must(t, err)
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
	}()
	client, err = n.dialer("a#1")(t.Context(), "tcp", redisAddress)
	must(t, err)
	return client, <-accepted
}

func TestNetwork_StallDelaysData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		client, server := connected(t, n)
		n.apply(linkFaults{stalled: map[link]bool{{"a", redisAddress}: true}})
		_, err := client.Write([]byte("x"))
		must(t, err)
		must(t, server.SetReadDeadline(time.Now().Add(time.Second)))
		if _, err := server.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read during the stall: got %v, want %v", err, os.ErrDeadlineExceeded)
		}
		must(t, server.SetReadDeadline(time.Time{}))
		time.AfterFunc(time.Minute, func() { n.apply(linkFaults{}) })
		began := time.Now()
		if _, err := server.Read(make([]byte, 1)); err != nil || time.Since(began) != time.Minute {
			t.Errorf("read: got %v after %v, want data after 1m", err, time.Since(began))
		}
	})
}

func TestNetwork_CutClosesAndRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		client, server := connected(t, n)
		n.apply(linkFaults{refused: map[link]bool{{"", redisAddress}: true}})
		for name, c := range map[string]net.Conn{"client": client, "server": server} {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, errCut) {
				t.Errorf("read of the %s: got %v, want %v", name, err, errCut)
			}
		}
		if _, err := n.dialer("a#1")(context.Background(), "tcp", redisAddress); err == nil {
			t.Error("dial during the cut: got a connection, want an error")
		}
	})
}

func TestNetwork_CloseDeliversData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connected(t, newNetwork())
		_, err := client.Write([]byte("xy"))
		must(t, err)
		must(t, client.Close())
		if got, err := io.ReadAll(server); err != nil || string(got) != "xy" {
			t.Errorf("got %q, %v, want the data and then the end", got, err)
		}
	})
}

// TestNetwork_StallFailsNewConnectionsToRedis: the Redis client holds a mutex while it connects, so a
// connection that waits would stop the virtual time.
func TestNetwork_StallFailsNewConnectionsToRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		_, _ = connected(t, n)
		n.apply(linkFaults{stalled: map[link]bool{{"a", redisAddress}: true}})
		began := time.Now()
		if _, err := n.dialer("a#1")(t.Context(), "tcp", redisAddress); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 0 {
			t.Errorf("dial during the stall: got %v after %v, want %v at once", err, time.Since(began), os.ErrDeadlineExceeded)
		}
	})
}
