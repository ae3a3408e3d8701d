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

	"github.com/sony/gobreaker/v2"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/semaphore"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// Config bounds what one worker holds at once.
type Config struct {
	// MaxInFlight is the number of records that are worked at once. Of HIGH more are taken in
	// and wait for a slot, so that clients can be served in turn.
	MaxInFlight int
	// MaxBodyBytes bounds the bodies in memory: room for an entity's is reserved, by the
	// most that the last ones had, before its permit is asked for (see budget).
	MaxBodyBytes int64
	// MaxBatch is the number of results that are written together at most; Linger is
	// how long the first waits for others.
	MaxBatch int
	Linger   time.Duration
	// ConfirmTimeout is how long a failed record waits until it is known whose failure it is:
	// by another entity's good answer, or by calls for known-good entities.
	ConfirmTimeout time.Duration
	// DrainTimeout is how long a stop waits for what was sent to be written.
	DrainTimeout time.Duration
	// WorkerName identifies the worker in dead letters.
	WorkerName string
	// Triggers are, by facet, those that a change of it refreshes.
	Triggers map[string][]store.Trigger
	// ServerSideAssignment has the broker share out the partitions (KIP-848), if it can.
	ServerSideAssignment bool
}

// DefaultConfig returns the bounds of a lane's worker: HIGH writes small batches
// soon, LOW large ones (adr-013 §13).
func DefaultConfig(lane schemas.Lane) Config {
	c := Config{MaxBodyBytes: 128 << 20, ConfirmTimeout: 5 * time.Second, DrainTimeout: 25 * time.Second, WorkerName: "worker"}
	if lane == schemas.High {
		c.MaxInFlight, c.MaxBatch, c.Linger = 512, 20, 2*time.Millisecond
	} else {
		c.MaxInFlight, c.MaxBatch, c.Linger = 1024, 100, 20*time.Millisecond
	}
	return c
}

// leaveTimeout bounds the last commit and the good-bye.
const leaveTimeout = 10 * time.Second

// maxPollRecords is the number of records taken in at once: one look at Redis and one
// at the database for all of them.
const maxPollRecords = 256

// Worker works one lane of one source. It is made for one Run.
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
	log      *slog.Logger
	metrics  *metrics
	tracer   observe.Tracer

	kafka        *kgo.Client
	cancelKafka  context.CancelFunc // ends whatever kafka still waits for
	leaveTimeout time.Duration      // bounds the last commit and the good-bye
	dlqClient    *kgo.Client
	// dlqUnacked bounds the bytes of dead letters without acknowledgement: maxLetterBatch.
	dlqUnacked *semaphore.Weighted
	assignment *assignment
	writer     *writer

	recordLimit *semaphore.Weighted // records in flight, with those that wait for a slot
	slots       *slotQueue          // slots
	memory      *memoryBudget       // bodies in memory
	parseSlots  chan struct{}       // readings at once
	bodySizes   *sizeEstimates

	redactionLogged atomic.Bool // the log has told of a credential in content
	entityQueues    entityQueues
	breakerQueue    *breakerQueue // first attempts that wait for the source's breaker to close
	// life ends when Run is to stop, hard when the drain has taken too long: tasks and
	// confirming calls outlast the record that starts them.
	life, hard       context.Context //nolint:containedctx // of Run
	discharges       *discharges
	tasks            sync.WaitGroup
	conditions       conditions
	gates            *gates
	dbBreaker        *gobreaker.CircuitBreaker[struct{}] // the database's
	dbBreakerChanged chan struct{}                       // it changed its state
}

// New returns a worker. A client of its own consumes, another one writes dead letters.
func New(config Config, src *source.Source, lane schemas.Lane, deps Deps) (*Worker, error) {
	log := deps.Log.With("source", src.Name(), "lane", string(lane))
	client := src.Name() + "-" + strings.ToLower(string(lane))
	w := &Worker{
		config: config, source: src, lane: lane, store: deps.Store, requests: deps.Requests, permits: deps.Permits,
		retries: deps.Retries, outbox: deps.Outbox, lag: deps.Lag, health: deps.Health, log: log,
		metrics:          newMetrics(src.Name(), lane, deps.Metrics),
		tracer:           deps.Tracer,
		assignment:       newAssignment(log),
		recordLimit:      semaphore.NewWeighted(int64(config.MaxInFlight + maxWaitingRecords(lane))),
		dlqUnacked:       semaphore.NewWeighted(maxDeadLetterBatch),
		slots:            newSlotQueue(config.MaxInFlight),
		discharges:       newDischarges(),
		memory:           newMemoryBudget(config.MaxBodyBytes),
		parseSlots:       make(chan struct{}, runtime.GOMAXPROCS(0)),
		bodySizes:        newSizeEstimates(),
		entityQueues:     entityQueues{byEntity: map[schemas.Entity]*entityQueue{}},
		gates:            newGates(),
		breakerQueue:     newBreakerQueue(),
		dbBreakerChanged: make(chan struct{}, 1),
		leaveTimeout:     leaveTimeout,
	}
	registerBodyBytes(src.Name(), lane, deps.Metrics, w.memory)
	w.dbBreaker = newDBBreaker(w)
	w.writer = newWriter(w)
	var err error
	var line context.Context
	line, w.cancelKafka = context.WithCancel(context.Background())
	w.kafka, err = kgo.NewClient(append(append([]kgo.Opt{
		kgo.WithContext(line),
		kgo.ConsumerGroup(schemas.Group(src.Name(), lane)),
		kgo.ConsumeTopics(schemas.RequestTopic(src.Name(), lane)),
		// Also where the committed offset is gone with the log that had it: what is
		// left is read from its start, and nothing is skipped.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// A killed worker's partitions move soon.
		kgo.SessionTimeout(10 * time.Second),
		kgo.HeartbeatInterval(2 * time.Second),
		kgo.RebalanceTimeout(time.Minute),
		kgo.FetchMaxBytes(4 << 20),
		kgo.FetchMaxPartitionBytes(1 << 20),
	}, w.assignment.options(config.ServerSideAssignment)...), append(deps.Kafka(client), deps.Tracer.Kafka()...)...)...)
	if err != nil {
		w.cancelKafka()
		return nil, fmt.Errorf("make the consumer's client: %w", err)
	}
	w.dlqClient, err = kgo.NewClient(append(dlqClientOptions(), deps.Kafka(client+"-dlq")...)...)
	if err != nil {
		w.kafka.Close()
		w.cancelKafka()
		return nil, fmt.Errorf("make the dead letters' client: %w", err)
	}
	return w, nil
}

// Run works until ctx ends, and then stops in this order: read nothing further;
// give up what waits for a permit, for its records are read again; let what was
// sent be written, settled and committed, for at most Config.Drain; leave the
// group.
func (w *Worker) Run(ctx context.Context) error {
	// hard outlives ctx: it ends the waits of what was sent only when the drain
	// has taken too long.
	hard, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)

	w.life, w.hard = ctx, hard
	var background sync.WaitGroup
	stopCommits := make(chan struct{})
	background.Go(func() { w.writer.run(hard) })
	background.Go(func() { w.commitLoop(hard, stopCommits) })
	discharging, stopDischarges := context.WithCancel(hard)
	background.Go(func() { w.dischargeLoop(discharging) })
	watching, stopWatching := context.WithCancel(hard)
	background.Go(func() { w.probeDatabase(watching) })
	w.tasks.Go(func() { w.probeLoop(ctx, hard) })
	if w.lane == schemas.Low {
		background.Go(func() { w.yieldLoop(ctx) })
	}

	drained := make(chan struct{})
	background.Go(func() {
		<-ctx.Done() // and not the end of the reading: a revocation that waits holds it up
		limit := time.NewTimer(w.config.DrainTimeout)
		defer limit.Stop()
		select {
		case <-limit.C:
			cut(errDrain)
		case <-drained:
		}
	})

	w.pollLoop(ctx)

	w.tasks.Wait()
	close(drained)
	w.writer.stop()
	close(stopCommits)
	stopDischarges()
	stopWatching()
	background.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.leaveTimeout)
	defer cancel()
	committing, done := context.WithTimeout(last, w.leaveTimeout/2) // the rest is for the good-bye
	err := w.assignment.commitLast(committing, w.kafka)
	done()
	if err != nil {
		err = fmt.Errorf("the last commit: %w; what it would have covered is read again", err)
	}
	w.kafka.AllowRebalance()
	if left := w.kafka.LeaveGroupContext(last); left != nil {
		w.log.Warn("could not leave the group in order; its partitions move when the session ends", "err", left)
	}
	// A broker that hangs is left without a word: the client waits for it, whatever its
	// contexts say.
	defer w.cancelKafka()
	defer context.AfterFunc(last, w.cancelKafka)()
	w.kafka.CloseAllowingRebalance()
	w.dlqClient.Close()
	if cause := context.Cause(hard); errors.Is(cause, errDrain) {
		err = errors.Join(err, cause)
	}
	return err
}

var errDrain = errors.New("stopped before everything that was sent could be written; those records are read again")

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
			w.log.Warn("commit failed; the next one covers it", "err", err)
		}
		failing = err != nil
		w.checkRetention(time.Now())
	}
}

// checkRetention says when the oldest record that is not committed has used up half of
// the time for which its topic keeps it: what is deleted unread is lost.
func (w *Worker) checkRetention(now time.Time) {
	age := time.Duration(0)
	if oldest := w.assignment.oldest(); !oldest.IsZero() {
		age = max(0, now.Sub(oldest))
	}
	w.metrics.oldest.Set(age.Seconds())
	const aging = "keeping up: the oldest record has used up half of its topic's retention, and is lost at its end"
	if kept := schemas.Retention(w.lane); age > kept/2 {
		w.conditions.Error(w.log, aging, fmt.Errorf("%v old, of %v", age.Round(time.Second), kept))
	} else {
		w.conditions.Resolved(w.log, aging)
	}
}

// pollLoop reads records until ctx ends and dispatches them.
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

// logPollErrors says once what keeps records from being read, and once that it is over.
func (w *Worker) logPollErrors(ctx context.Context, fetches kgo.Fetches) {
	const doing = "reading from Kafka"
	failed := false
	fetches.EachError(func(topic string, partition int32, err error) {
		failed = true
		switch {
		case ctx.Err() != nil || errors.Is(err, context.Canceled):
			return
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			err = fmt.Errorf("there is no topic %s; create it with `freshet topics ensure`", topic)
		case topic != "":
			err = fmt.Errorf("partition %d of %s: %w", partition, topic, err)
		}
		w.conditions.Error(w.log, doing, err)
	})
	if !failed {
		w.conditions.Resolved(w.log, doing)
	}
}
