package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
)

// What a scenario is judged by: what Kafka, the database and the upstream know.

// connectKafka returns a client of the scenario's own, past the slow way.
func (s *site) connectKafka(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(opts, kgo.SeedBrokers(s.broker))...)
}

// record is one of a request topic.
type record struct {
	schemas.UpdateRequest
	partition int32
	offset    int64
}

// everything returns all that lies on a topic, from its start to its present end, each
// partition's in order.
func (s *site) everything(ctx context.Context, topic string) (all []*kgo.Record, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	client, err := s.connectKafka(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
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
			return nil, fmt.Errorf("read %s, of which %d partitions are left: %w", topic, len(left), err)
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

// records returns all that lie on a lane's topic now, each partition's in order.
func (s *site) records(ctx context.Context, lane schemas.Lane) (all []record, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	raw, err := s.everything(ctx, schemas.RequestTopic(s.source, lane))
	for _, r := range raw {
		request, bad := schemas.DecodeUpdateRequest(r.Value)
		err = errors.Join(err, bad)
		all = append(all, record{request, r.Partition, r.Offset})
	}
	return all, err
}

// perKey returns how many records each key has.
func perKey(all []record) map[string]int {
	count := map[string]int{}
	for _, r := range all {
		count[r.Key]++
	}
	return count
}

// behind returns how many records of the lanes are not committed.
func (s *site) behind(ctx context.Context, lanes ...schemas.Lane) (n int64, err error) {
	client, err := s.connectKafka()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	for _, lane := range lanes {
		topic := schemas.RequestTopic(s.source, lane)
		ends, err := admin.ListEndOffsets(ctx, topic)
		if err = errors.Join(err, ends.Error()); err != nil {
			return 0, err
		}
		committed, err := admin.FetchOffsets(ctx, schemas.Group(s.source, lane))
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

// untilCommitted waits until nothing of both lanes is left to do.
func (s *site) untilCommitted(ctx context.Context, limit time.Duration) error {
	return s.until(ctx, limit, "every offset is committed", func() (bool, error) {
		n, err := s.behind(ctx, schemas.High, schemas.Low)
		// A coordinator that moves answers with an error; the next look tells.
		return err == nil && n == 0, nil
	})
}

// until is within, and an error if it did not come about.
func (s *site) until(ctx context.Context, limit time.Duration, what string, ask func() (bool, error)) error {
	came := false
	err := within(ctx, limit, func() (done bool, err error) {
		came, err = ask()
		return came, err
	})
	if err == nil && !came {
		err = fmt.Errorf("it does not happen within %v that %s", limit, what)
	}
	return err
}

// letters returns how many dead letters there are.
func (s *site) letters(ctx context.Context) (n int, err error) {
	client, err := s.connectKafka()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, schemas.DeadLetterTopic(s.source))
	ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	return n, errors.Join(err, ends.Error())
}

const (
	storedOf   = "SELECT count(*) FROM snapshot_state WHERE starts_with(key, $1)"
	failedRows = "SELECT count(*) FROM update_status"
)

// number returns the single number that a query of the database gives.
func (s *site) number(ctx context.Context, sql string, args ...any) (n int, err error) {
	conn, err := pgx.Connect(ctx, s.database)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	err = conn.QueryRow(ctx, sql, args...).Scan(&n)
	return n, err
}

// untilStored waits until so many snapshots of keys that begin so are stored.
func (s *site) untilStored(ctx context.Context, limit time.Duration, prefix string, want int) error {
	n := 0
	err := s.until(ctx, limit, fmt.Sprintf("%d snapshots of %s… are stored", want, prefix), func() (done bool, err error) {
		n, err = s.number(ctx, storedOf, prefix)
		return n >= want, err
	})
	if err != nil {
		err = fmt.Errorf("%w; there are %d", err, n)
	}
	return err
}

// arrival is a call as the upstream wrote it down.
type arrival struct {
	at     time.Time
	key    string
	status int
	fault  simulator.Kind
}

// told returns what the upstream tells of itself under a path; it is to be closed.
func (s *site) told(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.upstream+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (s *site) stats(ctx context.Context) (st simulator.Stats, err error) {
	text, err := s.told(ctx, "/_stats")
	if err != nil {
		return st, err
	}
	defer func() { _ = text.Close() }()
	return st, json.NewDecoder(text).Decode(&st)
}

// arrivals returns all calls, in their order.
func (s *site) arrivals(ctx context.Context) (all []arrival, err error) {
	st, err := s.stats(ctx)
	if err != nil || st.Arrivals == 0 {
		return nil, err
	}
	text, err := s.told(ctx, "/_arrivals")
	if err != nil {
		return nil, err
	}
	defer func() { _ = text.Close() }()
	var start time.Time
	for lines := json.NewDecoder(text); lines.More(); {
		var l struct {
			At     int64 // microseconds since the upstream's start
			Key    string
			Status int
			Fault  simulator.Kind
		}
		if err := lines.Decode(&l); err != nil {
			return nil, err
		}
		at := time.Duration(l.At) * time.Microsecond
		if start.IsZero() {
			start = st.FirstArrival.Add(-at)
		}
		all = append(all, arrival{start.Add(at), l.Key, l.Status, l.Fault})
	}
	return all, nil
}

// calls counts those for keys that begin so, within a time.
func calls(all []arrival, prefix string, from, to time.Time) (n int) {
	for _, a := range all {
		if strings.HasPrefix(a.key, prefix) && !a.at.Before(from) && a.at.Before(to) {
			n++
		}
	}
	return n
}

// mostInASecond is the greatest number of calls in any second that ends within a time.
func mostInASecond(all []arrival, from, to time.Time) (most int) {
	first := 0
	for i, a := range all {
		for a.at.Sub(all[first].at) > time.Second {
			first++
		}
		if !a.at.Before(from) && a.at.Before(to) {
			most = max(most, i-first+1)
		}
	}
	return most
}

// judgeContract judges what arrived at the upstream by its contract.
func (t *table) judgeContract(st simulator.Stats) {
	t.judge("most calls in a sliding second, refused", fmt.Sprintf("%d, %d", st.MaxInSlidingSecond, st.Refused), "<=500, 0",
		st.MaxInSlidingSecond <= 500 && st.Refused == 0)
}

// judgeLoss judges that nothing was given up or taken for a failure.
func (s *site) judgeLoss(ctx context.Context, t *table) error {
	letters, err := s.letters(ctx)
	if err != nil {
		return err
	}
	failed, err := s.number(ctx, failedRows)
	t.judge("dead letters, failures written down", fmt.Sprintf("%d, %d", letters, failed), "0, 0", letters+failed == 0)
	return err
}

// different counts the keys that were called.
func different(all []arrival) int {
	keys := map[string]bool{}
	for _, a := range all {
		keys[a.key] = true
	}
	return len(keys)
}
