package dlq

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

// faultOnce returns a faultOf function that injects the fault at the nth call of the operation.
func faultOnce(what string, n int, injected fault) func(string) fault {
	return func(does string) fault {
		if does == what {
			if n--; n == 0 {
				return injected
			}
		}
		return none
	}
}

// TestReplay_EnqueuesOnceAcrossKills kills a process at each of its operations, and starts another
// process that continues the job. Each dead letter must be enqueued exactly once.
func TestReplay_EnqueuesOnceAcrossKills(t *testing.T) {
	for _, what := range []string{"lease", "list", "read", "save", "enqueue"} {
		for n := range 2 {
			for _, f := range []fault{killed, killedAfter} {
				inBubble(t, func(g *rig) {
					g.deadLetterMany(520)
					p := g.process()
					p.faultOf = faultOnce(what, n+1, f)
					id := p.run().start(JobSpec{}).ID
					<-time.After(5 * time.Second)
					g.process().run()
					j := g.waitUntilDone(id)
					g.wantCounts(j, 520, map[string]int64{})
					g.wantEachEnqueuedOnce(520)
					if took := j.EndedAt.Sub(j.CreatedAt); took > leaseDuration+10*time.Second {
						t.Errorf("killed at %s %d: replay took %v", what, n, took)
					}
				})
			}
		}
	}
}

// TestReconcile_FindsLateEntries: a worker can write the row of a dead letter late. The test adds such
// rows at offsets between the offsets of a chunk, before the chunk is reconciled. The job must enqueue
// these dead letters too.
func TestReconcile_FindsLateEntries(t *testing.T) {
	inBubble(t, func(g *rig) {
		diedAt := time.Now()
		for n := range int64(520) {
			g.deadLetter(idOf(0, 2*n))
		}
		<-time.After(time.Minute)
		p := g.process()
		p.faultOf = faultOnce("enqueue", maxChunk/enqueueBatch, killedAfter)
		id := p.run().start(JobSpec{}).ID
		<-p.ended
		for n := range int64(30) {
			g.deadLetter(idOf(0, 2*n+1), func(l *deadletters.DeadLetter, _ *ReadResult) { l.At = diedAt })
		}
		g.process().run()
		g.wantCounts(g.waitUntilDone(id), 550, map[string]int64{})
		g.wantEachEnqueuedOnce(550)
	})
}

// TestReplay_CountsOnceIfACommitIsUnknown loses the response to a commit, so the process does not
// know that its progress was saved. Each dead letter must still be counted and enqueued once.
func TestReplay_CountsOnceIfACommitIsUnknown(t *testing.T) {
	for _, kind := range []deadletters.JobKind{deadletters.ReplayJob, deadletters.PurgeJob} {
		for n := range 6 {
			inBubble(t, func(g *rig) {
				g.deadLetter(idOf(0, 3000), func(_ *deadletters.DeadLetter, r *ReadResult) { r.Err = errors.New("no dead letter") })
				g.deadLetterMany(1300)
				p := g.process()
				p.faultOf = faultOnce("save", n+1, lost)
				j := g.waitUntilDone(p.run().start(JobSpec{Kind: kind, Max: 1200}).ID)
				if j.Done != 1200 {
					t.Errorf("%s: response %d lost: got %d done, want 1200", kind, n, j.Done)
				}
				if kind == deadletters.ReplayJob {
					g.wantEachEnqueuedOnce(1200)
				}
			})
		}
	}
}

// TestRun_ProcessLeasesItsOwnJobAgain makes the database unreachable for longer than the lease.
// The process then leases a job that one of its goroutines is still running. Each dead letter must
// still be enqueued once.
func TestRun_ProcessLeasesItsOwnJobAgain(t *testing.T) {
	for away := 40 * time.Second; away < 2*time.Minute; away += 14 * time.Second {
		inBubble(t, func(g *rig) {
			g.deadLetterMany(1600)
			p := g.process()
			begins := time.Now().Add(3 * time.Second)
			p.faultOf = func(what string) fault {
				if since := time.Since(begins); what != "enqueue" && what != "read" && since > 0 && since < away {
					return refused
				}
				return none
			}
			p.enqueueFunc = func(ctx context.Context, all []ReplayRequest) []error {
				for _, a := range all {
					g.put(a, time.Now())
				}
				select { // wait 700 ms in Enqueue, so that the goroutines of both leases overlap
				case <-time.After(700 * time.Millisecond):
				case <-ctx.Done():
				}
				return make([]error, len(all))
			}
			g.wantCounts(g.waitUntilDone(p.run().start(JobSpec{}).ID), 1600, map[string]int64{})
			g.wantEachEnqueuedOnce(1600)
		})
	}
}

// TestReplay_FrozenHolderEnqueuesNothing suspends the lease holder during a chunk for longer than
// its lease. When the holder continues, it must enqueue nothing, because the job has a new holder.
func TestReplay_FrozenHolderEnqueuesNothing(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(400)
		p := g.process()
		// The counter is atomic, because a second goroutine of the process may run the job while
		// the first goroutine is suspended.
		var calls atomic.Int64
		p.enqueueFunc = func(_ context.Context, all []ReplayRequest) []error {
			if calls.Add(1) == 3 {
				<-time.After(2 * leaseDuration)
				// After the suspension, Enqueue returns no error although it has published nothing.
				return make([]error, len(all))
			}
			for _, a := range all {
				g.put(a, time.Now())
			}
			return make([]error, len(all))
		}
		id := p.run().start(JobSpec{}).ID
		<-time.After(time.Second)
		g.process().run()
		g.wantCounts(g.waitUntilDone(id), 400, map[string]int64{})
		<-time.After(5 * time.Minute)
		g.wantCounts(g.job(id), 400, map[string]int64{})
		g.wantEachEnqueuedOnce(400)
	})
}

// TestRelease_WaitsForDeliveryAfterAFailure shuts down a process after Kafka did not acknowledge
// its requests. Kafka delivers these requests late. The next process must reconcile the chunk only
// after this delivery, or it would enqueue the requests again.
func TestRelease_WaitsForDeliveryAfterAFailure(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		inBubble(t, func(g *rig) {
			g.deadLetterMany(10)
			p := g.process()
			p.enqueueFunc = func(_ context.Context, all []ReplayRequest) []error {
				errs := make([]error, len(all))
				at := time.Now()
				for i, a := range all {
					errs[i] = errUnavailable
					time.AfterFunc(maxDeliveryTime-time.Second, func() { g.put(a, at) })
				}
				return errs
			}
			id := p.run().start(JobSpec{}).ID
			<-time.After(100 * time.Millisecond)
			if stopped {
				if _, err := p.SetJobState(g.Context(), id, deadletters.JobStopped, "me"); err != nil {
					t.Fatal(err)
				}
				<-time.After(100 * time.Millisecond)
			}
			p.shutdown()
			other := g.process().run()
			if stopped {
				if _, err := other.SetJobState(g.Context(), id, deadletters.JobRunning, "me"); err != nil {
					t.Fatal(err)
				}
			}
			g.wantCounts(g.waitUntilDone(id), 10, map[string]int64{})
			<-time.After(time.Minute)
			g.wantEachEnqueuedOnce(10)
		})
	}
}

// TestStop_InAChunkBlocksOtherReplays kills a process during a chunk, and stops its job before
// another process has leased the job. No other replay may start until the chunk is reconciled.
func TestStop_InAChunkBlocksOtherReplays(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(400)
		p := g.process()
		p.faultOf = faultOnce("enqueue", 3, killed)
		id := p.run().start(JobSpec{}).ID
		<-time.After(time.Second)
		other := g.process().run()
		if _, err := other.SetJobState(g.Context(), id, deadletters.JobStopped, "me"); err != nil {
			t.Fatal(err)
		}
		if _, err := other.StartJob(g.Context(), JobSpec{Kind: deadletters.ReplayJob, Lane: schemas.Low, Filter: deadletters.Filter{Source: theSource}}, "me"); !errors.Is(err, deadletters.ErrReplayRunning) {
			t.Errorf("StartJob of another replay: got %v, want ErrReplayRunning", err)
		}
		<-time.After(leaseDuration)
		if j := g.job(id); j.State != deadletters.JobStopped || !j.ChunkStartedAt.IsZero() || j.Done != 100 {
			t.Errorf("chunk in flight was not reconciled: %+v", j)
		}
		g.wantCounts(g.waitUntilDone(other.start(JobSpec{}).ID), 300, map[string]int64{})
		g.wantEachEnqueuedOnce(400)
	})
}

func TestResume_ContinuesAtOnce(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(1000)
		p := g.process().run()
		id := p.start(JobSpec{Rate: 10}).ID
		<-time.After(20 * time.Second)
		for range 2 { // the second call finds the job stopped already, and must return no error
			if j, err := p.SetJobState(g.Context(), id, deadletters.JobStopped, "me"); err != nil || j.State != deadletters.JobStopped {
				t.Fatal(j, err)
			}
		}
		<-time.After(5 * time.Second)
		stopped := len(g.enqueued())
		<-time.After(20 * time.Second)
		if n := len(g.enqueued()); n != stopped || n < 150 || n > 250 {
			t.Fatalf("enqueued %d until the stop, then %d", stopped, n-stopped)
		}
		if j, err := p.SetJobState(g.Context(), id, deadletters.JobRunning, "me"); err != nil || j.State != deadletters.JobRunning {
			t.Fatal(j, err)
		}
		<-time.After(5 * time.Second)
		if n := len(g.enqueued()); n < stopped+30 {
			t.Errorf("enqueued %d within 5 s after the resumption", n-stopped)
		}
		// The job must also continue if it is resumed before its holder has seen that it was stopped.
		for _, to := range []deadletters.JobState{deadletters.JobStopped, deadletters.JobRunning} {
			if _, err := p.SetJobState(g.Context(), id, to, "me"); err != nil {
				t.Fatal(err)
			}
		}
		g.wantCounts(g.waitUntilDone(id), 1000, map[string]int64{})
		g.wantEachEnqueuedOnce(1000)
		for _, to := range []deadletters.JobState{deadletters.JobStopped, deadletters.JobRunning} {
			if _, err := p.SetJobState(g.Context(), id, to, "me"); !errors.Is(err, deadletters.ErrJobNotFound) {
				t.Errorf("state of a done job set to %s: %v", to, err)
			}
		}
	})
}

// TestResume_DuringLeaseRelease resumes a job when its holder has already read the state STOPPED
// but has not yet released the lease. The job must still continue.
func TestResume_DuringLeaseRelease(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(100)
		p := g.process()
		other := g.process()
		var saves atomic.Int64 // number of saves after the first request was enqueued
		p.faultOf = func(what string) fault {
			if what != "save" || len(g.enqueued()) == 0 {
				return none
			}
			to := deadletters.JobStopped
			switch saves.Add(1) {
			case 1:
			case 2:
				to = deadletters.JobRunning
			default:
				return none
			}
			all, err := g.db.Jobs(g.Context(), 1)
			if err == nil {
				_, err = other.SetJobState(g.Context(), all[0].ID, to, "me")
			}
			if err != nil {
				t.Error(err)
			}
			return none
		}
		g.wantCounts(g.waitUntilDone(p.run().start(JobSpec{Rate: 10}).ID), 100, map[string]int64{})
		g.wantEachEnqueuedOnce(100)
	})
}

// TestRun_LeavesJobsOfUnknownSources: a process must not lease a job of a source that its
// configuration lacks. Such a process would refuse all dead letters of the job.
func TestRun_LeavesJobsOfUnknownSources(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(10)
		old := g.process()
		old.Sources = map[string]Source{"other": fakeSource{}}
		id := old.run().start(JobSpec{}).ID
		<-time.After(time.Minute)
		g.process().run()
		g.wantCounts(g.waitUntilDone(id), 10, map[string]int64{})
	})
}

func TestRun_BlockedJobDelaysNoOther(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(100)
		p := g.process().run()
		slow := p.start(JobSpec{Rate: 1. / 60, Filter: deadletters.Filter{Since: time.Now().Add(-time.Hour)}})
		<-time.After(time.Second)
		began := time.Now()
		g.waitUntilDone(p.start(JobSpec{Kind: deadletters.PurgeJob}).ID)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the other job took %v", took)
		}
		if j := g.waitUntilDone(slow.ID); j.Done != 1 {
			t.Errorf("job: got %+v", j)
		}
	})
}

// TestStartJob_WritesTheAudit checks the audit entries of the start and the end of a job.
func TestStartJob_WritesTheAudit(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(3)
		p := g.process().run()
		g.waitUntilDone(p.start(JobSpec{Note: "mended", Filter: deadletters.Filter{Reason: schemas.Upstream5xx}}).ID)
		all, err := g.db.Audit(g.Context(), 10)
		if err != nil || len(all) != 2 || all[1].Action != "replay-started" || all[0].Action != "replay-ended" ||
			all[1].Actor != "me" || all[1].Note != "mended" {
			t.Errorf("audit: got %+v, %v", all, err)
		}
	})
}
