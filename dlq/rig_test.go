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
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/sqlite"
)

const theSource = "nexon"

// rig is the setup of a test. It has the state that survives the end of a process: the database, the
// dead-letter topic and the request topic. Tests with processes run in a synctest bubble, where
// waiting takes no time.
type rig struct {
	*testing.T
	db *sqlite.Store

	mu        sync.Mutex
	records   map[deadletters.ID]ReadResult
	starts    map[int32]int64
	requests  []request
	readDelay time.Duration // duration of reading one dead letter
	processes []*process
	started   int
}

// request is a record that is in the fake request topic, with its timestamp.
type request struct {
	ReplayRequest
	at time.Time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &rig{T: t, db: db, records: map[deadletters.ID]ReadResult{}, starts: map[int32]int64{}}
}

// inBubble runs a test with a new setup (rig) in a synctest bubble.
func inBubble(t *testing.T, test func(g *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		defer func() {
			g.mu.Lock()
			all := slices.Clone(g.processes)
			g.mu.Unlock()
			for _, p := range all {
				p.stop()
			}
		}()
		test(g)
	})
}

func idOf(partition int32, offset int64) deadletters.ID {
	return deadletters.ID{Topic: schemas.DeadLetterTopic(theSource), Partition: partition, Offset: offset}
}

// value returns the encoded request of an entity.
func (g *rig) value(of schemas.Entity, params map[string]string) []byte {
	g.Helper()
	text, err := schemas.UpdateRequest{
		EventID: "e", Entity: of, Params: params, Lane: schemas.High, Reason: schemas.UserRequest, RequestedAt: time.Now(), CorrelationID: "c-" + of.Key,
	}.Encode()
	if err != nil {
		g.Fatal(err)
	}
	return text
}

// deadLetter adds a dead letter with the current time to the topic, and its row to the database. The
// functions in change can modify both before they are stored.
func (g *rig) deadLetter(id deadletters.ID, change ...func(*deadletters.DeadLetter, *ReadResult)) {
	g.Helper()
	of := schemas.Entity{Source: theSource, Facet: "character", Key: fmt.Sprintf("%d-%d", id.Partition, id.Offset)}
	read := ReadResult{DeadLetter: schemas.DeadLetter{Value: g.value(of, nil), Reason: schemas.Upstream5xx, Time: time.Now()}}
	l := deadletters.DeadLetter{ID: id, Entity: of, Reason: schemas.Upstream5xx, Error: "it failed", Fingerprint: "f", At: time.Now()}
	for _, c := range change {
		c(&l, &read)
	}
	l.Replays = read.DeadLetter.Replay().Count
	if err := g.db.WriteFailure(g.Context(), store.Status{}, &l); err != nil {
		g.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.records[id] = read
}

// deadLetterMany adds n dead letters to partition 0, and waits until all are older than
// minDeleteAge.
func (g *rig) deadLetterMany(n int64) {
	g.Helper()
	for offset := range n {
		g.deadLetter(idOf(0, offset))
	}
	<-time.After(time.Minute)
}

// enqueued returns how often each dead letter was enqueued.
func (g *rig) enqueued() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := map[string]int{}
	for _, r := range g.requests {
		n[r.Mark.Of]++
	}
	return n
}

// wantEachEnqueuedOnce fails the test unless each of n dead letters of partition 0 was enqueued
// exactly once.
func (g *rig) wantEachEnqueuedOnce(n int) {
	g.Helper()
	enqueued := g.enqueued()
	for of, times := range enqueued {
		if times != 1 {
			g.Errorf("dead letter %s was enqueued %d times, want once", of, times)
		}
	}
	if len(enqueued) != n {
		g.Errorf("enqueued dead letters: got %d, want %d", len(enqueued), n)
	}
}

func (g *rig) job(id string) deadletters.Job {
	g.Helper()
	j, err := g.db.Job(g.Context(), id)
	if err != nil {
		g.Fatal(err)
	}
	return j
}

// waitUntilDone waits until a job is done.
func (g *rig) waitUntilDone(id string) deadletters.Job {
	g.Helper()
	for since := time.Now(); time.Since(since) < 24*time.Hour; <-time.After(time.Second) {
		if j := g.job(id); j.State == deadletters.JobDone {
			return j
		}
	}
	g.Fatalf("job is not done after 24 h: %+v", g.job(id))
	return deadletters.Job{}
}

// wantCounts fails the test unless the job has these counts. It also checks that done rows of
// dead_letters have the job's ID.
func (g *rig) wantCounts(j deadletters.Job, done int64, refused map[string]int64) {
	g.Helper()
	if j.Done != done || !maps.Equal(j.Refused, refused) {
		g.Errorf("job: got %d done, refused %v, want %d and %v", j.Done, j.Refused, done, refused)
	}
	all, err := g.db.DeadLetters(g.Context(), deadletters.Filter{Source: theSource, Handled: deadletters.Handled}, deadletters.DeadLetter{}, 100_000)
	if err != nil {
		g.Fatal(err)
	}
	n := int64(0)
	for _, l := range all {
		if l.Job == j.ID {
			n++
		}
	}
	if n != done {
		g.Errorf("index entries of the job: got %d, want %d", n, done)
	}
}

// fault says how an operation fails, if a test injects a failure into it.
type fault int

const (
	none        fault = iota
	refused           // the operation is not executed and returns an error
	lost              // the operation is executed but returns an error
	slow              // the operation is executed after chunkTimeout
	killed            // the process is killed before the operation
	killedAfter       // the process is killed after the operation
)

var errUnavailable = errors.New("unavailable")

// process is a simulated process that runs jobs.
type process struct {
	*Queue
	rig   *rig
	ctx   context.Context
	stop  context.CancelFunc
	ended chan struct{}
	woken chan struct{}
	// faultOf returns the fault to inject into the operation with the given name. If faultOf is
	// nil, no faults are injected.
	faultOf func(what string) fault
	// enqueueFunc replaces Enqueue, unless it is nil.
	enqueueFunc func(ctx context.Context, all []ReplayRequest) []error

	mu   sync.Mutex
	dead bool
}

// process returns a new process that is not running.
func (g *rig) process() *process {
	g.Helper()
	p := &process{rig: g, ended: make(chan struct{}), woken: make(chan struct{}, 1)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	g.mu.Lock()
	defer g.mu.Unlock()
	g.started++
	g.processes = append(g.processes, p)
	p.Queue = New(Deps{
		Store: fakeStore{g.db, p}, Topics: fakeTopics{p}, Enqueuer: p, Notifier: fakeNotifier{p}, Sources: map[string]Source{theSource: fakeSource{}},
		Process: fmt.Sprint("process-", g.started), Actor: func(*http.Request) string { return "me" }, Log: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(),
	})
	return p
}

// run starts the process. The process ends when it is stopped or killed, or when the test ends.
func (p *process) run() *process {
	go func() {
		defer close(p.ended)
		_ = p.Run(p.ctx)
	}()
	return p
}

// shutdown stops the process and waits for it.
func (p *process) shutdown() {
	p.stop()
	<-p.ended
}

// kill ends the process at once: none of its operations has an effect any more.
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

// withFault runs an operation of the process with the fault that faultOf injects.
func withFault[T any](ctx context.Context, p *process, what string, f func() (T, error)) (T, error) {
	var nothing T
	if p.isDead() {
		runtime.Goexit()
	}
	injected := none
	if p.faultOf != nil {
		injected = p.faultOf(what)
	}
	if injected == refused {
		return nothing, errUnavailable
	}
	if injected == slow {
		select {
		case <-ctx.Done():
			return nothing, ctx.Err()
		case <-time.After(chunkTimeout + 10*time.Second):
		}
	}
	if injected == killed {
		p.kill()
	}
	if p.isDead() {
		runtime.Goexit()
	}
	stored, err := f()
	if injected == lost {
		return nothing, errUnavailable
	}
	if injected == killedAfter {
		p.kill()
	}
	if p.isDead() {
		runtime.Goexit()
	}
	return stored, err
}

// start creates a job. It does not wait for the job.
func (p *process) start(o JobSpec) deadletters.Job {
	p.rig.Helper()
	o.Filter.Source = theSource
	o.Kind = cmp.Or(o.Kind, deadletters.ReplayJob)
	if o.Kind == deadletters.ReplayJob {
		o.Lane = cmp.Or(o.Lane, schemas.Low)
	}
	j, err := p.StartJob(p.rig.Context(), o, "me")
	if err != nil {
		p.rig.Fatal(err)
	}
	return j
}
