package consumer_test

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/freshet/freshet/schemas"
)

func (r *rig) client(opts ...kgo.Opt) *kgo.Client {
	r.Helper()
	c, err := kgo.NewClient(append(r.brokers(), opts...)...)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(c.Close)
	return c
}

func (r *rig) brokers() []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(r.kafka.ListenAddrs()...), kgo.DisableClientMetrics(), kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond })}
}

// produce publishes a record, also an invalid one, to the lane's request topic.
func (r *rig) produce(lane schemas.Lane, record kgo.Record) kgo.Record {
	r.Helper()
	record.Topic = schemas.RequestTopic("nexon", lane)
	c := r.client(kgo.ProducerBatchMaxBytes(4 << 20))
	if err := c.ProduceSync(r.Context(), &record).FirstErr(); err != nil {
		r.Fatal(err)
	}
	return record
}

// produced returns the number of records on the lane's topic.
func (r *rig) produced(lane schemas.Lane) int64 {
	r.Helper()
	ends, err := r.admin.ListEndOffsets(r.Context(), schemas.RequestTopic("nexon", lane))
	if err != nil {
		r.Fatal(err)
	}
	var n int64
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n
}

func (r *rig) topicID(topic string) kadm.TopicID {
	r.Helper()
	topics, err := r.admin.ListTopics(context.Background(), topic)
	if err != nil {
		r.Fatal(err)
	}
	return topics[topic].ID
}

// lag returns the number of uncommitted records of the lane.
func (r *rig) lag(lane schemas.Lane) int64 {
	r.Helper()
	ends, err := r.admin.ListEndOffsets(r.Context(), schemas.RequestTopic("nexon", lane))
	if err != nil {
		r.Fatal(err)
	}
	committed, err := r.admin.FetchOffsets(r.Context(), schemas.Group("nexon", lane))
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		r.Fatal(err)
	}
	var lag int64
	ends.Each(func(o kadm.ListedOffset) {
		at, _ := committed.Lookup(o.Topic, o.Partition)
		lag += o.Offset - max(at.At, 0)
	})
	return lag
}

func (r *rig) untilCommitted(lane schemas.Lane) {
	r.Helper()
	r.until("the commit of everything in "+string(lane), func() bool { return r.lag(lane) == 0 })
}

// deadLetters returns all dead letters on the topic.
func (r *rig) deadLetters() []schemas.DeadLetter {
	r.Helper()
	topic := schemas.DeadLetterTopic("nexon")
	ends, err := r.admin.ListEndOffsets(r.Context(), topic)
	if err != nil {
		r.Fatal(err)
	}
	want := 0
	ends.Each(func(o kadm.ListedOffset) { want += int(o.Offset) })
	if want == 0 {
		return nil
	}
	c := r.client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer c.Close()
	var all []schemas.DeadLetter
	for len(all) < want {
		fetches := c.PollFetches(r.Context())
		if err := fetches.Err(); err != nil {
			r.Fatal(err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			var headers []schemas.Header
			for _, h := range rec.Headers {
				headers = append(headers, schemas.Header{Key: h.Key, Value: h.Value})
			}
			d, err := schemas.ParseDeadLetter(rec.Key, rec.Value, headers)
			if err != nil {
				r.Fatal(err)
			}
			all = append(all, d)
		})
	}
	return all
}

// blockProduce makes the embedded broker leave produce requests to the topic unanswered until the
// test ends. The returned channel is closed when the first such request arrives.
func (r *rig) blockProduce(topic string) <-chan struct{} {
	r.Helper()
	id := r.topicID(topic)
	hang, reached := make(chan struct{}), make(chan struct{}, 100)
	r.Cleanup(func() { close(hang) })
	r.kafka.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.KeepControl()
		produce, _ := req.(*kmsg.ProduceRequest)
		for _, t := range produce.Topics {
			if t.Topic == topic || t.TopicID == id {
				reached <- struct{}{}
				r.kafka.SleepControl(func() { <-hang })
			}
		}
		return nil, nil, false
	})
	return reached
}
