package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/semaphore"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// Config holds the limits of one worker.
type Config struct {
	// MaxInFlight is the number of slots: records that are processed at once. A HIGH worker also
	// reads further records, which wait for a slot, so that the worker can serve clients in turn.
	MaxInFlight int
	// MaxBodyBytes is the maximum number of bytes of response bodies in memory (see memoryBudget).
	// Memory for an entity is reserved before its permit is requested.
	MaxBodyBytes int64
	// MaxBatch is the maximum number of results in one write. Linger is how long the first result
	// of a write waits for further results.
	MaxBatch int
	Linger   time.Duration
	// ConfirmTimeout is how long a failed record waits for the verdict: whether the failure belongs
	// to its entity or to the source. The verdict comes from a successful call of another entity or
	// from confirming calls.
	ConfirmTimeout time.Duration
	// DrainTimeout is how long Run continues after its context ended, to store the responses of
	// calls in flight.
	DrainTimeout time.Duration
	// WorkerName identifies the worker in the dead letters that it writes.
	WorkerName string
	// Triggers lists by facet the triggers that a change of the facet fires.
	Triggers map[string][]store.Trigger
	// ServerSideAssignment lets the broker assign partitions (KIP-848) if it supports that.
	ServerSideAssignment bool
}

// DefaultConfig returns the limits of a lane's worker. HIGH writes small batches after a short
// linger, LOW writes large batches after a longer linger (adr-013 §13).
func DefaultConfig(lane schemas.Lane) Config {
	c := Config{MaxBodyBytes: 128 << 20, ConfirmTimeout: 5 * time.Second, DrainTimeout: 25 * time.Second, WorkerName: "worker"}
	if lane == schemas.High {
		c.MaxInFlight, c.MaxBatch, c.Linger = 512, 20, 2*time.Millisecond
	} else {
		c.MaxInFlight, c.MaxBatch, c.Linger = 1024, 100, 20*time.Millisecond
	}
	return c
}

// leaveTimeout is the time limit for the last commit and for leaving the consumer group together.
const leaveTimeout = 10 * time.Second

// maxPollRecords is the maximum number of records in one poll. The records of one poll share their
// lookups in Redis and in the database.
const maxPollRecords = 256

// Worker processes the update requests in one lane of one source. Run may be called once.
type Worker struct {
	config   Config
	source   *source.Source
	lane     schemas.Lane
	store    Store
	requests Requests
	permits  Permits
	retries  Retries
	outbox   Outbox
	lag      Lag
	health   *Health
	hints    *Hints
	log      *slog.Logger
	metrics  *metrics
	tracer   observe.Tracer

	kafka        *kgo.Client
	cancelKafka  context.CancelFunc // aborts all requests that the client `kafka` has sent to the brokers
	leaveTimeout time.Duration
	dlqClient    *kgo.Client
	// dlqUnacked bounds the unacknowledged bytes of dead letters to maxDeadLetterBatch.
	dlqUnacked *semaphore.Weighted
	assignment *assignment
	writer     *writer

	recordLimit *semaphore.Weighted // limits the sum of records in flight and records that wait for a slot
	slots       *slotQueue
	bodies

	calls           callLog
	redactionLogged atomic.Bool // true after the first warning that content contained a credential
	entityQueues    entityQueues
	breakerQueue    *breakerQueue
	// life ends when Run's context ends. hard ends when the drain has timed out. Tasks and
	// confirming calls use these contexts, because the context of the caller that starts them may
	// end earlier.
	life, hard context.Context //nolint:containedctx // both end with Run
	ends       *ends
	tasks      sync.WaitGroup
	conditions observe.Conditions
	gates      *gates
	dbHealth
	facetParts
}

// facetParts are the parts of a worker for facets with aliases, for collections and for derived facets.
type facetParts struct {
	aliases     *aliases
	walks       *walks
	derivations *derivations
}

// bodies limits the memory for response bodies, and the number of bodies that are parsed at the same
// time.
type bodies struct {
	memory     *memoryBudget
	parseSlots chan struct{} // one slot for each CPU; a goroutine holds a slot while it parses a body
	bodySizes  *sizeEstimates
}

// New returns a worker with two Kafka clients of its own: one consumes requests, the other
// produces dead letters.
func New(config Config, src *source.Source, lane schemas.Lane, deps Deps) (*Worker, error) {
	log := deps.Log.With("source", src.Name(), "lane", string(lane))
	client := src.Name() + "-" + strings.ToLower(string(lane))
	w := &Worker{
		config: config, source: src, lane: lane, store: deps.Store, requests: deps.Requests, permits: deps.Permits,
		retries: deps.Retries, outbox: deps.Outbox, lag: deps.Lag, health: deps.Health, hints: deps.Hints, log: log,
		metrics:      newMetrics(src.Name(), lane, deps.Metrics),
		calls:        callLog{record: deps.RecordCall},
		tracer:       deps.Tracer,
		assignment:   newAssignment(log),
		recordLimit:  semaphore.NewWeighted(int64(config.MaxInFlight + maxWaitingRecords(lane))),
		dlqUnacked:   semaphore.NewWeighted(maxDeadLetterBatch),
		slots:        newSlotQueue(config.MaxInFlight),
		ends:         newEnds(),
		bodies:       bodies{newMemoryBudget(config.MaxBodyBytes), make(chan struct{}, runtime.GOMAXPROCS(0)), newSizeEstimates()},
		entityQueues: entityQueues{byEntity: map[schemas.Entity]*entityQueue{}},
		gates:        newGates(deps.Tokens),
		breakerQueue: newBreakerQueue(),
		dbHealth:     dbHealth{dbBreakerChanged: make(chan struct{}, 1)},
		leaveTimeout: leaveTimeout,
	}
	registerUse(src.Name(), lane, deps.Metrics, w.memory, w.slots)
	w.dbBreaker = newDBBreaker(w)
	w.facetParts = facetParts{&aliases{w, deps.Aliases}, &walks{w, deps.Walks, &stateReader{store: deps.Walks}, deps.Runs}, &derivations{w, deps.Items}}
	w.writer = newWriter(w)
	var err error
	var kafkaCtx context.Context
	kafkaCtx, w.cancelKafka = context.WithCancel(context.Background())
	w.kafka, err = kgo.NewClient(append(append([]kgo.Opt{
		kgo.WithContext(kafkaCtx),
		kgo.ConsumerGroup(schemas.Group(src.Name(), lane)),
		kgo.ConsumeTopics(schemas.RequestTopic(src.Name(), lane)),
		// Without a committed offset, or if that offset no longer exists, the partition is read
		// from its first record, so that no record is skipped.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// The session timeout is short, so that another worker soon gets the partitions of a killed
		// worker.
		kgo.SessionTimeout(10 * time.Second),
		kgo.HeartbeatInterval(2 * time.Second),
		kgo.RebalanceTimeout(time.Minute),
		kgo.FetchMaxBytes(4 << 20),
		kgo.FetchMaxPartitionBytes(1 << 20),
	}, w.assignment.options(config.ServerSideAssignment)...), append(deps.Kafka(client), deps.Tracer.Kafka()...)...)...)
	if err != nil {
		w.cancelKafka()
		return nil, fmt.Errorf("create the consumer's Kafka client: %w", err)
	}
	w.dlqClient, err = kgo.NewClient(append(dlqClientOptions(), deps.Kafka(client+"-dlq")...)...)
	if err != nil {
		w.kafka.Close()
		w.cancelKafka()
		return nil, fmt.Errorf("create the Kafka client for dead letters: %w", err)
	}
	return w, nil
}

// Load is the work of a worker at one moment.
type Load struct {
	Partitions map[string][]int32 // owned partitions by topic, in ascending order
	InFlight   int                // records that occupy a slot
}

// Load returns the work that this worker has now.
func (w *Worker) Load() Load { return Load{w.assignment.owned(), w.slots.used()} }

// Run processes records until ctx ends. It then stops in this order:
//
//  1. It stops polling.
//  2. It gives up records that wait for a permit; another worker reads them again.
//  3. It stores, settles and commits the answers of sent calls, for at most Config.DrainTimeout.
//  4. It leaves the consumer group.
func (w *Worker) Run(ctx context.Context) error {
	// The context `hard` outlives ctx. It ends when the drain times out, and then the writes of
	// results are aborted.
	hard, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abort(nil)

	w.life, w.hard = ctx, hard
	var background sync.WaitGroup
	stopCommits := make(chan struct{})
	background.Go(func() { w.writer.run(hard) })
	background.Go(func() { w.commitLoop(hard, stopCommits) })
	releasing, stopReleasing := context.WithCancel(hard)
	background.Go(func() { w.releaseLoop(releasing) })
	watching, stopWatching := context.WithCancel(hard)
	background.Go(func() { w.probeDatabase(watching) })
	w.tasks.Go(func() { w.probeLoop(ctx, hard) })
	if w.lane == schemas.Low {
		background.Go(func() { w.yieldLoop(ctx) })
	}

	drained := make(chan struct{})
	background.Go(func() {
		<-ctx.Done() // DrainTimeout begins when ctx ends, not when pollLoop ends, because a revocation can delay the end of pollLoop
		limit := time.NewTimer(w.config.DrainTimeout)
		defer limit.Stop()
		select {
		case <-limit.C:
			abort(errDrain)
		case <-drained:
		}
	})

	w.pollLoop(ctx)

	w.tasks.Wait()
	close(drained)
	w.writer.stop()
	close(stopCommits)
	stopReleasing()
	stopWatching()
	background.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.leaveTimeout)
	defer cancel()
	committing, done := context.WithTimeout(last, w.leaveTimeout/2) // half of leaveTimeout for the last commit, the other half for leaving the group
	err := w.assignment.commitLast(committing, w.kafka)
	done()
	if err != nil {
		err = fmt.Errorf("last commit: %w; the records since the previous commit are read again", err)
	}
	w.kafka.AllowRebalance()
	if left := w.kafka.LeaveGroupContext(last); left != nil {
		w.log.Warn("leaving the consumer group failed; the partitions move when the session expires", "err", left)
	}
	// Closing the Kafka client waits for a broker that hangs, and has no time limit of its own. So
	// cancelKafka aborts all requests of the client when leaveTimeout has passed.
	defer w.cancelKafka()
	defer context.AfterFunc(last, w.cancelKafka)()
	w.kafka.CloseAllowingRebalance()
	w.dlqClient.Close()
	if cause := context.Cause(hard); errors.Is(cause, errDrain) {
		err = errors.Join(err, cause)
	}
	return err
}

var errDrain = errors.New("drain timed out before the answers of all sent calls were stored; their records are read again")

func (w *Worker) commitLoop(ctx context.Context, stop <-chan struct{}) {
	tick := time.NewTicker(commitInterval)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		err := w.assignment.commitAll(ctx, w.kafka)
		if err != nil && !failing {
			w.log.Warn("offset commit failed; the next commit includes these offsets", "err", err)
		}
		failing = err != nil
		w.checkRetention(time.Now())
	}
}

// checkRetention logs an error when the oldest uncommitted record is older than half of its
// topic's retention. At the end of the retention Kafka would delete it unread.
func (w *Worker) checkRetention(now time.Time) {
	age := time.Duration(0)
	if oldest := w.assignment.oldest(); !oldest.IsZero() {
		age = max(0, now.Sub(oldest))
	}
	w.metrics.oldest.Set(age.Seconds())
	if retention := schemas.Retention(w.lane); age > retention/2 {
		w.conditions.Error(w.log, conditionRetention, fmt.Errorf("the oldest uncommitted record is %v old, the retention is %v", age.Round(time.Second), retention))
	} else {
		w.conditions.Resolved(w.log, conditionRetention)
	}
}

// pollLoop polls and dispatches records until ctx ends.
func (w *Worker) pollLoop(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := w.kafka.PollRecords(ctx, maxPollRecords)
		var tasks []*task
		fetches.EachRecord(func(r *kgo.Record) {
			l := w.assignment.ledgerOf(r.Topic, r.Partition)
			if l == nil || !l.add(r.Offset, r.LeaderEpoch, r.Timestamp) {
				return
			}
			tasks = append(tasks, w.newTask(r, l))
		})
		w.kafka.AllowRebalance()
		w.logPollErrors(ctx, fetches)
		w.dispatch(ctx, tasks)
	}
}

// logPollErrors logs when polls begin to fail, and when they succeed again.
func (w *Worker) logPollErrors(ctx context.Context, fetches kgo.Fetches) {
	failed := false
	fetches.EachError(func(topic string, partition int32, err error) {
		failed = true
		switch {
		case ctx.Err() != nil || errors.Is(err, context.Canceled):
			return
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			err = fmt.Errorf("topic %s does not exist; create it with `freshet topics ensure`", topic)
		case topic != "":
			err = fmt.Errorf("partition %d of %s: %w", partition, topic, err)
		}
		w.conditions.Error(w.log, failedOperation(opPoll), err)
	})
	if !failed {
		w.conditions.Resolved(w.log, failedOperation(opPoll))
	}
}
