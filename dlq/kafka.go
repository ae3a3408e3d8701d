package dlq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/topics"
)

const (
	// maxOffsetGap is the maximum number of records between two wanted dead letters that
	// ReadDeadLetters reads and discards. If more records are between them, ReadDeadLetters seeks
	// to the second dead letter.
	maxOffsetGap = 2000
	// maxClockStepBack is how long before the time "from" EnqueuedByJob starts to search. The job's
	// records may have earlier timestamps than "from", because the host's clock may have been set
	// back after the job had saved "from" as its ChunkStartedAt.
	maxClockStepBack = time.Minute
	// maxClockSkew is how far the clock of another producer may be ahead. EnqueuedByJob searches a
	// partition until maxLateRecords consecutive records have timestamps later than the time "to"
	// plus maxClockSkew. Fewer such records may come from a wrong clock, and records of the job may
	// follow them.
	maxClockSkew   = 5 * time.Minute
	maxLateRecords = 5000
	// maxFetchBytes is the maximum size of one fetch. A dead letter may be 1 MiB large.
	maxFetchBytes = 4 << 20
)

// Kafka implements Topics with a Kafka client.
type Kafka struct {
	options []kgo.Opt
}

// NewKafka returns a Kafka that creates a client with these options for each call.
func NewKafka(options []kgo.Opt) *Kafka { return &Kafka{options} }

// client returns a client without assigned partitions.
func (k *Kafka) client() (*kgo.Client, error) {
	c, err := kgo.NewClient(append(append([]kgo.Opt{}, k.options...),
		kgo.FetchMaxBytes(maxFetchBytes), kgo.FetchMaxPartitionBytes(maxFetchBytes), kgo.FetchMaxWait(500*time.Millisecond))...)
	if err != nil {
		return nil, fmt.Errorf("create a kafka client: %w", err)
	}
	return c, nil
}

// span is a range of offsets in one partition; both first and last belong to it.
type span struct {
	partition   int32
	first, last int64
}

// spans returns the ranges of offsets that contain the given dead letters. The dead letters must be
// sorted. Offsets that the topic does not have are left out. After a gap of more than maxOffsetGap a
// new range begins.
func spans(ids []deadletters.ID, starts, ends kadm.ListedOffsets) []span {
	var all []span
	for _, id := range ids {
		start, known := starts.Lookup(id.Topic, id.Partition)
		end, _ := ends.Lookup(id.Topic, id.Partition)
		if !known || id.Offset < start.Offset || id.Offset >= end.Offset {
			continue // the topic does not have this record: it was deleted, or never existed
		}
		if n := len(all) - 1; n >= 0 && all[n].partition == id.Partition && id.Offset-all[n].last <= maxOffsetGap {
			all[n].last = id.Offset
		} else {
			all = append(all, span{id.Partition, id.Offset, id.Offset})
		}
	}
	return all
}

// ReadDeadLetters implements Topics.
func (k *Kafka) ReadDeadLetters(ctx context.Context, ids []deadletters.ID, found func(deadletters.ID, ReadResult)) error {
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
	wanted := make(map[deadletters.ID]bool, len(ids))
	for _, id := range ids {
		wanted[id] = true
	}
	for _, s := range spans(ids, starts, ends) {
		c.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {s.partition: kgo.NewOffset().At(s.first)}})
		err := consumeRecords(ctx, c, func(r *kgo.Record) (more bool) {
			if id := (deadletters.ID{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}); wanted[id] && r.Offset <= s.last {
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
	deadLetter, err := schemas.ParseDeadLetter(r.Key, r.Value, headersOf(r))
	return ReadResult{deadLetter, err}
}

func headersOf(r *kgo.Record) []schemas.Header {
	headers := make([]schemas.Header, 0, len(r.Headers))
	for _, h := range r.Headers {
		headers = append(headers, schemas.Header(h))
	}
	return headers
}

// consumeRecords calls the function `each` for every record, until the function returns false. The
// client must have exactly one assigned partition.
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

// EnqueuedByJob implements Topics.
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
		return nil, fmt.Errorf("list offsets of topic %s: %w", topic, err)
	}
	enqueued := map[string]bool{}
	for _, first := range since.Offsets()[topic] {
		end, _ := ends.Lookup(topic, first.Partition)
		if first.At >= end.Offset {
			continue
		}
		c.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {first.Partition: kgo.NewOffset().At(first.At)}})
		late := 0
		err := consumeRecords(ctx, c, func(r *kgo.Record) (more bool) {
			if m := schemas.ReplayOf(headersOf(r)); m.ID == job && m.Of != "" {
				enqueued[m.Of] = true
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
	return enqueued, nil
}

// Bounds implements Topics.
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

// DeleteBefore implements Topics.
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
	offsets := kadm.Offsets{}
	after := map[int32]int64{}
	starts.Each(func(start kadm.ListedOffset) {
		end, _ := ends.Lookup(topic, start.Partition)
		after[start.Partition] = start.Offset
		if at := min(before[start.Partition], end.Offset); at > start.Offset {
			offsets.AddOffset(topic, start.Partition, at, -1)
			after[start.Partition] = at
		}
	})
	if len(offsets) == 0 {
		return after, nil
	}
	responses, err := admin.DeleteRecords(ctx, offsets)
	if err == nil {
		err = responses.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("delete handled records of topic %s: %w", topic, err)
	}
	return after, nil
}
