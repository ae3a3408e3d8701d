package harness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
)

// ConnectKafka returns a client that connects to the broker directly and not through the proxy.
func (s *Site) ConnectKafka(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(opts, kgo.SeedBrokers(s.Broker))...)
}

// Request is an update request that was read from a lane's topic, with the partition and offset
// of its record.
type Request struct {
	schemas.UpdateRequest
	Partition int32
	Offset    int64
}

// ReadTopic returns all records of a topic, up to its end at the time of the call. The records
// of each partition are in order.
func (s *Site) ReadTopic(ctx context.Context, topic string) (all []*kgo.Record, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*Timeout)
	defer cancel()
	client, err := s.ConnectKafka(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return nil, err
	}
	left := map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			left[end.Partition] = end.Offset
		}
	})
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("read %s (%d partitions are not read yet): %w", topic, len(left), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			all = append(all, r)
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return all, nil
}

// Requests returns the update requests on a lane's topic, in order within each partition.
func (s *Site) Requests(ctx context.Context, lane schemas.Lane) (all []Request, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	raw, err := s.ReadTopic(ctx, schemas.RequestTopic(s.Source, lane))
	for _, r := range raw {
		request, bad := schemas.DecodeUpdateRequest(r.Value)
		err = errors.Join(err, bad)
		all = append(all, Request{request, r.Partition, r.Offset})
	}
	return all, err
}

// CountByKey returns the number of update requests for each entity key.
func CountByKey(all []Request) map[string]int {
	count := map[string]int{}
	for _, r := range all {
		count[r.Key]++
	}
	return count
}

// Lag returns the number of records on the topics of these lanes whose offsets are not committed
// yet. It counts the records of the source s.Source only.
func (s *Site) Lag(ctx context.Context, lanes ...schemas.Lane) (int64, error) {
	return s.SourceLag(ctx, s.Source, lanes...)
}

// SourceLag returns the lag of one source, for sites with several sources. See Lag.
func (s *Site) SourceLag(ctx context.Context, source string, lanes ...schemas.Lane) (n int64, err error) {
	client, err := s.ConnectKafka()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	for _, lane := range lanes {
		topic := schemas.RequestTopic(source, lane)
		ends, err := admin.ListEndOffsets(ctx, topic)
		if err = errors.Join(err, ends.Error()); err != nil {
			return 0, err
		}
		committed, err := admin.FetchOffsets(ctx, schemas.Group(source, lane))
		if err != nil {
			return 0, err
		}
		ends.Each(func(o kadm.ListedOffset) {
			n += o.Offset
			if c, ok := committed.Lookup(topic, o.Partition); ok && c.At > 0 {
				n -= c.At
			}
		})
	}
	return n, nil
}

// UntilCommitted waits until the offset of every record in both lanes is committed.
func (s *Site) UntilCommitted(ctx context.Context, limit time.Duration) error {
	return Until(ctx, limit, "the commit of every offset", func() (bool, error) {
		n, err := s.Lag(ctx, schemas.High, schemas.Low)
		// Requests to Kafka fail while its group coordinator moves. The next poll tries again.
		return err == nil && n == 0, nil
	})
}

// DeadLetters returns the number of records on the dead-letter topic of the source s.Source.
func (s *Site) DeadLetters(ctx context.Context) (int, error) {
	return s.SourceDeadLetters(ctx, s.Source)
}

// SourceDeadLetters returns the number of records on the dead-letter topic of a source.
func (s *Site) SourceDeadLetters(ctx context.Context, source string) (n int, err error) {
	client, err := s.ConnectKafka()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, schemas.DeadLetterTopic(source))
	ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	return n, errors.Join(err, ends.Error())
}
