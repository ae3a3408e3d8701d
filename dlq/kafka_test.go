package dlq

import (
	"crypto/rand"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/topics"
)

// broker is a Kafka broker with a topic of three partitions.
type broker struct {
	*testing.T
	kafka  *Kafka
	client *kgo.Client
	admin  *kadm.Client
	topic  string
}

// eachKafka runs a test with an in-process broker, and again with a real broker.
func eachKafka(t *testing.T, test func(b *broker)) {
	t.Helper()
	for name, addresses := range map[string]func(t *testing.T) []string{
		"in process": func(t *testing.T) []string {
			t.Helper()
			c, err := kfake.NewCluster(kfake.NumBrokers(1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			return c.ListenAddrs()
		},
		"real": func(t *testing.T) []string { t.Helper(); return servicetest.Kafka(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := []kgo.Opt{kgo.SeedBrokers(addresses(t)...), kgo.DisableClientMetrics()}
			client, err := kgo.NewClient(append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(3<<20))...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(client.Close)
			b := &broker{T: t, kafka: NewKafka(options), client: client, admin: kadm.NewClient(client), topic: servicetest.Name("dlq")}
			size := "3000000"
			if _, err := b.admin.CreateTopic(t.Context(), 3, 1, map[string]*string{"max.message.bytes": &size}, b.topic); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = b.admin.DeleteTopic(t.Context(), b.topic) })
			b.known()
			test(b)
		})
	}
}

// known waits until the broker returns the three partitions of the new topic.
func (b *broker) known() {
	b.Helper()
	for since := time.Now(); ; <-time.After(20 * time.Millisecond) {
		_, ends, err := topics.Bounds(b.Context(), b.admin, b.topic)
		if err == nil && len(ends.Offsets()[b.topic]) == 3 {
			return
		}
		if time.Since(since) > 20*time.Second {
			b.Fatal(err)
		}
	}
}

func (b *broker) put(records ...*kgo.Record) {
	b.Helper()
	for _, r := range records {
		r.Topic = b.topic
	}
	if err := b.client.ProduceSync(b.Context(), records...).FirstErr(); err != nil {
		b.Fatal(err)
	}
}

// deadLetterRecord returns a dead-letter record with this value.
func (b *broker) deadLetterRecord(partition int32, value []byte) *kgo.Record {
	r := &kgo.Record{Partition: partition, Value: value}
	for _, h := range (schemas.DeadLetter{Reason: schemas.Upstream5xx, Time: time.Now()}).RecordHeaders() {
		r.Headers = append(r.Headers, kgo.RecordHeader(h))
	}
	return r
}

func (b *broker) fill(partition int32, n int) {
	b.Helper()
	var all []*kgo.Record
	for i := range n {
		all = append(all, b.deadLetterRecord(partition, fmt.Appendf(nil, "%d:%d", partition, i)))
	}
	b.put(all...)
}

// read reads the dead letters and returns their values by partition:offset.
func (b *broker) read(ids ...deadletters.ID) map[string]string {
	b.Helper()
	found := map[string]string{}
	for i := range ids {
		ids[i].Topic = b.topic
	}
	if err := b.kafka.ReadDeadLetters(b.Context(), ids, func(id deadletters.ID, r ReadResult) {
		if _, twice := found[formatID(id)]; twice || r.Err != nil {
			b.Errorf("%s was read twice or with an error: %v", formatID(id), r.Err)
		}
		found[formatID(id)] = string(r.DeadLetter.Value)
	}); err != nil {
		b.Fatal(err)
	}
	return found
}

func TestReadDeadLetters_FindsEachByOffset(t *testing.T) {
	t.Parallel()
	eachKafka(t, func(b *broker) {
		if got := b.read(idOf(0, 0), idOf(2, 7), idOf(9, 1)); len(got) != 0 {
			b.Errorf("empty topic: got %v", got)
		}
		b.fill(0, 5000)
		b.fill(2, 30)
		if _, err := b.kafka.DeleteBefore(b.Context(), b.topic, map[int32]int64{0: 10}); err != nil {
			b.Fatal(err)
		}
		var want []string
		for _, id := range []deadletters.ID{idOf(0, 10), idOf(0, 11), idOf(0, 500), idOf(0, 2499), idOf(0, 4999), idOf(2, 0), idOf(2, 29)} {
			want = append(want, formatID(id))
		}
		got := b.read(idOf(0, 3), idOf(0, 9), idOf(0, 10), idOf(0, 11), idOf(0, 500), idOf(0, 2499), idOf(0, 4999), idOf(0, 5000), idOf(1, 0), idOf(2, 0), idOf(2, 29), idOf(2, 30), idOf(3, 0))
		slices.Sort(want)
		if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, want) {
			b.Errorf("found: got %v, want %v", keys, want)
		}
		for id, value := range got {
			if value != id {
				b.Errorf("%s: got value %q", id, value)
			}
		}
	})
}

func TestReadDeadLetters_BoundsMemory(t *testing.T) { // this test does not run in parallel with others, because it measures the size of the heap
	var alone sync.Mutex
	eachKafka(t, func(b *broker) {
		alone.Lock()
		defer alone.Unlock()
		b.fill(0, 10_000)
		var ids []deadletters.ID
		for offset := range int64(10_000) {
			ids = append(ids, idOf(0, offset))
		}
		if got := b.read(ids...); len(got) != 10_000 {
			b.Errorf("found %d of 10,000", len(got))
		}
		large := make([]byte, 1<<20) // random bytes, which do not compress
		ids = nil
		for offset := range int64(60) {
			_, _ = rand.Read(large)
			b.put(b.deadLetterRecord(1, slices.Clone(large)))
			ids = append(ids, deadletters.ID{Topic: b.topic, Partition: 1, Offset: offset})
		}
		before, peak, n := heap(), uint64(0), 0
		if err := b.kafka.ReadDeadLetters(b.Context(), ids, func(deadletters.ID, ReadResult) {
			if n++; n%10 == 0 {
				peak = max(peak, heap())
			}
		}); err != nil || n != 60 {
			b.Fatalf("found %d, %v", n, err)
		}
		b.Logf("%d MiB of heap", (max(peak, before)-before)>>20)
		if peak > before+45<<20 {
			b.Errorf("60 dead letters of a MiB took %d MiB of heap", (peak-before)>>20)
		}
	})
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestEnqueuedByJob_FindsItsRecords checks that the records of a job are found in two difficult
// cases: after records of a producer whose clock is ahead, and after the clock of the job's host
// was set back. Older records and records of other jobs must not be returned.
func TestEnqueuedByJob_FindsItsRecords(t *testing.T) {
	t.Parallel()
	eachKafka(t, func(b *broker) {
		from := time.Now().Truncate(time.Millisecond)
		enqueued := func(partition int32, job, of string, at time.Duration) *kgo.Record {
			r := &kgo.Record{Partition: partition, Timestamp: from.Add(at)}
			for _, h := range (schemas.ReplayMark{ID: job, Count: 1, Of: of}).Headers() {
				r.Headers = append(r.Headers, kgo.RecordHeader(h))
			}
			return r
		}
		find := func(want ...string) {
			b.Helper()
			got, err := b.kafka.EnqueuedByJob(b.Context(), b.topic, "j", from, from.Add(leaseDuration))
			if keys := slices.Sorted(maps.Keys(got)); err != nil || !slices.Equal(keys, want) {
				b.Errorf("%v, %v; want %v", keys, err, want)
			}
		}
		find()
		b.put(enqueued(0, "j", "early", -time.Hour))
		find()
		large := make([]byte, 1<<20) // six records with this value exceed maxFetchBytes
		_, _ = rand.Read(large)
		big := func() *kgo.Record { return &kgo.Record{Value: large, Timestamp: from.Add(time.Second)} }
		for _, r := range []*kgo.Record{
			enqueued(0, "j", "0:1", 0), enqueued(0, "", "", time.Second), enqueued(0, "other", "0:2", time.Second), enqueued(0, "", "", 2*time.Minute), big(), big(), big(), big(), big(), big(),
			enqueued(0, "j", "0:3", 2*time.Second), enqueued(1, "j", "0:4", 30*time.Second), enqueued(0, "", "", time.Hour),
			enqueued(2, "j", "0:6", -maxClockStepBack/2),
			{Partition: 2, Timestamp: from.Add(time.Second)},
		} {
			b.put(r)
		}
		find("0:1", "0:3", "0:4", "0:6")
		for range 6 { // together the six records are larger than one fetch (maxFetchBytes)
			b.put(&kgo.Record{Partition: 1, Value: large, Timestamp: from.Add(time.Hour)})
		}
		b.put(enqueued(1, "j", "0:5", time.Second))
		find("0:1", "0:3", "0:4", "0:5", "0:6")
	})
}

func TestDeleteBefore_ReturnsStartOffsets(t *testing.T) {
	t.Parallel()
	eachKafka(t, func(b *broker) {
		deleted := func(before, want map[int32]int64) {
			b.Helper()
			if got, err := b.kafka.DeleteBefore(b.Context(), b.topic, before); err != nil || !maps.Equal(got, want) {
				b.Errorf("%v, %v; want %v", got, err, want)
			}
		}
		deleted(map[int32]int64{0: 5}, map[int32]int64{0: 0, 1: 0, 2: 0})
		b.fill(0, 10)
		b.fill(1, 10)
		deleted(map[int32]int64{0: 4, 1: 99, 7: 3}, map[int32]int64{0: 4, 1: 10, 2: 0})
		deleted(map[int32]int64{0: 2}, map[int32]int64{0: 4, 1: 10, 2: 0})
		want := map[int32]PartitionBounds{0: {4, 10}, 1: {10, 10}, 2: {0, 0}}
		if got, err := b.kafka.Bounds(b.Context(), b.topic); err != nil || !maps.Equal(got, want) {
			b.Errorf("%v, %v; want %v", got, err, want)
		}
		if got := b.read(idOf(0, 3), idOf(0, 4), idOf(1, 9)); len(got) != 1 || got["0:4"] == "" {
			b.Errorf("records left: %v", got)
		}
	})
}

func TestKafka_ReportsAMissingTopic(t *testing.T) {
	t.Parallel()
	eachKafka(t, func(b *broker) {
		_, enqueued := b.kafka.EnqueuedByJob(b.Context(), b.topic+"-none", "j", time.Now(), time.Now())
		_, deleted := b.kafka.DeleteBefore(b.Context(), b.topic+"-none", nil)
		_, bounds := b.kafka.Bounds(b.Context(), b.topic+"-none")
		read := b.kafka.ReadDeadLetters(b.Context(), []deadletters.ID{{Topic: b.topic + "-none"}}, nil)
		for _, err := range []error{enqueued, deleted, bounds, read} {
			if err == nil || !strings.Contains(err.Error(), "freshet topics ensure") {
				b.Error(err)
			}
		}
	})
}
