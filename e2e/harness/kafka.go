package harness

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// KafkaProxy is a Proxy to a Kafka broker. Clients connect to the addresses in the broker's
// metadata. The proxy therefore replaces the broker's address in each reply by the proxy's own
// address.
type KafkaProxy struct {
	*Proxy
	brokerAddress, proxyAddress []byte // host and port, encoded as in Kafka's protocol
}

// maxFrame is the maximum length of a Kafka frame in bytes. Brokers accept and send only shorter
// frames, so a longer frame is an error of the connection.
const maxFrame = 128 << 20

// NewKafkaProxy returns a proxy to the only broker of a cluster, which must run on this machine.
func NewKafkaProxy(ctx context.Context, broker string) (*KafkaProxy, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(broker))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	known, err := kadm.NewClient(client).BrokerMetadata(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the brokers of the Kafka at %s: %w", broker, err)
	}
	if len(known.Brokers) != 1 {
		return nil, fmt.Errorf("the Kafka at %s has %d brokers; the proxy supports one", broker, len(known.Brokers))
	}
	of := known.Brokers[0]
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(of.Host, "0"))
	if err != nil {
		return nil, fmt.Errorf("the broker advertises %s, which is not an address of this machine: %w", of.Host, err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	k := &KafkaProxy{
		Proxy:         &Proxy{listener: listener, service: net.JoinHostPort(of.Host, strconv.Itoa(int(of.Port))), readPiece: readFrame},
		brokerAddress: binary.BigEndian.AppendUint32([]byte(of.Host), uint32(of.Port)),
		proxyAddress:  binary.BigEndian.AppendUint32([]byte(of.Host), uint32(port)),
	}
	k.onReply = k.replaceAddress
	go k.serve()
	return k, nil
}

// RoundTrip returns the shortest of four round trips to the broker through the proxy. The first
// round trips take longer, because they include the time to connect.
func (k *KafkaProxy) RoundTrip(ctx context.Context) (shortest time.Duration, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Address()))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	for attempt := range 4 {
		began := time.Now()
		if err := client.Ping(ctx); err != nil {
			return 0, err
		}
		if took := time.Since(began); attempt == 0 || took < shortest {
			shortest = took
		}
	}
	return shortest, nil
}

// replaceAddress replaces the broker's address in a reply by the proxy's address. Both addresses
// have the same length, so the length of the reply stays correct.
func (k *KafkaProxy) replaceAddress(reply []byte) {
	for {
		i := bytes.Index(reply, k.brokerAddress)
		if i < 0 {
			return
		}
		copy(reply[i:], k.proxyAddress)
		reply = reply[i+len(k.proxyAddress):]
	}
}

// readFrame reads one frame of Kafka's protocol: four bytes that contain a length, and then that
// number of bytes.
func readFrame(from io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxFrame {
		return nil, errors.New("a frame is longer than Kafka's protocol allows")
	}
	text := make([]byte, 4+n)
	copy(text, size[:])
	_, err := io.ReadFull(from, text[4:])
	return text, err
}
