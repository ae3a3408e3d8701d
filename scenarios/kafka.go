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
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// slowKafka is a way to Kafka that can be made long. A client follows the addresses
// that a broker tells of itself, so each answer is given with this way's port in
// place of the broker's. It needs no rights, unlike a network namespace or a delay on
// the loopback interface, and slows only who is led over it: a broker that is stopped
// in turns would be slow to everybody.
type slowKafka struct {
	listener     net.Listener
	broker       string
	theirs, mine []byte       // host and port as the protocol has them
	delay        atomic.Int64 // of each direction
	mu           sync.Mutex
	open         []net.Conn
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
	k := &slowKafka{listener: listener, broker: net.JoinHostPort(of.Host, strconv.Itoa(int(of.Port)))}
	port := listener.Addr().(*net.TCPAddr).Port
	k.theirs = binary.BigEndian.AppendUint32([]byte(of.Host), uint32(of.Port))
	k.mine = binary.BigEndian.AppendUint32([]byte(of.Host), uint32(port))
	go k.serve()
	return k, nil
}

func (k *slowKafka) address() string { return k.listener.Addr().String() }

// slow has each direction take so much longer.
func (k *slowKafka) slow(by time.Duration) { k.delay.Store(int64(by)) }

func (k *slowKafka) close() {
	_ = k.listener.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, conn := range k.open {
		_ = conn.Close()
	}
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

func (k *slowKafka) serve() {
	for {
		from, err := k.listener.Accept()
		if err != nil {
			return
		}
		to, err := (&net.Dialer{Timeout: patience}).DialContext(context.Background(), "tcp", k.broker)
		if err != nil {
			_ = from.Close()
			continue
		}
		k.mu.Lock()
		k.open = append(k.open, from, to)
		k.mu.Unlock()
		go k.pump(from, to, func([]byte) {})
		go k.pump(to, from, k.readdress)
	}
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

// frame is a request or an answer, and when it has come all the way.
type frame struct {
	due  time.Time
	text []byte
}

// pump carries frames, as a long wire does: many are under way at once.
func (k *slowKafka) pump(from io.ReadCloser, to io.WriteCloser, readdress func([]byte)) {
	wire := make(chan frame, 1000)
	go func() {
		defer close(wire)
		for {
			text, err := readFrame(from)
			if err != nil {
				return
			}
			readdress(text)
			wire <- frame{time.Now().Add(time.Duration(k.delay.Load())), text}
		}
	}()
	broken := false
	for f := range wire { // to its end, so that the reader never waits for a place
		if wait := time.Until(f.due); wait > 0 && !broken {
			<-time.After(wait)
		}
		if _, err := to.Write(f.text); err != nil && !broken {
			broken = true
			_ = from.Close()
		}
	}
	_ = from.Close()
	_ = to.Close()
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
