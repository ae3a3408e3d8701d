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

// KafkaProxy is a Proxy to Kafka. A client connects to the addresses in a broker's metadata,
// so the proxy replaces the broker's port by its own in each answer.
type KafkaProxy struct {
	*Proxy
	brokerAddress, proxyAddress []byte // host and port of the broker and of the proxy, as in the protocol
}

// maxFrame is more than a broker accepts or sends, in bytes.
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
		return nil, fmt.Errorf("ask Kafka at %s for its brokers: %w", broker, err)
	}
	if len(known.Brokers) != 1 {
		return nil, fmt.Errorf("the Kafka at %s has %d brokers; the proxy serves one", broker, len(known.Brokers))
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

// RoundTrip measures a question and its answer over this way, as a produce is. The
// first ones make connections.
func (k *KafkaProxy) RoundTrip(ctx context.Context) (least time.Duration, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Address()))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	for try := range 4 {
		began := time.Now()
		if err := client.Ping(ctx); err != nil {
			return 0, err
		}
		if took := time.Since(began); try == 0 || took < least {
			least = took
		}
	}
	return least, nil
}

// replaceAddress has an answer name this way where it names the broker.
func (k *KafkaProxy) replaceAddress(answer []byte) {
	for {
		i := bytes.Index(answer, k.brokerAddress)
		if i < 0 {
			return
		}
		copy(answer[i:], k.proxyAddress) // as long as what was there
		answer = answer[i+len(k.proxyAddress):]
	}
}

// readFrame reads a length and as many bytes, and returns both.
func readFrame(from io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxFrame {
		return nil, errors.New("no frame of Kafka's protocol is that long")
	}
	text := make([]byte, 4+n)
	copy(text, size[:])
	_, err := io.ReadFull(from, text[4:])
	return text, err
}
