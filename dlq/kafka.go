package dlq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/topics"
)

const (
	// maxOffsetGap is how many records that nobody wants are read rather than passed over.
	maxOffsetGap = 2000
	// maxClockStepBack is how much earlier than it was a job may say that its record was written: the
	// clock of its host may have been set back since the job noted the time.
	maxClockStepBack = time.Minute
	// maxClockSkew is how much later than it was, another producer may say that its record was
	// written: those of a job may lie behind it. lateMost in a row are later than that because
	// it is later: clocks that are further ahead are those of a few hosts.
	maxClockSkew   = 5 * time.Minute
	maxLateRecords = 5000
	// maxFetchBytes bounds what one look at Kafka brings, in bytes: a letter may have a MiB.
	maxFetchBytes = 4 << 20
)

// Kafka is the letters' topics in Kafka.
type Kafka struct {
	options []kgo.Opt // of a client
}

// NewKafka returns the topics as a client with the options sees them.
func NewKafka(options []kgo.Opt) *Kafka { return &Kafka{options} }

// client returns a client that reads no partition yet.
func (k *Kafka) client() (*kgo.Client, error) {
	c, err := kgo.NewClient(append(append([]kgo.Opt{}, k.options...),
		kgo.FetchMaxBytes(maxFetchBytes), kgo.FetchMaxPartitionBytes(maxFetchBytes), kgo.FetchMaxWait(500*time.Millisecond))...)
	if err != nil {
		return nil, fmt.Errorf("make a Kafka client: %w", err)
	}
	return c, nil
}

// span is a stretch of one partition: records from first to last, both of them wanted.
type span struct {
	partition   int32
	first, last int64
}

// spans returns the stretches in which the wanted letters lie, without long gaps. They are
// sorted, and so are these.
func spans(ids []store.DeadLetterID, starts, ends kadm.ListedOffsets) []span {
	var all []span
	for _, id := range ids {
		start, known := starts.Lookup(id.Topic, id.Partition)
		end, _ := ends.Lookup(id.Topic, id.Partition)
		if !known || id.Offset < start.Offset || id.Offset >= end.Offset {
			continue // it is gone
		}
		if n := len(all) - 1; n >= 0 && all[n].partition == id.Partition && id.Offset-all[n].last <= maxOffsetGap {
			all[n].last = id.Offset
		} else {
			all = append(all, span{id.Partition, id.Offset, id.Offset})
		}
	}
	return all
}

// ReadDeadLetters implements Mail.
func (k *Kafka) ReadDeadLetters(ctx context.Context, ids []store.DeadLetterID, found func(store.DeadLetterID, ReadResult)) error {
	if len(ids) == 0 {
		return nil
	}
	topic := ids[0].Topic
	c, err := k.client()
	if err != nil {
		return err
	}
	defer c.Close()
	starts, ends, err := topics.Bounds(ctx, kadm.NewClient(c), topic)
	if err != nil {
		return err
	}
	wanted := make(map[store.DeadLetterID]bool, len(ids))
	for _, id := range ids {
		wanted[id] = true
	}
	for _, s := range spans(ids, starts, ends) {
		c.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {s.partition: kgo.NewOffset().At(s.first)}})
		err := consumeRecords(ctx, c, func(r *kgo.Record) (more bool) {
			if id := (store.DeadLetterID{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}); wanted[id] && r.Offset <= s.last {
				found(id, parseRecord(r))
			}
			return r.Offset < s.last
		})
		if err != nil {
			return err
		}
		c.RemoveConsumePartitions(map[string][]int32{topic: {s.partition}})
	}
	return nil
}

func parseRecord(r *kgo.Record) ReadResult {
	letter, err := schemas.ParseDeadLetter(r.Key, r.Value, headersOf(r))
	return ReadResult{letter, err}
}

func headersOf(r *kgo.Record) []schemas.Header {
	headers := make([]schemas.Header, 0, len(r.Headers))
	for _, h := range r.Headers {
		headers = append(headers, schemas.Header(h))
	}
	return headers
}

// consumeRecords tells of each record until one is the last of its partition's, which must be the only
// one that is read.
func consumeRecords(ctx context.Context, c *kgo.Client, each func(*kgo.Record) (more bool)) error {
	for {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return err
		}
		var errs []error
		fetches.EachError(func(topic string, partition int32, err error) {
			errs = append(errs, fmt.Errorf("read %s, partition %d: %w", topic, partition, err))
		})
		if len(errs) > 0 {
			return errors.Join(errs...)
		}
		more := true
		fetches.EachRecord(func(r *kgo.Record) { more = each(r) && more })
		if !more {
			return nil
		}
	}
}

// EnqueuedByJob implements Mail.
func (k *Kafka) EnqueuedByJob(ctx context.Context, topic, job string, from, to time.Time) (map[string]bool, error) {
	c, err := k.client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	admin := kadm.NewClient(c)
	_, ends, err := topics.Bounds(ctx, admin, topic)
	if err != nil {
		return nil, err
	}
	since, err := admin.ListOffsetsAfterMilli(ctx, from.Add(-maxClockStepBack).UnixMilli(), topic)
	if err == nil {
		err = since.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("look at topic %s: %w", topic, err)
	}
	asked := map[string]bool{}
	for _, first := range since.Offsets()[topic] {
		end, _ := ends.Lookup(topic, first.Partition)
		if first.At >= end.Offset {
			continue
		}
		c.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {first.Partition: kgo.NewOffset().At(first.At)}})
		late := 0
		err := consumeRecords(ctx, c, func(r *kgo.Record) (more bool) {
			if m := schemas.ReplayOf(headersOf(r)); m.ID == job && m.Of != "" {
				asked[m.Of] = true
			}
			if late++; !r.Timestamp.After(to.Add(maxClockSkew)) {
				late = 0
			}
			return r.Offset < end.Offset-1 && late < maxLateRecords
		})
		if err != nil {
			return nil, err
		}
		c.RemoveConsumePartitions(map[string][]int32{topic: {first.Partition}})
	}
	return asked, nil
}

// Bounds implements Mail.
func (k *Kafka) Bounds(ctx context.Context, topic string) (map[int32]PartitionBounds, error) {
	c, err := k.client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	starts, ends, err := topics.Bounds(ctx, kadm.NewClient(c), topic)
	if err != nil {
		return nil, err
	}
	bounds := map[int32]PartitionBounds{}
	starts.Each(func(start kadm.ListedOffset) {
		end, _ := ends.Lookup(topic, start.Partition)
		bounds[start.Partition] = PartitionBounds{start.Offset, end.Offset}
	})
	return bounds, nil
}

// DeleteBefore implements Mail.
func (k *Kafka) DeleteBefore(ctx context.Context, topic string, before map[int32]int64) (map[int32]int64, error) {
	c, err := k.client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	admin := kadm.NewClient(c)
	starts, ends, err := topics.Bounds(ctx, admin, topic)
	if err != nil {
		return nil, err
	}
	cut := kadm.Offsets{}
	after := map[int32]int64{}
	starts.Each(func(start kadm.ListedOffset) {
		end, _ := ends.Lookup(topic, start.Partition)
		after[start.Partition] = start.Offset
		if at := min(before[start.Partition], end.Offset); at > start.Offset {
			cut.AddOffset(topic, start.Partition, at, -1)
			after[start.Partition] = at
		}
	})
	if len(cut) == 0 {
		return after, nil
	}
	answers, err := admin.DeleteRecords(ctx, cut)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("delete handled letters of %s: %w", topic, err)
	}
	return after, nil
}
