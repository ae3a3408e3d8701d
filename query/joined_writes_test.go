package query

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/store"
)

func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// connect returns a joinedConn and its other end.
func connect(t *testing.T) (*joinedConn, net.Conn) {
	t.Helper()
	l := joinedListener{listenTCP(t)}
	defer func() { _ = l.Close() }()
	theirs, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ours, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours.(*joinedConn), theirs
}

// flusher is an http.ResponseWriter whose Flush writes the last part of a response to a connection, as
// net/http does.
type flusher struct {
	http.ResponseWriter
	conn *joinedConn
	rest []byte
}

func (f *flusher) FlushError() error {
	if len(f.rest) == 0 {
		return nil
	}
	_, err := f.conn.Write(f.rest)
	return err
}

// Responses of any number and sizes of writes arrive complete and in order, and no byte is held after
// a response.
func TestJoinedConn_SendsEveryByteOnce(t *testing.T) {
	seed := rand.Uint64()
	dice := rand.New(rand.NewPCG(seed, 0))
	conn, client := connect(t)
	var want bytes.Buffer
	received := make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(client)
		received <- all
	}()
	sizes := []int{0, 1, 200, headBuffer - 1, headBuffer, headBuffer + 1, 3 * headBuffer}
	for range 300 {
		conn.joining = dice.IntN(4) > 0
		joined := conn.joining
		var parts [][]byte
		for range 1 + dice.IntN(4) {
			part := make([]byte, sizes[dice.IntN(len(sizes))])
			for i := range part {
				part[i] = byte(dice.Uint32())
			}
			parts = append(parts, part)
			want.Write(part)
		}
		last := len(parts) - 1
		for _, part := range parts[:last] {
			if n, err := conn.Write(part); n != len(part) || err != nil {
				t.Fatalf("seed %d: write: got %d, %v; want %d", seed, n, err, len(part))
			}
		}
		w := &flusher{conn: conn, rest: parts[last]}
		if joined {
			if err := conn.sendJoined(w); err != nil {
				t.Fatalf("seed %d: send: got %v, want no error", seed, err)
			}
		} else if err := w.FlushError(); err != nil {
			t.Fatalf("seed %d: flush: got %v, want no error", seed, err)
		}
		if conn.size != 0 || conn.held != nil || conn.joining {
			t.Fatalf("seed %d: after a response: got %d held bytes, joining %v; want none", seed, conn.size, conn.joining)
		}
	}
	_ = conn.Close()
	if got := <-received; !bytes.Equal(got, want.Bytes()) {
		t.Errorf("seed %d: got %d bytes, want the %d bytes that were written", seed, len(got), want.Len())
	}
}

func TestJoinedConn_HoldsTheStartUntilTheRest(t *testing.T) {
	conn, client := connect(t)
	conn.joining = true
	if _, err := conn.Write(make([]byte, headBuffer)); err != nil {
		t.Fatal(err)
	}
	if conn.size != headBuffer {
		t.Errorf("held after the first write: got %d bytes, want %d", conn.size, headBuffer)
	}
	if n, err := conn.Write([]byte("rest")); n != 4 || err != nil {
		t.Errorf("second write: got %d, %v; want 4", n, err)
	}
	got := make([]byte, headBuffer+4)
	if _, err := io.ReadFull(client, got); err != nil || string(got[headBuffer:]) != "rest" {
		t.Errorf("received: got %q, %v; want the rest after the start", got[headBuffer:], err)
	}
}

func TestJoinedConn_ReportsABrokenConnection(t *testing.T) {
	conn, _ := connect(t)
	conn.joining = true
	if _, err := conn.Write([]byte("start")); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if err := conn.sendJoined(&flusher{conn: conn}); err == nil {
		t.Error("send on a closed connection: got no error, want one")
	}
	if conn.size != 0 || conn.held != nil {
		t.Errorf("held after the failure: got %d bytes, want none", conn.size)
	}
}

// Responses around the size of net/http's buffer and around the size of one write arrive complete, on
// one connection.
func TestRead_OfEverySizeIsComplete(t *testing.T) {
	r := newRig(t)
	l := listenTCP(t)
	r.serveOn(t, l)
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, MaxConnsPerHost: 1}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	sizes := []int{1, 100, minJoined, maxUncounted - 200, maxUncounted, maxUncounted + 1, writeChunk, 3 * writeChunk}
	for size := headBuffer - 700; size < headBuffer+50; size++ { // with its header, a body of about 3,700 bytes fills the buffer
		sizes = append(sizes, size)
	}
	for _, size := range sizes {
		text := `"` + strings.Repeat("x", size) + `"`
		r.putSnapshot("a", 0, withPayload(store.Encode([]byte(text))))
		resp, err := client.Get(fmt.Sprintf("http://%s/v1/nexon/character/a", l.Addr()))
		if err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		var got struct{ Snapshot json.RawMessage }
		if err != nil || int64(len(body)) != resp.ContentLength || json.Unmarshal(body, &got) != nil || string(got.Snapshot) != text {
			t.Errorf("size %d: got %d bytes of %d, %v; want the snapshot", size, len(body), resp.ContentLength, err)
		}
	}
}
