package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/semaphore"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// maxDeadLetterBatch is the maximum number of bytes of unacknowledged dead letters, and thus of one
// batch. The topic accepts such a batch, because the size limit of each topic is at least 1 MiB. A
// dead letter above this limit is sent in a batch of its own, and may be as large as its topic
// allows.
const maxDeadLetterBatch = 512 << 10

// dlqClientOptions returns the settings of the Kafka client that writes dead letters.
func dlqClientOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.WithCompressor(dlqCompressor{}),
		// If a broker hangs, the client gives up after this time, and writeDeadLetter tries again.
		kgo.RecordDeliveryTimeout(10 * time.Second),
		kgo.AllowIdempotentProduceCancellation(),
		kgo.ProduceRequestTimeout(5 * time.Second),
		kgo.RequestTimeoutOverhead(5 * time.Second),
		// No linger is needed: records that arrive while a batch is in flight form the next batch.
		kgo.ProducerLinger(0),
		// The topic limits compressed batches; this limit is for uncompressed records. It admits
		// every record that fits a request topic.
		kgo.ProducerBatchMaxBytes(64 << 20),
	}
}

// dlqCompressor compresses records with zstd. Its compression window is as large as in other Kafka
// clients, and larger than in franz-go's own compressor. With the smaller window, a record that
// fitted its request topic might not fit the dead-letter topic.
type dlqCompressor struct{}

// dlqEncoder returns the shared encoder. It is created once, because creating an encoder takes
// longer than compressing a dead letter.
var dlqEncoder = sync.OnceValues(func() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
})

// Compress implements kgo.Compressor.
func (dlqCompressor) Compress(_ *bytes.Buffer, src []byte, _ ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	e, err := dlqEncoder()
	if err != nil {
		return src, kgo.CodecNone
	}
	return e.EncodeAll(src, nil), kgo.CodecZstd
}

// deadLetterTopic publishes the dead letters of a worker.
type deadLetterTopic struct {
	client  *kgo.Client
	unacked *semaphore.Weighted // bounds the unacknowledged bytes to maxDeadLetterBatch
}

// newDeadLetterTopic returns a deadLetterTopic with a Kafka client of its own.
func newDeadLetterTopic(connection ...kgo.Opt) (*deadLetterTopic, error) {
	client, err := kgo.NewClient(append(dlqClientOptions(), connection...)...)
	if err != nil {
		return nil, fmt.Errorf("create the Kafka client for dead letters: %w", err)
	}
	return &deadLetterTopic{client, semaphore.NewWeighted(maxDeadLetterBatch)}, nil
}

// publish writes a record to the dead-letter topic. It returns the record with its offset after Kafka
// has acknowledged it.
func (d *deadLetterTopic) publish(ctx context.Context, r *kgo.Record) (*kgo.Record, error) {
	size := min(int64(recordSize(r)), maxDeadLetterBatch)
	if err := d.unacked.Acquire(ctx, size); err != nil {
		return nil, err
	}
	defer d.unacked.Release(size)
	put, err := d.client.ProduceSync(ctx, r).First()
	if errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID) {
		// If the topic was deleted and created again, the client must drop the old topic's ID.
		d.client.PurgeTopicsFromProducing(r.Topic)
	}
	return put, err
}

// deadLetter writes a dead letter for a record that failed permanently and settles its request. It
// writes none if an earlier dead letter of the entity covers the request (endIfHeld).
func (s *settler) deadLetter(ctx context.Context, t *task, f failure) {
	var before store.Status
	if t.ownedBy(s.source) {
		var err error
		if before, err = s.db.status(ctx, t.request.Entity); err != nil || s.endIfHeld(ctx, t, f, before) {
			return
		}
	}
	s.writeDeadLetter(ctx, t, f, before)
}

// recordSize returns an upper bound of a record's bytes in a batch.
func recordSize(r *kgo.Record) int {
	const overhead = 32 // upper bound, in bytes, of the lengths and deltas that encode one record or one header
	n := overhead + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += overhead + len(h.Key) + len(h.Value)
	}
	return n
}

// writeDeadLetter copies the record byte for byte to the dead-letter topic, stores that its entity has
// failed, and settles its request. It retries until Kafka accepts the dead letter. `before` is the
// entity's previous status.
func (s *settler) writeDeadLetter(ctx context.Context, t *task, f failure, before store.Status) {
	if s.walks.abandon(ctx, t) != nil {
		return // ctx ended; the record stays uncommitted, and a worker reads it again
	}
	r := t.record
	d := deadLetter{schemas.DeadLetter{
		Key: r.Key, Value: r.Value, Reason: f.reason, Error: f.err.Error(), Attempts: t.calls,
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Group: schemas.Group(s.source.Name(), s.lane),
		Worker: s.config.WorkerName, Time: time.Now(),
		Status: f.outcome.Status, Sample: f.outcome.Sample, SampleType: f.outcome.SampleType,
	}}
	d.Headers = t.headers()
	var id deadletters.ID
	err := s.retry(ctx, opDeadLetters, func(ctx context.Context) error {
		put, err := s.dlq.publish(ctx, d.record(s.source.Name()))
		if errors.Is(err, kerr.MessageTooLarge) && d.ValueBytes == 0 {
			d = deadLetter{d.Cut()} // the dead letter is too large for its topic, so the next try writes it shortened
		}
		if err == nil {
			id = deadletters.ID{Topic: put.Topic, Partition: put.Partition, Offset: put.Offset}
		}
		return err
	})
	if err == nil {
		indexed, visibility := d.DeadLetter, s.source.Visibility(t.request.Entity.Key)
		if visibility != "" {
			indexed.Sample = nil // do not store the upstream's response (the sample) in dead_letters, because clients that must not see this content can list these rows
		}
		err = s.fail(ctx, t, f, before, deadletters.DeadLetter{
			ID: id, Reason: f.reason, Error: indexed.Summary(), Fingerprint: indexed.Fingerprint(t.request.Entity), Status: d.Status, Attempts: t.calls,
			Replays: t.replay().Count, Visibility: visibility, At: d.Time, CorrelationID: t.request.CorrelationID,
		})
	}
	if err != nil {
		return // the record stays uncommitted and is read again, so a second dead letter may be written
	}
	t.finish()
	s.metrics.settled.WithLabelValues(endDeadLetter).Inc()
	t.traceEnd(endDeadLetter)
	s.metrics.errors.WithLabelValues(string(f.reason)).Inc()
	s.log.ErrorContext(t.traced(ctx), "dead letter written", "reason", string(f.reason), "entity", t.request.Entity.String(), "attempts", t.calls,
		"topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "correlation_id", t.request.CorrelationID, "err", f.err)
}

// deadLetter converts a schemas.DeadLetter to a record of the dead-letter topic.
type deadLetter struct{ schemas.DeadLetter }

func (d deadLetter) record(source string) *kgo.Record {
	r := &kgo.Record{Topic: schemas.DeadLetterTopic(source), Key: d.Key, Value: d.Value}
	for _, h := range d.RecordHeaders() {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return r
}
