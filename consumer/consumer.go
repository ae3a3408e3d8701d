package consumer

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

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

// maxPollRecords is the maximum number of records in one poll. The records of one poll share their
// lookups in Redis and in the database.
const maxPollRecords = 256

// Worker processes the update requests in one lane of one source. Run may be called once.
type Worker struct {
	*base
	db       *database
	requests Requests
	permits  Permits
	health   *Health
	hints    *Hints

	group     *group
	intake    *intake
	admission *admission
	gates     *gates
	prober    *prober
	writer    *writer
	settler   *settler
	ends      *ends
	yielder   *yielder // nil in the lane HIGH
	tasks     sync.WaitGroup
	bodies
	facetParts

	calls           callLog
	redactionLogged atomic.Bool // true after the first warning that content contained a credential
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
	b := &base{config: config, source: src, lane: lane, log: log, metrics: newMetrics(src.Name(), lane, deps.Metrics), tracer: deps.Tracer}
	gates := newGates(deps.Tokens)
	w := &Worker{
		base: b, db: newDatabase(b, deps.Store, gates), requests: deps.Requests, permits: deps.Permits,
		health: deps.Health, hints: deps.Hints,
		calls:  callLog{record: deps.RecordCall},
		bodies: bodies{newMemoryBudget(config.MaxBodyBytes), make(chan struct{}, runtime.GOMAXPROCS(0)), newSizeEstimates()},
		gates:  gates,
	}
	w.admission = newAdmission(config.MaxInFlight, lane, &w.tasks)
	registerUse(src.Name(), lane, deps.Metrics, w.memory, w.admission.slots)
	w.facetParts = facetParts{&aliases{w, deps.Aliases}, &walks{w, deps.Walks, &stateReader{store: deps.Walks}, deps.Runs}, &derivations{w, deps.Items}}
	w.writer = newWriter(w, deps.Outbox)
	w.prober = &prober{w: w, queue: newBreakerQueue()}
	w.ends = newEnds(b, deps.Requests, w.walks)
	var err error
	if w.group, err = newGroup(b, append(deps.Kafka(client), deps.Tracer.Kafka()...)...); err != nil {
		return nil, err
	}
	if lane == schemas.Low {
		w.yielder = &yielder{b, w.group, gates, deps.Permits, deps.Lag}
	}
	dlq, err := newDeadLetterTopic(deps.Kafka(client + "-dlq")...)
	if err != nil {
		w.group.close()
		return nil, err
	}
	w.settler = &settler{b, w.db, deps.Requests, deps.Retries, dlq, w.walks}
	w.intake = &intake{b, w.db, w.settler, w.aliases, w.health}
	return w, nil
}

// Load is the work of a worker at one moment.
type Load struct {
	Partitions map[string][]int32 // owned partitions by topic, in ascending order
	InFlight   int                // records that occupy a slot
}

// Load returns the work that this worker has now.
func (w *Worker) Load() Load { return Load{w.group.assignment.owned(), w.admission.slots.used()} }

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

	w.prober.life = ctx
	w.admission.start(ctx.Done(), func(t *task) { w.work(ctx, hard, t) })
	var background sync.WaitGroup
	stopCommits := make(chan struct{})
	background.Go(func() { w.writer.run(hard) })
	background.Go(func() { w.group.commitLoop(hard, stopCommits) })
	releasing, stopReleasing := context.WithCancel(hard)
	background.Go(func() { w.ends.run(releasing) })
	watching, stopWatching := context.WithCancel(hard)
	background.Go(func() { w.db.probe(watching) })
	w.tasks.Go(func() { w.prober.run(ctx, hard) })
	if w.yielder != nil {
		background.Go(func() { w.yielder.run(ctx) })
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
	err := w.group.leave(context.WithoutCancel(ctx))
	w.settler.dlq.client.Close()
	if cause := context.Cause(hard); errors.Is(cause, errDrain) {
		err = errors.Join(err, cause)
	}
	return err
}

var errDrain = errors.New("drain timed out before the answers of all sent calls were stored; their records are read again")

// pollLoop polls records, prepares them, and admits the records that must be processed, until ctx ends.
func (w *Worker) pollLoop(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := w.group.client.PollRecords(ctx, maxPollRecords)
		var tasks []*task
		fetches.EachRecord(func(r *kgo.Record) {
			l := w.group.assignment.ledgerOf(r.Topic, r.Partition)
			if l == nil || !l.add(r.Offset, r.LeaderEpoch, r.Timestamp) {
				return
			}
			tasks = append(tasks, newTask(r, l, w.ends))
		})
		w.group.client.AllowRebalance()
		w.group.logPollErrors(ctx, fetches)
		proceed, err := w.intake.prepare(ctx, tasks)
		if err != nil {
			return // ctx ended; the records stay uncommitted, and a worker reads them again
		}
		for _, t := range proceed {
			w.admission.admit(ctx, t)
		}
	}
}
