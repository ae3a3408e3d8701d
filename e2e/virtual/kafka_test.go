package virtual

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/schemas"
)

// partition is a partition of a topic.
type partition struct {
	topic  string
	number int32
}

// recordID identifies a record in Kafka.
type recordID struct {
	partition
	offset int64
}

// record is a record of a request topic.
type record struct {
	recordID
	schemas.UpdateRequest
}

// kafkaReader reads all topics of the source, from where the last read has ended.
type kafkaReader struct {
	dial        app.Dialer
	next        map[partition]int64
	deadLetters map[recordID]bool // the records that have become dead letters
}

func newKafkaReader(dial app.Dialer) *kafkaReader {
	return &kafkaReader{dial, map[partition]int64{}, map[recordID]bool{}}
}

// read adds the committed offsets, the end offsets and the new records to the state, in this order.
func (k *kafkaReader) read(ctx context.Context, s *state) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(kafkaAddress), kgo.Dialer(k.dial), kgo.DisableClientMetrics())
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	s.committed = map[partition]int64{}
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		offsets, err := admin.FetchOffsets(ctx, schemas.Group(sourceName, lane))
		if err != nil {
			return fmt.Errorf("read the offsets of the lane %s: %w", lane, err)
		}
		offsets.Each(func(o kadm.OffsetResponse) { s.committed[partition{o.Topic, o.Partition}] = o.At })
	}
	topics := []string{schemas.RequestTopic(sourceName, schemas.High), schemas.RequestTopic(sourceName, schemas.Low), schemas.DeadLetterTopic(sourceName)}
	ends, err := admin.ListEndOffsets(ctx, topics...)
	if err = errors.Join(err, ends.Error()); err != nil {
		return fmt.Errorf("read the end offsets: %w", err)
	}
	s.ends = map[partition]int64{}
	ends.Each(func(o kadm.ListedOffset) { s.ends[partition{o.Topic, o.Partition}] = o.Offset })
	err = k.readRecords(ctx, s)
	s.deadLetters = k.deadLetters
	return err
}

// readRecords reads the records up to the end offsets.
func (k *kafkaReader) readRecords(ctx context.Context, s *state) error {
	from, left := map[string]map[int32]kgo.Offset{}, 0
	for p, end := range s.ends {
		if k.next[p] < end {
			if from[p.topic] == nil {
				from[p.topic] = map[int32]kgo.Offset{}
			}
			from[p.topic][p.number] = kgo.NewOffset().At(k.next[p])
			left++
		}
	}
	if left == 0 {
		return nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(kafkaAddress), kgo.Dialer(k.dial), kgo.DisableClientMetrics(), kgo.ConsumePartitions(from))
	if err != nil {
		return err
	}
	defer client.Close()
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read records: %w", err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			p := partition{r.Topic, r.Partition}
			if r.Offset < k.next[p] || r.Offset >= s.ends[p] {
				return
			}
			k.next[p] = r.Offset + 1
			if k.next[p] == s.ends[p] {
				left--
			}
			err = errors.Join(err, k.add(s, r))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (k *kafkaReader) add(s *state, r *kgo.Record) error {
	if r.Topic == schemas.DeadLetterTopic(sourceName) {
		var headers []schemas.Header
		for _, h := range r.Headers {
			headers = append(headers, schemas.Header{Key: h.Key, Value: h.Value})
		}
		d, err := schemas.ParseDeadLetter(r.Key, r.Value, headers)
		k.deadLetters[recordID{partition{d.Topic, d.Partition}, d.Offset}] = true
		return err
	}
	request, err := schemas.DecodeUpdateRequest(r.Value)
	s.records = append(s.records, &record{recordID{partition{r.Topic, r.Partition}, r.Offset}, request})
	return err
}
