// Package producer turns a wish for a refresh into at most one record on a
// topic. It is the only door to the request topics: whoever wants something
// refreshed, a reader, the scheduler, a person, asks here. It also keeps the
// state by which requests are coalesced, from the wish to the settled fetch.
package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
)

// Request asks for a refresh of one entity.
type Request struct {
	Entity schemas.Entity
	Params map[string]string
	Lane   schemas.Lane
	Reason schemas.Reason
	// Floor is the version of the snapshot that the caller has read, 0 for none.
	Floor int64
	// Cooldown refuses a USER_REQUEST for so long after the last one; 0: never.
	Cooldown      time.Duration
	CorrelationID string
	TraceParent   string // W3C trace context; empty: none
	Replay        schemas.ReplayMark
	// Client is the schemas.ClientID of the client; empty: the wish is internal, and
	// Bound does not apply. New: the entity has no snapshot.
	Client string
	Bound  Bound
	New    bool

	acked chan<- error // is told whether Kafka has the record, if there is to be one; has room for that
}

// Outcome is what coalescing decided about a wish.
type Outcome string

// The outcomes. Published and Upgraded have put a record into the producer's
// buffer. AlreadyProcessing is covered by a record that Kafka has. Pending is
// covered by one that is still in the air: nobody's promise, so whoever must not
// lose the wish asks again. Held and Cooling are refused until a time.
const (
	Published         Outcome = "PUBLISHED"
	Upgraded          Outcome = "UPGRADED"
	AlreadyProcessing Outcome = "ALREADY_PROCESSING"
	Pending           Outcome = "PENDING"
	Held              Outcome = "HELD"
	Cooling           Outcome = "COOLING"
)

// The outcomes of a wish that is beyond its client's bound; nothing is published.
const (
	TooManyOutstanding Outcome = "TOO_MANY_OUTSTANDING"
	TooManyNewKeys     Outcome = "TOO_MANY_NEW_KEYS"

	refusedOutcome Outcome = "REFUSED" // of coalesce_acquire: one of the two
)

// Result is what became of one wish.
type Result struct {
	Outcome    Outcome
	Number     int64     // of the record that covers the wish; 0 if refused
	HoldReason string    // why it was refused
	Until      time.Time // until when
	Refusal    *Refusal  // of the client, if the wish is beyond its bound
	// Err is ErrBufferFull, ErrStopped or an error of Redis; then nothing was
	// published and Outcome is empty.
	Err error
}

// Queued reports whether a record is on its way: in the producer's buffer, with
// which it may be lost, or acknowledged.
func (r Result) Queued() bool {
	return r.Outcome == Published || r.Outcome == Upgraded || r.Outcome == AlreadyProcessing
}

func (r Result) isPublished() bool {
	return r.Err == nil && (r.Outcome == Published || r.Outcome == Upgraded)
}

var (
	// ErrBufferFull says that Kafka is slower than the wishes come. Ask again later.
	ErrBufferFull = errors.New("the producer's buffer is full: Kafka takes records more slowly than they come")
	// ErrRedis says that Redis' circuit breaker is open.
	ErrRedis = errors.New("refresh requests are rejected until Redis answers again; it is called once each " + openTimeout.String())
	// ErrStopped says that the producer is shutting down.
	ErrStopped = errors.New("the producer has been stopped")
	// ErrNotSent says that Kafka did not take the record.
	ErrNotSent = errors.New("the request was not taken by Kafka")
)

const (
	// maxBatchSize bounds one pipeline of scripts.
	maxBatchSize = 512
	// acquireTimeout bounds its round trip.
	acquireTimeout = 5 * time.Second
	// confirmInterval is how often Insist looks whether somebody else's record has arrived.
	confirmInterval = 50 * time.Millisecond
)

// DefaultMaxBuffered is how many records may wait for Kafka at once.
const DefaultMaxBuffered = 50_000

// ClientOptions are the settings without which a producer's client would lose
// records, write them twice, or wait for ever (adr-013 §4). maxBuffered is that
// of New.
func ClientOptions(maxBuffered int) []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()), // with the idempotent writes that are the default
		kgo.ProducerBatchCompression(kgo.ZstdCompression(), kgo.NoCompression()),
		// The default is to wait without end for a broker that hangs. A record that
		// was given up may still arrive: it is then worked once more than needed.
		kgo.RecordDeliveryTimeout(deliveryTimeout),
		kgo.AllowIdempotentProduceCancellation(),
		kgo.ProduceRequestTimeout(deliveryTimeout / 2),
		kgo.RequestTimeoutOverhead(deliveryTimeout / 2),
		kgo.ProducerLinger(2 * time.Millisecond),
		// The bound is kept here, where it can be tested before anything is
		// acquired; the client's own must never be what a reader runs into.
		kgo.MaxBufferedRecords(2 * maxBuffered),
	}
}

// Producer publishes UpdateRequests. Its methods may be called concurrently.
type Producer struct {
	*Coalescer
	kafka       *kgo.Client
	log         *slog.Logger
	metrics     *metrics
	tracer      observe.Tracer
	maxBuffered int64
	breaker     *gobreaker.CircuitBreaker[[]Result] // Redis'

	buffered atomic.Int64 // records whose locks are not concluded
	acks     chan ack     // has room for every buffered record: a promise never blocks
	// closing is held for reading from an acquire to its produce, so that nothing
	// is produced behind the last flush.
	closing sync.RWMutex
	stopped bool
}

// New returns a producer. kafka must have been made with ClientOptions. Run must
// run for locks to be confirmed.
func New(rdb redis.UniversalClient, kafka *kgo.Client, maxBuffered int, log *slog.Logger,
	reg prometheus.Registerer, tracer observe.Tracer,
) *Producer {
	p := &Producer{
		Coalescer:   NewCoalescer(rdb),
		kafka:       kafka,
		log:         log,
		metrics:     newMetrics(reg),
		tracer:      tracer,
		maxBuffered: int64(maxBuffered),
		acks:        make(chan ack, maxBuffered),
	}
	p.breaker = newBreaker(p.metrics.redis.Set)
	return p
}

// Enqueue coalesces one wish, in one round trip to Redis, and hands a record to
// the client if the wish needs one; it never waits for Kafka. It runs to its end
// whatever becomes of its caller: a lock without a record would cover others.
func (p *Producer) Enqueue(ctx context.Context, w Request) Result {
	return p.EnqueueAll(ctx, []Request{w})[0]
}

// EnqueueAll is Request for many wishes, in one round trip a cluster node.
func (p *Producer) EnqueueAll(ctx context.Context, wishes []Request) []Result {
	results := make([]Result, 0, len(wishes))
	for some := range slices.Chunk(wishes, min(maxBatchSize, int(p.maxBuffered))) {
		results = append(results, p.enqueueBatch(ctx, some)...)
	}
	return results
}

// EnqueueAndWait requests a refresh that must not be lost, and returns when a record that
// covers it is in Kafka, or why none is. Outcome is Pending if that was not known
// when ctx ended: the record may yet arrive, and asking again will tell.
func (p *Producer) EnqueueAndWait(ctx context.Context, w Request) Result {
	return p.EnqueueAllAndWait(ctx, []Request{w})[0]
}

// EnqueueAllAndWait is Insist for many wishes, and returns when all are answered.
func (p *Producer) EnqueueAllAndWait(ctx context.Context, wishes []Request) []Result {
	results := make([]Result, len(wishes))
	left := make([]int, len(wishes)) // of the wishes, those of which nothing is certain
	for i := range wishes {
		left[i] = i
	}
	again := time.NewTicker(confirmInterval)
	defer again.Stop()
	for {
		p.enqueueOnceAndWait(ctx, wishes, left, results)
		left = slices.DeleteFunc(left, func(i int) bool { return results[i].Outcome != Pending })
		if len(left) == 0 {
			return results
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return results
		}
	}
}

// enqueueOnceAndWait asks for some of the wishes, and waits for Kafka to have their own records.
func (p *Producer) enqueueOnceAndWait(ctx context.Context, wishes []Request, some []int, results []Result) {
	asked := make([]Request, len(some))
	sent := make([]chan error, len(some))
	for n, i := range some {
		sent[n] = make(chan error, 1)
		asked[n] = wishes[i]
		asked[n].acked = sent[n]
	}
	for n, r := range p.EnqueueAll(ctx, asked) {
		if r.Outcome == Published || r.Outcome == Upgraded {
			select {
			case err := <-sent[n]:
				if err != nil {
					r = Result{Err: fmt.Errorf("%w: %w", ErrNotSent, err)}
				}
			case <-ctx.Done():
				r.Outcome = Pending
			}
		}
		results[some[n]] = r
	}
}

func (p *Producer) enqueueBatch(ctx context.Context, wishes []Request) []Result {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), acquireTimeout)
	defer cancel()
	p.closing.RLock()
	defer p.closing.RUnlock()
	n := int64(len(wishes))
	if err := p.reserve(n); err != nil {
		return p.rejectAll(wishes, err)
	}
	spans := p.startSpans(wishes)
	results := p.acquireWithBreaker(ctx, wishes)
	for i, r := range results {
		if r.Outcome != Published && r.Outcome != Upgraded {
			p.buffered.Add(-1)
		} else if err := p.publish(spans.of(i), wishes[i], r.Number); err != nil {
			results[i] = Result{Err: err}
		}
		p.metrics.observe(wishes[i], results[i])
	}
	spans.end(results)
	return results
}

// reserve takes n places in the buffer before anything is acquired, so that a
// full buffer costs nothing and leaves no lock behind.
func (p *Producer) reserve(n int64) error {
	if p.stopped {
		return ErrStopped
	}
	if p.buffered.Add(n) > p.maxBuffered {
		p.buffered.Add(-n)
		return ErrBufferFull
	}
	return nil
}

func (p *Producer) rejectAll(wishes []Request, err error) []Result {
	results := make([]Result, len(wishes))
	for i := range results {
		results[i].Err = err
		p.metrics.observe(wishes[i], results[i])
	}
	return results
}

// publish hands the record to the client. Its place is freed and its lock
// confirmed or rolled back when the promise is kept or broken.
func (p *Producer) publish(traced context.Context, w Request, number int64) error {
	a := ack{entity: w.Entity, lane: w.Lane, number: number, client: w.countedClient(), acked: w.acked}
	record, err := newRecord(w, number)
	if err != nil {
		p.acknowledged(a, err)
		return err
	}
	// The reader may leave; the record it was promised still goes out.
	p.kafka.TryProduce(traced, record, func(_ *kgo.Record, err error) { p.acknowledged(a, err) })
	return nil
}

func (p *Producer) acknowledged(a ack, err error) {
	a.err = err
	if err != nil {
		p.metrics.sendFailed.Inc()
	}
	if a.acked != nil {
		a.acked <- err
	}
	p.acks <- a
}

func newRecord(w Request, number int64) (*kgo.Record, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("make an event id: %w", err)
	}
	request := schemas.UpdateRequest{
		EventID: id.String(), Entity: w.Entity, Params: w.Params, Lane: w.Lane, Reason: w.Reason,
		RequestedAt: time.Now().UTC(), CorrelationID: w.CorrelationID, Version: number,
	}
	value, err := request.Encode()
	if err != nil {
		return nil, err
	}
	record := &kgo.Record{
		Topic: schemas.RequestTopic(w.Entity.Source, w.Lane),
		Key:   request.RecordKey(),
		Value: value,
	}
	if w.TraceParent != "" {
		record.Headers = []kgo.RecordHeader{{Key: schemas.TraceParent, Value: []byte(w.TraceParent)}}
	}
	if w.Client != "" {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: schemas.ClientHeader, Value: []byte(w.Client)})
	}
	for _, h := range w.Replay.Headers() {
		record.Headers = append(record.Headers, kgo.RecordHeader(h))
	}
	return record, nil
}

// confirmTimeout bounds one batch of confirmations; a lock that is missed ends
// by itself.
const confirmTimeout = time.Second

// Run confirms and rolls back locks until ctx ends. Then it refuses further
// wishes, waits for the records in the buffer, up to the delivery timeout, and
// concludes them.
func (p *Producer) Run(ctx context.Context) error {
	flushed := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		p.closing.Lock()
		p.stopped = true
		p.closing.Unlock()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), deliveryTimeout)
		defer cancel()
		flushed <- p.kafka.Flush(limit)
	})
	defer stop()
	for {
		select {
		case a := <-p.acks:
			p.confirmBatch(ctx, a)
		case err := <-flushed:
			for len(p.acks) > 0 {
				p.confirmBatch(ctx, <-p.acks)
			}
			if err != nil {
				return fmt.Errorf("flush %d records: %w", p.buffered.Load(), err)
			}
			return nil
		}
	}
}

// confirmBatch takes what else has been acknowledged meanwhile along.
func (p *Producer) confirmBatch(ctx context.Context, first ack) {
	batch := []ack{first}
	for len(p.acks) > 0 && len(batch) < 512 {
		batch = append(batch, <-p.acks)
	}
	// A place is free when its lock is concluded too.
	defer p.buffered.Add(-int64(len(batch)))
	for _, a := range batch {
		if a.err != nil {
			p.log.Warn("publish failed, its lock is rolled back", "entity", a.entity.String(), "number", a.number, "err", a.err)
		}
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
	defer cancel()
	conflicts, err := p.confirmOrRollBack(limit, batch)
	p.releaseFailed(limit, batch)
	p.metrics.conflicts.Add(float64(conflicts))
	if err != nil {
		p.log.Warn("locks were not concluded; each ends by itself", "locks", len(batch), "within", pendingTTL, "err", err)
	}
}
