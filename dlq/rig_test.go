package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/sqlite"
)

const theSource = "nexon"

// rig is what outlives processes: the database, the letters and the request topic. Tests
// that let it run do so in a bubble of testing/synctest: hours cost nothing.
type rig struct {
	*testing.T
	db *sqlite.Store

	mu        sync.Mutex
	records   map[store.DeadLetterID]ReadResult
	starts    map[int32]int64
	requests  []request
	readDelay time.Duration // of reading a letter
	processes []*process
	started   int
}

// request is a record of the request topic.
type request struct {
	ReplayRequest
	at time.Time
}

func newWorld(t *testing.T) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &rig{T: t, db: db, records: map[store.DeadLetterID]ReadResult{}, starts: map[int32]int64{}}
}

// inBubble plays a test in a world where time passes at once.
func inBubble(t *testing.T, test func(w *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer func() {
			w.mu.Lock()
			all := slices.Clone(w.processes)
			w.mu.Unlock()
			for _, p := range all {
				p.stop()
			}
		}()
		test(w)
	})
}

func idOf(partition int32, offset int64) store.DeadLetterID {
	return store.DeadLetterID{Topic: schemas.DeadLetterTopic(theSource), Partition: partition, Offset: offset}
}

// value is the record of a request for the key.
func (w *rig) value(of schemas.Entity, params map[string]string) []byte {
	w.Helper()
	text, err := schemas.UpdateRequest{
		EventID: "e", Entity: of, Params: params, Lane: schemas.High, Reason: schemas.UserRequest, RequestedAt: time.Now(), CorrelationID: "c-" + of.Key,
	}.Encode()
	if err != nil {
		w.Fatal(err)
	}
	return text
}

// deadLetter puts a letter on its topic and into the index, as it died just now; change makes it
// what it is to be.
func (w *rig) deadLetter(id store.DeadLetterID, change ...func(*store.DeadLetter, *ReadResult)) {
	w.Helper()
	of := schemas.Entity{Source: theSource, Facet: "character", Key: fmt.Sprintf("%d-%d", id.Partition, id.Offset)}
	read := ReadResult{DeadLetter: schemas.DeadLetter{Value: w.value(of, nil), Reason: schemas.Upstream5xx, Time: time.Now()}}
	l := store.DeadLetter{DeadLetterID: id, Entity: of, Reason: schemas.Upstream5xx, Error: "it failed", Fingerprint: "f", At: time.Now()}
	for _, c := range change {
		c(&l, &read)
	}
	l.Replays = read.DeadLetter.Replay().Count
	if err := w.db.WriteFailure(w.Context(), store.Status{}, &l); err != nil {
		w.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records[id] = read
}

// deadLetterMany buries n letters in partition 0 and returns when none of them is young.
func (w *rig) deadLetterMany(n int64) {
	w.Helper()
	for offset := range n {
		w.deadLetter(idOf(0, offset))
	}
	<-time.After(time.Minute)
}

// enqueued returns how often each letter was asked for.
func (w *rig) enqueued() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]int{}
	for _, r := range w.requests {
		n[r.Mark.Of]++
	}
	return n
}

// wantEachEnqueuedOnce fails unless each of n letters of partition 0 was asked for, and that once.
func (w *rig) wantEachEnqueuedOnce(n int) {
	w.Helper()
	asked := w.enqueued()
	for of, times := range asked {
		if times != 1 {
			w.Errorf("letter %s was asked for %d times", of, times)
		}
	}
	if len(asked) != n {
		w.Errorf("%d letters were asked for, want %d", len(asked), n)
	}
}

func (w *rig) job(id string) store.DLQJob {
	w.Helper()
	j, err := w.db.Job(w.Context(), id)
	if err != nil {
		w.Fatal(err)
	}
	return j
}

// waitUntilDone waits until a job has.
func (w *rig) waitUntilDone(id string) store.DLQJob {
	w.Helper()
	for since := time.Now(); time.Since(since) < 24*time.Hour; <-time.After(time.Second) {
		if j := w.job(id); j.State == store.JobDone {
			return j
		}
	}
	w.Fatalf("the job does not end: %+v", w.job(id))
	return store.DLQJob{}
}

// wantCounts fails unless the job ended with these counts, and the database says so too.
func (w *rig) wantCounts(j store.DLQJob, done int64, refused map[string]int64) {
	w.Helper()
	if j.Done != done || !maps.Equal(j.Refused, refused) {
		w.Errorf("%d are done and refused %v; want %d and %v", j.Done, j.Refused, done, refused)
	}
	all, err := w.db.DeadLetters(w.Context(), store.DeadLetterFilter{Source: theSource, Handled: store.HandledDeadLetters}, store.DeadLetter{}, 100_000)
	if err != nil {
		w.Fatal(err)
	}
	n := int64(0)
	for _, l := range all {
		if l.Job == j.ID {
			n++
		}
	}
	if n != done {
		w.Errorf("%d letters are marked as handled by the job, want %d", n, done)
	}
}

// fault is what befalls a process as it does something.
type fault int

const (
	none    fault = iota
	refused       // nothing is done, and it is told so
	lost          // it is done, but told that it was not
	slow          // it takes longer than a chunk may
	killed        // the process ends before
	killedAfter
)

var errUnavailable = errors.New("it is away")

// process is one that works on jobs.
type process struct {
	*Queue
	world *rig
	ctx   context.Context
	stop  context.CancelFunc
	ended chan struct{}
	woken chan struct{}
	// faultOf says what befalls it; nil: nothing does.
	faultOf func(what string) fault
	// enqueueFunc does what Ask does instead, unless it is nil.
	enqueueFunc func(ctx context.Context, all []ReplayRequest) []error

	mu   sync.Mutex
	dead bool
}

// process returns one that does not run yet.
func (w *rig) process() *process {
	w.Helper()
	p := &process{world: w, ended: make(chan struct{}), woken: make(chan struct{}, 1)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started++
	w.processes = append(w.processes, p)
	p.Queue = New(Deps{
		Store: fakeStore{w.db, p}, Topics: fakeTopics{p}, Enqueuer: p, Notifier: fakeNotifier{p}, Sources: map[string]Source{theSource: fakeSource{}},
		Process: fmt.Sprint("process-", w.started), Actor: func(*http.Request) string { return "me" }, Log: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(),
	})
	return p
}

// run has it work until it is stopped or killed, or the test ends.
func (p *process) run() *process {
	go func() {
		defer close(p.ended)
		_ = p.Run(p.ctx)
	}()
	return p
}

// shutdown stops it in order.
func (p *process) shutdown() {
	p.stop()
	<-p.ended
}

// kill ends it at once: it does nothing any more.
func (p *process) kill() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.stop()
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// withFault does something as the process, or what befalls it.
func withFault[T any](ctx context.Context, p *process, what string, f func() (T, error)) (T, error) {
	var nothing T
	if p.isDead() {
		runtime.Goexit()
	}
	befalls := none
	if p.faultOf != nil {
		befalls = p.faultOf(what)
	}
	if befalls == refused {
		return nothing, errUnavailable
	}
	if befalls == slow {
		select {
		case <-ctx.Done():
			return nothing, ctx.Err()
		case <-time.After(chunkTimeout + 10*time.Second):
		}
	}
	if befalls == killed {
		p.kill()
	}
	if p.isDead() {
		runtime.Goexit()
	}
	is, err := f()
	if befalls == lost {
		return nothing, errUnavailable
	}
	if befalls == killedAfter {
		p.kill()
	}
	if p.isDead() {
		runtime.Goexit()
	}
	return is, err
}

// fakeStore is the real one, as far as the process reaches it. What is interrupted there
// would take the database in memory along.
type fakeStore struct {
	*sqlite.Store
	p *process
}

func (s fakeStore) DeadLettersByOffset(ctx context.Context, f store.DeadLetterFilter, behind store.DeadLetterID, limit int) ([]store.DeadLetter, error) {
	return withFault(ctx, s.p, "walk", func() ([]store.DeadLetter, error) { return s.Store.DeadLettersByOffset(ctx, f, behind, limit) })
}

func (s fakeStore) Job(ctx context.Context, id string) (store.DLQJob, error) {
	return withFault(ctx, s.p, "job", func() (store.DLQJob, error) { return s.Store.Job(ctx, id) })
}

func (s fakeStore) LeaseJob(ctx context.Context, holder string, sources []string, now, until time.Time) (j store.DLQJob, ok bool, err error) {
	j, err = withFault(ctx, s.p, "hold", func() (store.DLQJob, error) {
		var err error
		j, ok, err = s.Store.LeaseJob(context.WithoutCancel(ctx), holder, sources, now, until)
		return j, err
	})
	return j, ok, err
}

func (s fakeStore) NextLeaseEnd(ctx context.Context, sources []string) (time.Time, error) {
	return withFault(ctx, s.p, "next", func() (time.Time, error) { return s.Store.NextLeaseEnd(context.WithoutCancel(ctx), sources) })
}

func (s fakeStore) SaveJobProgress(ctx context.Context, j store.DLQJob, handled []store.DeadLetterID, h store.Disposition, e *store.AuditEntry) (store.JobState, error) {
	return withFault(ctx, s.p, "advance", func() (store.JobState, error) { return s.Store.SaveJobProgress(ctx, j, handled, h, e) })
}

// fakeSource has the facet character, and takes all keys but one.
type fakeSource struct{}

func (fakeSource) HasFacet(name string) bool { return name == "character" }

func (fakeSource) CheckKey(_, key string) error {
	if strings.HasPrefix(key, "bad") {
		return errors.New("there is no such key")
	}
	return nil
}

type fakeTopics struct{ p *process }

func (m fakeTopics) ReadDeadLetters(ctx context.Context, ids []store.DeadLetterID, found func(store.DeadLetterID, ReadResult)) error {
	_, err := withFault(ctx, m.p, "read", func() (any, error) {
		w := m.p.world
		for _, id := range ids {
			if !poll.Pause(ctx, w.readDelay) {
				return nil, ctx.Err()
			}
			w.mu.Lock()
			r, there := w.records[id]
			there = there && id.Offset >= w.starts[id.Partition]
			w.mu.Unlock()
			if there {
				found(id, r)
			}
		}
		return nil, nil
	})
	return err
}

func (m fakeTopics) EnqueuedByJob(ctx context.Context, _, job string, from, to time.Time) (map[string]bool, error) {
	return withFault(ctx, m.p, "asked", func() (map[string]bool, error) {
		w := m.p.world
		w.mu.Lock()
		defer w.mu.Unlock()
		asked := map[string]bool{}
		for _, r := range w.requests {
			if r.Mark.ID == job && !r.at.Before(from.Truncate(time.Millisecond)) && !r.at.After(to) {
				asked[r.Mark.Of] = true
			}
		}
		return asked, nil
	})
}

func (m fakeTopics) Bounds(ctx context.Context, _ string) (map[int32]PartitionBounds, error) {
	return withFault(ctx, m.p, "bounds", func() (map[int32]PartitionBounds, error) {
		w := m.p.world
		w.mu.Lock()
		defer w.mu.Unlock()
		bounds := map[int32]PartitionBounds{}
		for id := range w.records {
			b := bounds[id.Partition]
			bounds[id.Partition] = PartitionBounds{w.starts[id.Partition], max(b.End, id.Offset+1)}
		}
		return bounds, nil
	})
}

func (m fakeTopics) DeleteBefore(ctx context.Context, _ string, before map[int32]int64) (map[int32]int64, error) {
	return withFault(ctx, m.p, "cut", func() (map[int32]int64, error) {
		w := m.p.world
		w.mu.Lock()
		defer w.mu.Unlock()
		for id, r := range w.records {
			if id.Offset < before[id.Partition] && time.Since(r.DeadLetter.Time) < minDeleteAge {
				w.Errorf("%+v is deleted, and may have neighbours that have no entry yet", id)
			}
		}
		for partition, offset := range before {
			w.starts[partition] = max(w.starts[partition], offset)
		}
		return maps.Clone(w.starts), nil
	})
}

// put has a record on the request topic that was sent then.
func (w *rig) put(a ReplayRequest, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = append(w.requests, request{a, at})
}

// Enqueue is the door of the process.
func (p *process) Enqueue(ctx context.Context, all []ReplayRequest) []error {
	if p.enqueueFunc != nil {
		if p.isDead() {
			runtime.Goexit()
		}
		return p.enqueueFunc(ctx, all)
	}
	errs, err := withFault(ctx, p, "ask", func() ([]error, error) {
		for _, a := range all {
			p.world.put(a, time.Now())
		}
		return make([]error, len(all)), nil
	})
	if err != nil {
		return slices.Repeat([]error{err}, len(all))
	}
	return errs
}

// fakeNotifier rings at once.
type fakeNotifier struct{ p *process }

func (b fakeNotifier) Run(ctx context.Context, latest time.Duration, work func(context.Context, time.Time) (time.Time, error)) error {
	for {
		next, err := work(ctx, time.Now())
		wait := latest
		if err != nil {
			wait = 5 * time.Second
		} else if !next.IsZero() {
			wait = min(latest, max(time.Until(next), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-b.p.woken:
		case <-time.After(wait):
		}
	}
}

func (b fakeNotifier) WakeAt(_ context.Context, at time.Time) {
	time.AfterFunc(time.Until(at), func() {
		b.p.world.mu.Lock()
		all := slices.Clone(b.p.world.processes)
		b.p.world.mu.Unlock()
		for _, p := range all {
			fakeNotifier{p}.WakeLocal(at)
		}
	})
}

func (b fakeNotifier) WakeLocal(time.Time) {
	select {
	case b.p.woken <- struct{}{}:
	default:
	}
}

// start orders a job in the test's name.
func (p *process) start(o JobSpec) store.DLQJob {
	p.world.Helper()
	o.Filter.Source = theSource
	o.Kind = cmp.Or(o.Kind, store.ReplayJob)
	if o.Kind == store.ReplayJob {
		o.Lane = cmp.Or(o.Lane, schemas.Low)
	}
	j, err := p.StartJob(p.world.Context(), o, "me")
	if err != nil {
		p.world.Fatal(err)
	}
	return j
}
