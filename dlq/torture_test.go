package dlq

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

var seedCount = flag.Uint64("seeds", 0, "number of seeds for each random test; 0: as many as fit into make test")

// torture makes processes and their dependencies fail at random until the time ends.
type torture struct {
	*rig
	mu      sync.Mutex
	rand    *rand.Rand
	ends    time.Time
	covered map[string]bool // dead letters that are not enqueued, because another request covers them
	faults  map[fault]int
}

func (o *torture) chance(n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.rand.IntN(n) == 0
}

func (o *torture) within(d time.Duration) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Duration(o.rand.Int64N(int64(d)))
}

func (o *torture) over() bool { return time.Now().After(o.ends) }

func (o *torture) faultOf(what string) fault {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over() || what == "enqueue" || o.rand.IntN(6) > 0 {
		return none
	}
	f := fault(o.rand.IntN(int(killedAfter) + 1))
	o.faults[f]++
	return f
}

// enqueueFunc returns a replacement of Enqueue. For each request it returns success or an error at
// random. After an error, the request may nevertheless be published, at once or later. A call may
// also hang, or kill the process.
func (o *torture) enqueueFunc(p *process) func(context.Context, []ReplayRequest) []error {
	return func(ctx context.Context, all []ReplayRequest) []error {
		errs := make([]error, len(all))
		bad, dies := o.chance(3) && !o.over(), o.chance(12) && !o.over()
		if bad && o.chance(3) { // Enqueue hangs for a random time
			select {
			case <-time.After(o.within(chunkTimeout)):
			case <-ctx.Done():
			}
		}
		for i, a := range all {
			at := time.Now()
			switch {
			case dies && o.chance(len(all)):
				p.kill()
				return errs
			case ctx.Err() != nil || bad && o.chance(3):
				errs[i] = errUnavailable
			case bad && o.chance(3):
				errs[i] = errUnavailable
				time.AfterFunc(o.within(maxDeliveryTime), func() { o.put(a, at) })
			case bad && o.chance(3):
				errs[i] = errUnavailable
				o.put(a, at)
			case o.chance(20):
				o.mu.Lock()
				o.covered[a.Mark.Of] = true
				o.mu.Unlock()
			default:
				o.put(a, at)
			}
		}
		return errs
	}
}

// keepTwoProcesses keeps two processes running. It replaces a process that was killed or stopped.
func (o *torture) keepTwoProcesses(id string) {
	var running [2]*process
	for !o.over() {
		for i, p := range running {
			if p == nil || p.isDead() {
				running[i] = o.process()
				running[i].faultOf, running[i].enqueueFunc = o.faultOf, o.enqueueFunc(running[i])
				running[i].run()
			} else if o.chance(10) {
				p.shutdown()
				p.kill()
			}
		}
		if o.chance(5) { // stop the job and resume it
			for _, to := range []deadletters.JobState{deadletters.JobStopped, deadletters.JobRunning} {
				if _, err := running[0].rig.switchJob(id, to); err != nil {
					return // the job is done, so no process is needed any more
				}
				<-time.After(o.within(time.Minute))
			}
		}
		<-time.After(o.within(20 * time.Second))
	}
}

// switchJob changes the state of a job by a call to another process.
func (g *rig) switchJob(id string, to deadletters.JobState) (deadletters.Job, error) {
	other := g.process()
	defer other.kill()
	return other.SetJobState(g.Context(), id, to, "me")
}

// TestReplay_EnqueuesOnceUnderRandomFaults runs a job in two processes that are killed, stopped
// and suspended. Their dependencies fail, or return errors for operations that succeeded. No dead
// letter may be enqueued twice, and none may be skipped.
func TestReplay_EnqueuesOnceUnderRandomFaults(t *testing.T) {
	for seed := range cmp.Or(*seedCount, 6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inBubble(t, func(g *rig) { g.runTorture(seed) })
		})
	}
}

func (g *rig) runTorture(seed uint64) {
	o := &torture{rig: g, rand: rand.New(rand.NewPCG(seed, 7)), covered: map[string]bool{}, faults: map[fault]int{}}
	want := map[string]int64{}
	good := map[string]bool{} // dead letters that must be enqueued
	for n := range int64(150 + o.rand.IntN(500)) {
		id := idOf(int32(n%3), n)
		switch o.rand.IntN(10) {
		case 0:
			want[RefusedUndecodable]++
			g.deadLetter(id, func(_ *deadletters.DeadLetter, r *ReadResult) { r.Err = errors.New("no dead letter") })
		case 1:
			want[RefusedLimit]++
			g.deadLetter(id, func(_ *deadletters.DeadLetter, r *ReadResult) {
				r.DeadLetter.Headers = schemas.ReplayMark{ID: "x", Count: schemas.MaxReplays}.Headers()
			})
		case 2:
			want[RefusedGone]++
			g.deadLetter(id)
			delete(g.records, id)
		default:
			good[formatID(id)] = true
			g.deadLetter(id)
		}
	}
	<-time.After(time.Minute)
	o.ends = time.Now().Add(15 * time.Minute)
	first := g.process()
	rate := []float64{0, 1, 10, 100}[o.rand.IntN(4)]
	job := first.start(JobSpec{Rate: rate})
	first.kill()
	o.keepTwoProcesses(job.ID)
	if g.job(job.ID).State == deadletters.JobStopped {
		if _, err := g.switchJob(job.ID, deadletters.JobRunning); err != nil {
			g.Fatal(err)
		}
	}
	g.process().run()
	j := g.waitUntilDone(job.ID)
	<-time.After(time.Minute) // wait until requests that Kafka delivers late are on the topic

	g.wantCounts(j, int64(len(good)), want)
	enqueued := g.enqueued()
	for of := range good {
		if n := enqueued[of]; n > 1 || n == 0 && !o.covered[of] {
			g.Errorf("dead letter %s was enqueued %d times", of, n)
		}
	}
	if testing.Verbose() {
		g.Logf("%d dead letters at %v/s by %d processes, faults: %v", len(good), rate, g.started, maps.Clone(o.faults))
	}
}
