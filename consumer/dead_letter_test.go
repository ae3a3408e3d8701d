package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source"
)

func TestDeadLetter_CopiesPoisonMessage(t *testing.T) {
	r := newRig(t)
	valid, err := schemas.UpdateRequest{
		EventID: "e", Entity: entity("a"), Lane: schemas.Low, Reason: schemas.Prefetch, RequestedAt: time.Now(), Version: 1,
	}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	change := func(field string, v any) []byte {
		var m map[string]any
		if err := json.Unmarshal(valid, &m); err != nil {
			t.Fatal(err)
		}
		m[field] = v
		out, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	poison := map[schemas.DeadLetterReason][][]byte{
		schemas.Undecodable:     {{0xff, 0x00}, []byte("{"), change("priority", "MEDIUM"), nil},
		schemas.UnknownMajor:    {change("schemaVersion", "3.0")},
		schemas.OversizedRecord: {append(bytes.Repeat([]byte(" "), 900<<10), valid...)},
		schemas.InvalidRequest:  {change("facet", "union"), change("source", "github"), change("key", "a b")},
	}
	want := map[string]schemas.DeadLetterReason{}
	headers := []kgo.RecordHeader{{Key: "traceparent", Value: []byte("tp")}, {Key: "odd", Value: []byte{0}}}
	for reason, values := range poison {
		for _, value := range values {
			r.produce(schemas.Low, kgo.Record{Key: []byte("k"), Value: value, Headers: headers})
			want[string(value)] = reason
		}
	}
	r.work(schemas.Low)
	r.enqueue("b", schemas.Low, schemas.Prefetch)
	r.untilStored("b")
	r.untilCommitted(schemas.Low)
	deadLetters := r.deadLetters()
	if len(deadLetters) != len(want) {
		t.Errorf("dead letters: got %d, want %d", len(deadLetters), len(want))
	}
	for _, d := range deadLetters {
		if want[string(d.Value)] != d.Reason || string(d.Key) != "k" || d.Attempts != 0 || d.Error == "" ||
			d.Topic != "nexon.update-priority-low" || d.Group != "nexon.low-worker" || d.Worker != "worker" {
			t.Errorf("dead letter: got %+v, want %s of k by the low worker, with an error and without attempts", d, want[string(d.Value)])
		}
		if len(d.Headers) != 2 || d.Headers[0].Key != "traceparent" || string(d.Headers[1].Value) != "\x00" {
			t.Errorf("headers: got %+v, want them unchanged", d.Headers)
		}
	}
	if n := r.upstream.Stats().Arrivals; n != 1 {
		t.Errorf("calls: got %d, want 1", n)
	}
}

func TestDeadLetter_HasSampleOfBadAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault    simulator.Fault
		reason   schemas.DeadLetterReason
		attempts int
		sample   string
		status   int
	}{
		// The entity is called a second time to confirm that the failure is its own.
		{simulator.Fault{Kind: simulator.HTML200}, schemas.ParseError, 2, "<", 200},
		{simulator.Fault{Kind: simulator.BadJSON}, schemas.ParseError, 2, "{", 200},
		{simulator.Fault{Kind: simulator.Deep, Depth: 100_000}, schemas.ParseError, 2, "", 200},
		{simulator.Fault{Kind: simulator.Oversize, Bytes: 2 << 20}, schemas.OversizedAnswer, 2, "{", 200},
		{simulator.Fault{Kind: simulator.BadParameter}, schemas.Upstream4xx, 2, "OPENAPI00004", 400},
		{simulator.Fault{Kind: simulator.InternalError}, schemas.Upstream5xx, 3, "OPENAPI00001", 500},
		{simulator.Fault{Kind: simulator.Reset}, schemas.Unreachable, 3, "", 200},
	} {
		t.Run(string(c.fault.Kind), func(t *testing.T) {
			r := newRig(t)
			r.facet(func(f *source.Facet) { f.Retry = nil })
			r.work(schemas.High)
			r.enqueue("a", schemas.High, schemas.CacheMiss)
			r.enqueue("good", schemas.High, schemas.CacheMiss) // makes entity "good" known-good, so that the worker can attribute the failure of "a"
			r.untilStored("a", "good")
			r.untilCommitted(schemas.High)
			before, _ := r.snapshot("a")

			c.fault.Key = "^a$"
			r.control(simulator.Control{Faults: []simulator.Fault{c.fault}})
			r.enqueue("a", schemas.High, schemas.UserRequest)
			r.untilCommitted(schemas.High)
			deadLetters := r.deadLetters()
			if len(deadLetters) != 1 {
				t.Fatalf("dead letters: got %d, want 1", len(deadLetters))
			}
			d := deadLetters[0]
			if d.Reason != c.reason || d.Attempts != c.attempts || !strings.Contains(string(d.Sample), c.sample) ||
				(d.Status != c.status && d.Status != 0) || len(d.Headers) != 1 || string(d.Headers[0].Value) != "trace-a" {
				t.Errorf("dead letter: got %s after %d attempts, status %d: %s; sample %.60q, want %s after %d, status %d or 0, sample %q",
					d.Reason, d.Attempts, d.Status, d.Error, d.Sample, c.reason, c.attempts, c.status, c.sample)
			}
			if after, _ := r.snapshot("a"); after.State != before.State {
				t.Errorf("snapshot: got %+v, want it unchanged", after.State)
			}
			if lock := r.lock("a"); lock != "" {
				t.Errorf("lock: got %q, want none", lock)
			}
			again := r.producer.Enqueue(t.Context(), producer.Request{Entity: entity("a"), Lane: schemas.High, Reason: schemas.Stale})
			if again.Outcome != producer.Held || again.HoldReason != schemas.HoldFailed {
				t.Errorf("read of the failed entity: got %+v, want it held as failed", again)
			}
		})
	}
}

func TestDeadLetter_FailedWriteHoldsRecord(t *testing.T) {
	r := newRig(t)
	var refuse atomic.Bool
	refuse.Store(true)
	refused := make(chan struct{}, 100)
	deadLetters := r.topicID(schemas.DeadLetterTopic("nexon"))
	r.kafka.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.KeepControl()
		p := req.(*kmsg.ProduceRequest)
		if !refuse.Load() || len(p.Topics) == 0 || p.Topics[0].TopicID != deadLetters {
			return nil, nil, false
		}
		select {
		case refused <- struct{}{}:
		default:
		}
		return servicetest.RefuseProduce(p, kerr.TopicAuthorizationFailed.Code), nil, true
	})
	r.produce(schemas.Low, kgo.Record{Value: []byte("poison")})
	r.work(schemas.Low)
	<-refused
	<-refused
	if r.lag(schemas.Low) != 1 {
		t.Error("the poisoned record was committed without its dead letter")
	}
	refuse.Store(false)
	r.untilCommitted(schemas.Low)
	if n := len(r.deadLetters()); n != 1 {
		t.Errorf("dead letters: got %d, want 1", n)
	}
}

// wideCompressor compresses with a window of several MiB, like Kafka clients other than franz-go.
type wideCompressor struct{}

func (wideCompressor) Compress(_ *bytes.Buffer, src []byte, _ ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		panic(err)
	}
	defer func() { _ = e.Close() }()
	return e.EncodeAll(src, nil), kgo.CodecZstd
}

func TestDeadLetter_FitsLargeCompressedRecord(t *testing.T) {
	r := newRig(t)
	brokers := servicetest.Kafka(t)
	name := servicetest.Name("large")
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DisableClientMetrics(), kgo.ProducerBatchMaxBytes(64<<20), kgo.WithCompressor(wideCompressor{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	admin := kadm.NewClient(client)
	for _, topic := range schemas.Topics(name) {
		most := strconv.Itoa(topic.MaxMessageBytes)
		if _, err := admin.CreateTopic(t.Context(), 1, 1, map[string]*string{"max.message.bytes": &most}, topic.Name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = admin.DeleteTopic(context.Background(), topic.Name) })
	}
	rng := rand.New(rand.NewPCG(1, 2))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	repeated := bytes.Repeat(noise(200<<10), 10)     // a value that compresses well only with a large window
	dense := []byte(fmt.Sprintf("%x", noise(1<<19))) // a value that compresses to half of its size, and then fits the topic
	// the last value is small: if its dead letter arrives, the two large values have not blocked the
	// partition
	for _, value := range [][]byte{repeated, dense, []byte("{")} {
		record := &kgo.Record{Topic: schemas.RequestTopic(name, schemas.High), Key: []byte("k"), Value: value}
		if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	config := r.config
	if r.source, err = source.New(name, config, nil, 4); err != nil {
		t.Fatal(err)
	}
	r.run(r.worker(consumer.DefaultConfig(schemas.High), r.db, permits{r.limiter}, kgo.SeedBrokers(brokers...), kgo.DisableClientMetrics()).Run)
	deadLetters := 0
	r.until("a dead letter for each", func() bool {
		ends, err := admin.ListEndOffsets(t.Context(), schemas.DeadLetterTopic(name))
		if err != nil {
			t.Fatal(err)
		}
		o, _ := ends.Lookup(schemas.DeadLetterTopic(name), 0)
		deadLetters = int(o.Offset)
		return deadLetters == 3
	})
}
