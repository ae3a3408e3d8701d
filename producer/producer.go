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

// Request is a request to refresh one entity, before coalescing. If no other request covers it,
// the producer publishes a schemas.UpdateRequest for it.
type Request struct {
	Entity schemas.Entity
	Params map[string]string
	Lane   schemas.Lane
	Reason schemas.Reason
	// Floor is the version of the snapshot that the caller has read, 0 for none. A lock whose
	// number is at most Floor does not cover the request, because the result of that lock's fetch
	// is already stored.
	Floor int64
	// Page and Run are the fields Page and RunID of schemas.UpdateRequest.
	Page, Run string
	// Cooldown is how long after a USER_REQUEST the entity's next USER_REQUEST is refused; 0 means
	// never.
	Cooldown      time.Duration
	CorrelationID string
	TraceParent   string // trace context of the request (W3C traceparent); empty means none
	Replay        schemas.ReplayMark
	Depth         int // the field Depth of schemas.UpdateRequest
	// Client is the schemas.ClientID of the client; empty means that the request is internal, and
	// Bound does not apply. New is true if the entity has no snapshot.
	Client string
	Bound  Bound
	New    bool

	acked chan<- error // buffered channel that receives nil when Kafka acknowledges the record, or the error of the publish
}

// Outcome is what coalescing decided about a request.
type Outcome string

// The outcomes. Published and Upgraded: a record is in the producer's buffer. AlreadyProcessing:
// a record that Kafka has acknowledged covers the request. Pending: a record that Kafka has not
// acknowledged yet covers it, so a caller that must not lose the request enqueues it again. Held
// and Cooling: a hold or a cool-down of the entity refuses the request until Result.Until.
const (
	Published         Outcome = "PUBLISHED"
	Upgraded          Outcome = "UPGRADED"
	AlreadyProcessing Outcome = "ALREADY_PROCESSING"
	Pending           Outcome = "PENDING"
	Held              Outcome = "HELD"
	Cooling           Outcome = "COOLING"
)

// The outcomes of a request that exceeds its client's Bound. Nothing is published.
const (
	TooManyOutstanding Outcome = "TOO_MANY_OUTSTANDING"
	TooManyNewKeys     Outcome = "TOO_MANY_NEW_KEYS"

	refusedOutcome Outcome = "REFUSED" // reply of the script coalesce_acquire if the client has a cached refusal; acquire replaces it by that refusal's outcome
)

// Result says whether one update request was accepted or refused, and why.
type Result struct {
	Outcome    Outcome
	Number     int64     // number of the record that covers the request; 0 if it is refused
	HoldReason string    // reason of the hold or cool-down that refuses the request; empty means none
	Until      time.Time // when the refusal ends; zero means unknown or not refused
	Refusal    *Refusal  // describes the exceeded limit if the request exceeds its client's Bound; otherwise nil
	// Err is ErrBufferFull, ErrStopped, ErrNotSent or a Redis error. Then Outcome is empty, and
	// Kafka has acknowledged no record for the request.
	Err error
}

// Queued reports whether a record covers the request, either in the producer's buffer (lost if
// the process crashes) or acknowledged by Kafka.
func (r Result) Queued() bool {
	return r.Outcome == Published || r.Outcome == Upgraded || r.Outcome == AlreadyProcessing
}

// Published reports whether a record was published for the request.
func (r Result) Published() bool {
	return r.Err == nil && (r.Outcome == Published || r.Outcome == Upgraded)
}

var (
	// ErrBufferFull means that Kafka accepts records more slowly than they are enqueued. Retry
	// later.
	ErrBufferFull = errors.New("producer buffer is full: Kafka accepts records too slowly; retry later")
	// ErrRedis means that the Redis circuit breaker is open.
	ErrRedis = errors.New("redis circuit breaker is open; Redis is tried again every " + openTimeout.String())
	// ErrStopped means that the producer is shutting down.
	ErrStopped = errors.New("producer is shutting down")
	// ErrNotSent means that Kafka did not acknowledge the record.
	ErrNotSent = errors.New("kafka did not acknowledge the record")
)

const (
	// maxBatchSize is the maximum number of requests in one Redis pipeline.
	maxBatchSize = 512
	// acquireTimeout is the timeout of all Redis calls for one batch of at most maxBatchSize requests.
	acquireTimeout = 5 * time.Second
	// confirmInterval is how often EnqueueAndWait checks whether Kafka has acknowledged a record
	// of another producer that covers the request.
	confirmInterval = 50 * time.Millisecond
)

// Producer publishes update requests. Its methods may be called concurrently.
type Producer struct {
	*Coalescer
	kafka       *kgo.Client
	log         *slog.Logger
	metrics     *metrics
	tracer      observe.Tracer
	maxBuffered int64
	breaker     *gobreaker.CircuitBreaker[[]Result] // circuit breaker of Redis

	buffered atomic.Int64 // number of records whose locks are neither confirmed nor rolled back
	acks     chan *ack    // channel with capacity for every buffered record, so that a Kafka callback never blocks
	// Every enqueue holds a read lock of `closing` from acquire to publish, so that no record is
	// published after the last flush.
	closing sync.RWMutex
	stopped bool
}

// New returns a producer. `kafka` must have been created with ClientOptions. Locks are confirmed only
// while Run is running.
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
		acks:        make(chan *ack, maxBuffered),
	}
	p.breaker = newBreaker(p.metrics.redis.Set)
	return p
}

// Enqueue coalesces one request, and buffers a record if the request needs its own. It makes one
// round trip to Redis, and more if a limit of its client applies. It does not wait for Kafka. It
// completes even if ctx ends, because a lock without a record would cover other requests and
// nothing would be fetched.
func (p *Producer) Enqueue(ctx context.Context, req Request) Result {
	return p.EnqueueAll(ctx, []Request{req})[0]
}

// EnqueueAll does the same as Enqueue for several requests, in Redis pipelines of at most
// maxBatchSize requests.
func (p *Producer) EnqueueAll(ctx context.Context, requests []Request) []Result {
	results := make([]Result, 0, len(requests))
	for batch := range slices.Chunk(requests, min(maxBatchSize, int(p.maxBuffered))) {
		results = append(results, p.enqueueBatch(ctx, batch)...)
	}
	return results
}

// EnqueueAndWait enqueues a request that must not be lost. It blocks until Kafka has acknowledged a
// record that covers the request, or until the request is refused. If ctx ends first, Outcome is
// Pending: the record may still be written, so the caller should enqueue the request again.
func (p *Producer) EnqueueAndWait(ctx context.Context, req Request) Result {
	return p.EnqueueAllAndWait(ctx, []Request{req})[0]
}

// EnqueueAllAndWait does the same as EnqueueAndWait for several requests. It blocks until all of them
// have a result.
func (p *Producer) EnqueueAllAndWait(ctx context.Context, requests []Request) []Result {
	results := make([]Result, len(requests))
	pending := make([]int, len(requests)) // indexes of the requests whose outcome is still Pending
	for i := range requests {
		pending[i] = i
	}
	ticker := time.NewTicker(confirmInterval)
	defer ticker.Stop()
	for {
		p.enqueueOnceAndWait(ctx, requests, pending, results)
		pending = slices.DeleteFunc(pending, func(i int) bool { return results[i].Outcome != Pending })
		if len(pending) == 0 {
			return results
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return results
		}
	}
}

// enqueueOnceAndWait enqueues the requests with the given indexes once, and waits until Kafka
// has acknowledged the records that were published for these requests.
func (p *Producer) enqueueOnceAndWait(ctx context.Context, requests []Request, indexes []int, results []Result) {
	batch := make([]Request, len(indexes))
	acks := make([]chan error, len(indexes))
	for n, i := range indexes {
		acks[n] = make(chan error, 1)
		batch[n] = requests[i]
		batch[n].acked = acks[n]
	}
	for n, r := range p.EnqueueAll(ctx, batch) {
		if r.Outcome == Published || r.Outcome == Upgraded {
			select {
			case err := <-acks[n]:
				if err != nil {
					r = Result{Err: fmt.Errorf("%w: %w", ErrNotSent, err)}
				}
			case <-ctx.Done():
				r.Outcome = Pending
			}
		}
		results[indexes[n]] = r
	}
}

func (p *Producer) enqueueBatch(ctx context.Context, requests []Request) []Result {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), acquireTimeout)
	defer cancel()
	p.closing.RLock()
	defer p.closing.RUnlock()
	n := int64(len(requests))
	if err := p.reserve(n); err != nil {
		return p.rejectAll(requests, err)
	}
	spans := p.startSpans(requests)
	results := p.acquireWithBreaker(ctx, requests)
	for i, r := range results {
		if r.Outcome != Published && r.Outcome != Upgraded {
			p.buffered.Add(-1)
		} else if err := p.publish(spans.of(i), requests[i], r.Number); err != nil {
			results[i] = Result{Err: err}
		}
		p.metrics.observe(requests[i], results[i])
	}
	spans.end(results)
	return results
}

// reserve reserves n slots of the buffer before any lock is taken, so that a full buffer costs
// no Redis call and leaves no lock.
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

// rejectAll returns err as the result of every request.
func (p *Producer) rejectAll(requests []Request, err error) []Result {
	results := make([]Result, len(requests))
	for i := range results {
		results[i].Err = err
		p.metrics.observe(requests[i], results[i])
	}
	return results
}

// publish passes the record to the Kafka client. When the publish has ended, Run confirms or
// rolls back the lock of the request and frees its slot of the buffer.
func (p *Producer) publish(traced context.Context, req Request, number int64) error {
	a := &ack{entity: req.Entity, lane: req.Lane, number: number, client: req.countedClient(), acked: req.acked}
	record, err := newRecord(req, number)
	if err != nil {
		p.acknowledged(a, err)
		return err
	}
	// The record is published even if the caller no longer waits: its lock already covers other
	// requests.
	p.kafka.TryProduce(traced, record, func(_ *kgo.Record, err error) { p.acknowledged(a, err) })
	return nil
}

// acknowledged passes the outcome of a publish to the waiting caller and to Run.
func (p *Producer) acknowledged(a *ack, err error) {
	a.err = err
	if err != nil {
		p.metrics.sendFailed.Inc()
	}
	if a.acked != nil {
		a.acked <- err
	}
	p.acks <- a
}

func newRecord(req Request, number int64) (*kgo.Record, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("generate the event id: %w", err)
	}
	request := schemas.UpdateRequest{
		EventID: id.String(), Entity: req.Entity, Params: req.Params, Lane: req.Lane, Reason: req.Reason,
		RequestedAt: time.Now().UTC(), CorrelationID: req.CorrelationID, Version: number, Depth: req.Depth, Page: req.Page, RunID: req.Run,
	}
	value, err := request.Encode()
	if err != nil {
		return nil, err
	}
	record := &kgo.Record{
		Topic: schemas.RequestTopic(req.Entity.Source, req.Lane),
		Key:   request.RecordKey(),
		Value: value,
	}
	if req.TraceParent != "" {
		record.Headers = []kgo.RecordHeader{{Key: schemas.TraceParent, Value: []byte(req.TraceParent)}}
	}
	if req.Client != "" {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: schemas.ClientHeader, Value: []byte(req.Client)})
	}
	for _, h := range req.Replay.Headers() {
		record.Headers = append(record.Headers, kgo.RecordHeader(h))
	}
	return record, nil
}

// confirmTimeout is the timeout of one batch of confirmations. A lock that is not confirmed in
// time expires.
const confirmTimeout = time.Second

// Run confirms and rolls back locks until ctx ends. Then it rejects further requests with
// ErrStopped, flushes the buffer for at most deliveryTimeout, and confirms or rolls back the
// remaining locks.
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
				return fmt.Errorf("flush %d buffered records: %w", p.buffered.Load(), err)
			}
			return nil
		}
	}
}

// confirmBatch confirms or rolls back the locks of a batch: the given ack and the acks that are
// already in the channel, at most 512 in total.
func (p *Producer) confirmBatch(ctx context.Context, first *ack) {
	batch := []ack{*first}
	for len(p.acks) > 0 && len(batch) < 512 {
		batch = append(batch, *<-p.acks)
	}
	// The slot of a record in the buffer is freed only after its lock is confirmed or rolled back.
	defer p.buffered.Add(-int64(len(batch)))
	for _, a := range batch {
		if a.err != nil {
			p.log.Warn("kafka publish failed; lock rolled back", "entity", a.entity.String(), "number", a.number, "err", a.err)
		}
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
	defer cancel()
	conflicts, err := p.confirmOrRollBack(limit, batch)
	p.releaseFailed(limit, batch)
	p.metrics.conflicts.Add(float64(conflicts))
	if err != nil {
		p.log.Warn("locks of published requests not confirmed; the locks expire", "locks", len(batch), "ttl", pendingTTL, "err", err)
	}
}
