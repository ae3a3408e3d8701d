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
	// InFlight is the number of records that are worked at once. Of HIGH more are taken in
	// and wait for a slot, so that clients can be served in turn.
	InFlight int
	// Bytes bounds the bodies in memory: room for an entity's is reserved, by the
	// most that the last ones had, before its permit is asked for (see budget).
	Bytes int64
	// Batch is the number of results that are written together at most; Linger is
	// how long the first waits for others.
	Batch  int
	Linger time.Duration
	// Confirm is how long a failed record waits until it is known whose failure it is:
	// by another entity's good answer, or by calls for known-good entities.
	Confirm time.Duration
	// Drain is how long a stop waits for what was sent to be written.
	Drain time.Duration
	// Name identifies the worker in dead letters.
	Name string
	// Triggers are, by facet, those that a change of it refreshes.
	Triggers map[string][]store.Trigger
	// BrokerAssigns has the broker share out the partitions (KIP-848), if it can.
	BrokerAssigns bool
}

// DefaultConfig returns the bounds of a lane's worker: HIGH writes small batches
// soon, LOW large ones (adr-013 §13).
func DefaultConfig(lane schemas.Lane) Config {
	c := Config{Bytes: 128 << 20, Confirm: 5 * time.Second, Drain: 25 * time.Second, Name: "worker"}
	if lane == schemas.High {
		c.InFlight, c.Batch, c.Linger = 512, 20, 2*time.Millisecond
	} else {
		c.InFlight, c.Batch, c.Linger = 1024, 100, 20*time.Millisecond
	}
	return c
}

// leaveTimeout bounds the last commit and the good-bye.
const leaveTimeout = 10 * time.Second

// pollMost is the number of records taken in at once: one look at Redis and one
// at the database for all of them.
const pollMost = 256

// Worker works one lane of one source. It is made for one Run.
type Worker struct {
	config   Config
	source   *source.Source
	lane     schemas.Lane
	store    Store
	requests Requests
	permits  Permits
	retries  Retries
	changes  Changes
	lag      Lag
	health   *Health
	log      *slog.Logger
	metrics  *metrics
	tracer   observe.Tracer

	kafka   *kgo.Client
	hangUp  context.CancelFunc // ends whatever kafka still waits for
	leave   time.Duration      // bounds the last commit and the good-bye
	letters *kgo.Client
	// lettersSent bounds the bytes of dead letters without acknowledgement: maxLetterBatch.
	lettersSent *semaphore.Weighted
	assignment  *assignment
	writer      *writer

	room  *semaphore.Weighted // records in flight, with those that wait for a slot
	turns *turns              // slots
	bytes *budget             // bodies in memory
	cpu   chan struct{}       // readings at once
	sizes *estimates

	concealed atomic.Bool // the log has told of a credential in content
	keyed     keyed
	waiting   *waiting // first attempts that wait for the source's breaker to close
	// life ends when Run is to stop, hard when the drain has taken too long: tasks and
	// confirming calls outlast the record that starts them.
	life, hard context.Context //nolint:containedctx // of Run
	discharges *discharges
	tasks      sync.WaitGroup
	trouble    troubles
	gates      *gates
	breaker    *gobreaker.CircuitBreaker[struct{}] // the database's
	opened     chan struct{}                       // it changed its state
}

// New returns a worker. A client of its own consumes, another one writes dead letters.
func New(config Config, src *source.Source, lane schemas.Lane, needs Needs) (*Worker, error) {
	log := needs.Log.With("source", src.Name(), "lane", string(lane))
	client := src.Name() + "-" + strings.ToLower(string(lane))
	w := &Worker{
		config: config, source: src, lane: lane, store: needs.Store, requests: needs.Requests, permits: needs.Permits,
		retries: needs.Retries, changes: needs.Changes, lag: needs.Lag, health: needs.Health, log: log,
		metrics:     newMetrics(src.Name(), lane, needs.Metrics),
		tracer:      needs.Trace,
		assignment:  newAssignment(log),
		room:        semaphore.NewWeighted(int64(config.InFlight + waitingIn(lane))),
		lettersSent: semaphore.NewWeighted(maxLetterBatch),
		turns:       newTurns(config.InFlight),
		discharges:  newDischarges(),
		bytes:       newBudget(config.Bytes),
		cpu:         make(chan struct{}, runtime.GOMAXPROCS(0)),
		sizes:       newEstimates(),
		keyed:       keyed{lines: map[schemas.Entity]*line{}},
		gates:       newGates(),
		waiting:     newWaiting(),
		opened:      make(chan struct{}, 1),
		leave:       leaveTimeout,
	}
	bodies(src.Name(), lane, needs.Metrics, w.bytes)
	w.breaker = newBreaker(w)
	w.writer = newWriter(w)
	var err error
	var line context.Context
	line, w.hangUp = context.WithCancel(context.Background())
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
	}, w.assignment.options(config.BrokerAssigns)...), append(needs.Kafka(client), needs.Trace.Kafka()...)...)...)
	if err != nil {
		w.hangUp()
		return nil, fmt.Errorf("make the consumer's client: %w", err)
	}
	w.letters, err = kgo.NewClient(append(letterOptions(), needs.Kafka(client+"-letters")...)...)
	if err != nil {
		w.kafka.Close()
		w.hangUp()
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
	background.Go(func() { w.discharge(discharging) })
	watching, stopWatching := context.WithCancel(hard)
	background.Go(func() { w.watchDatabase(watching) })
	w.tasks.Go(func() { w.probeLoop(ctx, hard) })
	if w.lane == schemas.Low {
		background.Go(func() { w.yield(ctx) })
	}

	drained := make(chan struct{})
	background.Go(func() {
		<-ctx.Done() // and not the end of the reading: a revocation that waits holds it up
		limit := time.NewTimer(w.config.Drain)
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
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.leave)
	defer cancel()
	committing, done := context.WithTimeout(last, w.leave/2) // the rest is for the good-bye
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
	defer w.hangUp()
	defer context.AfterFunc(last, w.hangUp)()
	w.kafka.CloseAllowingRebalance()
	w.letters.Close()
	if cause := context.Cause(hard); errors.Is(cause, errDrain) {
		err = errors.Join(err, cause)
	}
	return err
}

var errDrain = errors.New("stopped before everything that was sent could be written; those records are read again")

func (w *Worker) commitLoop(ctx context.Context, stop <-chan struct{}) {
	tick := time.NewTicker(commitEvery)
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
		w.watchAge(time.Now())
	}
}

// watchAge says when the oldest record that is not committed has used up half of
// the time for which its topic keeps it: what is deleted unread is lost.
func (w *Worker) watchAge(now time.Time) {
	age := time.Duration(0)
	if oldest := w.assignment.oldest(); !oldest.IsZero() {
		age = max(0, now.Sub(oldest))
	}
	w.metrics.oldest.Set(age.Seconds())
	const aging = "keeping up: the oldest record has used up half of its topic's retention, and is lost at its end"
	if kept := schemas.Retention(w.lane); age > kept/2 {
		w.trouble.Shout(w.log, aging, fmt.Errorf("%v old, of %v", age.Round(time.Second), kept))
	} else {
		w.trouble.Over(w.log, aging)
	}
}

// pollLoop reads records until ctx ends and dispatches them.
func (w *Worker) pollLoop(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := w.kafka.PollRecords(ctx, pollMost)
		var tasks []*task
		fetches.EachRecord(func(r *kgo.Record) {
			l := w.assignment.of(r.Topic, r.Partition)
			if l == nil || !l.add(r.Offset, r.LeaderEpoch, r.Timestamp) {
				return
			}
			tasks = append(tasks, w.taskOf(r, l))
		})
		w.kafka.AllowRebalance()
		w.polled(ctx, fetches)
		w.dispatch(ctx, tasks)
	}
}

// polled says once what keeps records from being read, and once that it is over.
func (w *Worker) polled(ctx context.Context, fetches kgo.Fetches) {
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
		w.trouble.Shout(w.log, doing, err)
	})
	if !failed {
		w.trouble.Over(w.log, doing)
	}
}
