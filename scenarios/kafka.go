package main

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

// slowKafka is a way to Kafka. A client follows the addresses that a broker tells of
// itself, so each answer is given with this way's port in place of the broker's.
type slowKafka struct {
	*proxy
	theirs, mine []byte // host and port as the protocol has them
}

// longestFrame is beyond what a broker takes or gives.
const longestFrame = 128 << 20

// newSlowKafka leads to the only broker of a cluster, which must be on this machine.
func newSlowKafka(ctx context.Context, broker string) (*slowKafka, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(broker))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	known, err := kadm.NewClient(client).BrokerMetadata(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask Kafka at %s for its brokers: %w", broker, err)
	}
	if len(known.Brokers) != 1 {
		return nil, fmt.Errorf("the Kafka at %s has %d brokers; the way to it can be slowed for one", broker, len(known.Brokers))
	}
	of := known.Brokers[0]
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(of.Host, "0"))
	if err != nil {
		return nil, fmt.Errorf("the broker says that it is at %s, which is not this machine: %w", of.Host, err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	k := &slowKafka{
		proxy:  &proxy{listener: listener, service: net.JoinHostPort(of.Host, strconv.Itoa(int(of.Port))), piece: readFrame},
		theirs: binary.BigEndian.AppendUint32([]byte(of.Host), uint32(of.Port)),
		mine:   binary.BigEndian.AppendUint32([]byte(of.Host), uint32(port)),
	}
	k.answer = k.readdress
	go k.serve()
	return k, nil
}

// roundTrip measures a question and its answer over this way, as a produce is. The
// first ones make connections.
func (k *slowKafka) roundTrip(ctx context.Context) (least time.Duration, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(k.address()))
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

// readdress has an answer name this way where it names the broker.
func (k *slowKafka) readdress(answer []byte) {
	for {
		i := bytes.Index(answer, k.theirs)
		if i < 0 {
			return
		}
		copy(answer[i:], k.mine) // as long as what was there
		answer = answer[i+len(k.mine):]
	}
}

// readFrame reads a length and as many bytes, and returns both.
func readFrame(from io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > longestFrame {
		return nil, errors.New("no frame of Kafka's protocol is that long")
	}
	text := make([]byte, 4+n)
	copy(text, size[:])
	_, err := io.ReadFull(from, text[4:])
	return text, err
}
