package consumer

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// maxDeadLetterBatch bounds the bytes of the dead letters that are sent and not acknowledged,
// and so the bytes of each batch: a topic takes a batch of at least 1 MiB. A larger dead
// letter is sent alone, for it may be as large as its topic allows.
const maxDeadLetterBatch = 512 << 10

// dlqClientOptions are the settings of the client that writes dead letters.
func dlqClientOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.WithCompressor(dlqCompressor{}),
		// A broker that hangs is given up; the letter is then written once more.
		kgo.RecordDeliveryTimeout(10 * time.Second),
		kgo.AllowIdempotentProduceCancellation(),
		kgo.ProduceRequestTimeout(5 * time.Second),
		kgo.RequestTimeoutOverhead(5 * time.Second),
		// The records that come while a batch is in flight make the next batch.
		kgo.ProducerLinger(0),
		// The topic's own limit is for the compressed batch; this one is for the
		// uncompressed record, and lets through what a request topic can hold.
		kgo.ProducerBatchMaxBytes(64 << 20),
	}
}

// dlqCompressor compresses as well as other clients do: the library's own has
// a small window, and a record that fitted its topic might not fit the letters'.
type dlqCompressor struct{}

// dlqEncoder makes them smaller. It is made once: its tables take longer to clear than
// a dead letter takes to compress.
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

// deadLetter ends a record that has failed for good as a dead letter.
func (w *Worker) deadLetter(ctx context.Context, t *task, l failure) {
	var before store.Status
	if w.owns(t) {
		var err error
		if before, err = w.readStatus(ctx, t.request.Entity); err != nil || w.endIfHeld(ctx, t, l, before) {
			return
		}
	}
	w.writeDeadLetter(ctx, t, l, before)
}

// publishDeadLetter writes a record on the dead-letter topic and returns it with its offset when
// Kafka has acknowledged it.
func (w *Worker) publishDeadLetter(ctx context.Context, r *kgo.Record) (*kgo.Record, error) {
	size := min(int64(recordSize(r)), maxDeadLetterBatch)
	if err := w.dlqUnacked.Acquire(ctx, size); err != nil {
		return nil, err
	}
	defer w.dlqUnacked.Release(size)
	return w.dlqClient.ProduceSync(ctx, r).First()
}

// recordSize returns the bytes of a record in a batch, or a few more.
func recordSize(r *kgo.Record) int {
	const overhead = 32 // of a record, and of a header: lengths and deltas
	n := overhead + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += overhead + len(h.Key) + len(h.Value)
	}
	return n
}

// writeDeadLetter puts the record, byte for byte as it came, on the dead-letter topic, writes
// down that its entity has failed, and settles its request. A letter that Kafka
// does not take holds its record. before is what was written down of the entity.
func (w *Worker) writeDeadLetter(ctx context.Context, t *task, l failure, before store.Status) {
	r := t.record
	d := deadLetter{schemas.DeadLetter{
		Key: r.Key, Value: r.Value, Reason: l.reason, Error: l.err.Error(), Attempts: t.calls,
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Group: schemas.Group(w.source.Name(), w.lane),
		Worker: w.config.WorkerName, Time: time.Now(),
		Status: l.outcome.Status, Sample: l.outcome.Sample, SampleType: l.outcome.SampleType,
	}}
	d.Headers = t.headers()
	var id store.DeadLetterID
	err := w.retry(ctx, opDeadLetters, func(ctx context.Context) error {
		put, err := w.publishDeadLetter(ctx, d.record(w.source.Name()))
		if errors.Is(err, kerr.MessageTooLarge) && d.ValueBytes == 0 {
			d = deadLetter{d.Cut()} // the next attempt
		}
		if errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID) {
			// A topic that was deleted and made again is another one, which the client
			// takes for the old one until it has forgotten that.
			w.dlqClient.PurgeTopicsFromProducing(schemas.DeadLetterTopic(w.source.Name()))
		}
		if err == nil {
			id = store.DeadLetterID{Topic: put.Topic, Partition: put.Partition, Offset: put.Offset}
		}
		return err
	})
	if err == nil {
		indexed, visibility := d.DeadLetter, w.source.Visibility(t.request.Entity.Key)
		if visibility != "" {
			indexed.Sample = nil // the index is listed to clients that may not see the content
		}
		err = w.fail(ctx, t, l, before, store.DeadLetter{
			DeadLetterID: id, Reason: l.reason, Error: indexed.Summary(), Fingerprint: indexed.Fingerprint(t.request.Entity), Status: d.Status, Attempts: t.calls,
			Replays: t.replay().Count, Visibility: visibility, At: d.Time, CorrelationID: t.request.CorrelationID,
		})
	}
	if err != nil {
		return // given up; the record is read again, and perhaps buried twice
	}
	t.finish()
	w.metrics.settled.WithLabelValues(endDeadLetter).Inc()
	t.traceEnd(endDeadLetter)
	w.metrics.errors.WithLabelValues(string(l.reason)).Inc()
	w.log.ErrorContext(t.traced(ctx), "dead letter", "reason", string(l.reason), "entity", t.request.Entity.String(), "attempts", t.calls,
		"topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "correlation_id", t.request.CorrelationID, "err", l.err)
}

// deadLetter is a letter as its topic takes it.
type deadLetter struct{ schemas.DeadLetter }

func (d deadLetter) record(source string) *kgo.Record {
	r := &kgo.Record{Topic: schemas.DeadLetterTopic(source), Key: d.Key, Value: d.Value}
	for _, h := range d.RecordHeaders() {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return r
}
