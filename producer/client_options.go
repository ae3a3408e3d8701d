package producer

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// DefaultMaxBuffered is the default maximum number of records that wait for Kafka.
const DefaultMaxBuffered = 50_000

// ClientOptions returns the Kafka client options that the producer needs: without them the client
// could lose records, write them twice, or wait forever (adr-013 §4). `maxBuffered` is the value
// passed to New.
func ClientOptions(maxBuffered int) []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()), // all in-sync replicas must acknowledge a record; idempotent writes, the client's default, require this
		kgo.ProducerBatchCompression(kgo.ZstdCompression(), kgo.NoCompression()),
		// By default the client waits forever for a broker that hangs. A record whose delivery
		// timed out may still be written; then a worker makes one unnecessary fetch.
		kgo.RecordDeliveryTimeout(deliveryTimeout),
		kgo.AllowIdempotentProduceCancellation(),
		kgo.ProduceRequestTimeout(deliveryTimeout / 2),
		kgo.RequestTimeoutOverhead(deliveryTimeout / 2),
		kgo.ProducerLinger(2 * time.Millisecond),
		// The producer enforces maxBuffered itself, before it takes a lock. The client's limit
		// is twice as high, so that it is never reached.
		kgo.MaxBufferedRecords(2 * maxBuffered),
	}
}
