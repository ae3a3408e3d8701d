package consumer

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/servicetest"
)

// maxMessage is the setting max.message.bytes of the topic that dlqWorker creates.
const maxMessage = 1 << 20

// realDLQ returns a deadLetterTopic, and its topic on a real Kafka.
func realDLQ(tb testing.TB, partitions int32) (d *deadLetterTopic, topic string) {
	tb.Helper()
	d, err := newDeadLetterTopic(kgo.SeedBrokers(servicetest.Kafka(tb)...))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(d.client.Close)
	topic = servicetest.Name("letters")
	admin := kadm.NewClient(d.client)
	if _, err := admin.CreateTopic(tb.Context(), partitions, 1, map[string]*string{"max.message.bytes": new(strconv.Itoa(maxMessage))}, topic); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _, _ = admin.DeleteTopic(context.WithoutCancel(tb.Context()), topic) })
	return d, topic
}

// Dead letters of one partition are published concurrently. Some are so large that the topic
// accepts them only in a batch of their own. Kafka must not reject a batch as too large. The values
// are random bytes, which do not compress.
func TestPublishDeadLetter_SendsNoOversizedBatch(t *testing.T) {
	d, topic := realDLQ(t, 1)
	var all sync.WaitGroup
	for i := range 60 {
		size := 60_000
		if i%20 == 0 {
			size = maxMessage - 1000
		}
		value := make([]byte, size)
		_, _ = rand.Read(value)
		all.Go(func() {
			if _, err := d.publish(t.Context(), &kgo.Record{Topic: topic, Value: value}); err != nil {
				t.Errorf("a dead letter of %d bytes: got %v, want none", size, err)
			}
		})
	}
	all.Wait()
}

// BenchmarkDeadLetters publishes dead letters of 2 kB from 256 goroutines, like a worker that
// processes many records at once.
func BenchmarkDeadLetters(b *testing.B) {
	d, topic := realDLQ(b, 12)
	value := make([]byte, 2000)
	for range 12 { // one dead letter for each of the 12 partitions, so that the client learns their leaders
		if _, err := d.publish(b.Context(), &kgo.Record{Topic: topic, Value: value}); err != nil {
			b.Fatal(err)
		}
	}
	next := make(chan int, b.N)
	for i := range b.N {
		next <- i
	}
	close(next)
	b.ResetTimer()
	var all sync.WaitGroup
	for range 256 {
		all.Go(func() {
			for i := range next {
				if _, err := d.publish(b.Context(), &kgo.Record{Topic: topic, Key: fmt.Append(nil, "item/", i), Value: value}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "letters/s")
}
