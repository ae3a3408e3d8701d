package consumer

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// letterOptions are the settings of the client that writes dead letters. One
// record is in the air at a time, each in a batch of its own: a letter may be as
// large as its topic allows, and two of them in one batch would not fit.
func letterOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(kgo.ZstdCompression(), kgo.NoCompression()),
		kgo.RecordDeliveryTimeout(10 * time.Second),
		kgo.MaxBufferedRecords(1),
		// The topic's own limit is for the compressed batch; this one, for the
		// uncompressed record, must not refuse what its request topic has taken.
		kgo.ProducerBatchMaxBytes(64 << 20),
	}
}

// letter is why a record becomes a dead letter.
type letter struct {
	reason  schemas.DeadLetterReason
	err     error
	number  int64 // of the last fetch, or the request's version
	outcome source.Outcome
}

// bury puts the record, byte for byte as it came, on the dead-letter topic and
// settles its request. A letter that Kafka does not take holds its record.
func (w *Worker) bury(ctx context.Context, t *task, l letter) {
	r := t.record
	d := schemas.DeadLetter{
		Key: r.Key, Value: r.Value, Reason: l.reason, Error: l.err.Error(), Attempts: t.calls,
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Group: schemas.Group(w.source.Name(), w.lane),
		Worker: w.config.Name, Time: time.Now(),
		Status: l.outcome.Status, Sample: l.outcome.Sample, SampleType: l.outcome.SampleType,
	}
	for _, h := range r.Headers {
		d.Headers = append(d.Headers, schemas.Header{Key: h.Key, Value: h.Value})
	}
	err := w.persist(ctx, "write a dead letter", func(ctx context.Context) error {
		out := &kgo.Record{Topic: schemas.DeadLetterTopic(w.source.Name()), Key: r.Key, Value: r.Value}
		for _, h := range d.RecordHeaders() {
			out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		return w.letters.ProduceSync(ctx, out).FirstErr()
	})
	if err == nil && t.request.EventID != "" { // it could be decoded, so it may hold a lock
		end := schemas.End{Entity: t.request.Entity, Number: l.number, Hold: schemas.HoldFailed, HoldFor: t.facet.FailedFor}
		if t.facet.FailedFor == 0 { // no such facet here
			end.Hold = ""
		}
		err = w.persist(ctx, "settle a dead letter", func(ctx context.Context) error {
			return w.requests.Settle(ctx, []schemas.End{end})
		})
	}
	if err != nil {
		return // given up; the record is read again, and perhaps buried twice
	}
	t.ledger.finish(r.Offset)
	w.metrics.settled.WithLabelValues("dead_letter").Inc()
	w.metrics.errors.WithLabelValues(string(l.reason)).Inc()
	w.log.Error("dead letter", "reason", string(l.reason), "entity", t.request.Entity.String(), "attempts", t.calls,
		"topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "correlation_id", t.request.CorrelationID, "err", l.err)
}
