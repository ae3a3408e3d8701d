package harness

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

func frame(text string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
}

func address(port uint32) string {
	return string(binary.BigEndian.AppendUint32([]byte("127.0.0.1"), port))
}

func TestKafkaProxy_DelaysFramesInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Proxy{readPiece: readFrame}
		k.SetDelay(500 * time.Millisecond)
		client, from := net.Pipe()
		to, broker := net.Pipe()
		go k.pump(from, to, func([]byte) {})
		began := time.Now()
		go func() {
			for _, text := range []string{"one", "another", ""} {
				_, _ = client.Write(frame(text))
			}
		}()
		for _, text := range []string{"one", "another", ""} {
			got := make([]byte, len(frame(text)))
			if _, err := io.ReadFull(broker, got); err != nil || !bytes.Equal(got, frame(text)) {
				t.Errorf("frame: got %q, %v, want %q", got, err, text)
			}
			if took := time.Since(began); took != 500*time.Millisecond {
				t.Errorf("delay of %q: got %v, want 500ms", text, took)
			}
		}
		_ = client.Close()
		if _, err := broker.Read(make([]byte, 1)); err == nil {
			t.Error("read after the client closed: got no error, want one")
		}
	})
}

func TestKafkaProxy_ReplacesTheBrokersAddress(t *testing.T) {
	k := &KafkaProxy{brokerAddress: []byte(address(9092)), proxyAddress: []byte(address(40001))}
	reply := []byte("xx" + address(9092) + "yy" + address(9093) + address(9092))
	k.replaceAddress(reply)
	if want := "xx" + address(40001) + "yy" + address(9093) + address(40001); string(reply) != want {
		t.Errorf("reply: got %q, want %q", reply, want)
	}
}
