package letters

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// once has something befall a process the nth time that it does something.
func once(what string, n int, befalls fault) func(string) fault {
	return func(does string) fault {
		if does == what {
			if n--; n == 0 {
				return befalls
			}
		}
		return none
	}
}

// TestAKilledProcessLeavesNothingAskedForTwice kills one wherever it does something, and has
// another go on.
func TestAKilledProcessLeavesNothingAskedForTwice(t *testing.T) {
	for _, what := range []string{"hold", "walk", "read", "advance", "ask"} {
		for n := range 2 {
			for _, f := range []fault{killed, killedAfter} {
				inBubble(t, func(w *world) {
					w.buryMany(520)
					p := w.process()
					p.befalls = once(what, n+1, f)
					id := p.run().start(Order{}).ID
					<-time.After(5 * time.Second)
					w.process().run()
					j := w.ended(id)
					w.counted(j, 520, map[string]int64{})
					w.eachOnce(520)
					if took := j.EndedAt.Sub(j.CreatedAt); took > lease+10*time.Second {
						t.Errorf("killed before %s %d it took %v", what, n, took)
					}
				})
			}
		}
	}
}

// TestEntriesThatCameLateHideNothingThatWasAskedFor: who buried letters among those of a
// chunk may write their entries while nobody knows what its process asked for.
func TestEntriesThatCameLateHideNothingThatWasAskedFor(t *testing.T) {
	inBubble(t, func(w *world) {
		died := time.Now()
		for n := range int64(520) {
			w.bury(idOf(0, 2*n))
		}
		<-time.After(time.Minute)
		p := w.process()
		p.befalls = once("ask", chunkMost/askedAtOnce, killedAfter)
		id := p.run().start(Order{}).ID
		<-p.ended
		for n := range int64(30) {
			w.bury(idOf(0, 2*n+1), func(l *store.Letter, _ *Read) { l.At = died })
		}
		w.process().run()
		w.counted(w.ended(id), 550, map[string]int64{})
		w.eachOnce(550)
	})
}

// TestAnAnswerOfTheDatabaseThatIsLostChangesNoCount: what was written is not known to who
// wrote it.
func TestAnAnswerOfTheDatabaseThatIsLostChangesNoCount(t *testing.T) {
	for _, kind := range []store.JobKind{store.ReplayJob, store.PurgeJob} {
		for n := range 6 {
			inBubble(t, func(w *world) {
				w.bury(idOf(0, 3000), func(_ *store.Letter, r *Read) { r.Err = errors.New("no letter") })
				w.buryMany(1300)
				p := w.process()
				p.befalls = once("advance", n+1, lost)
				j := w.ended(p.run().start(Order{Kind: kind, Most: 1200}).ID)
				if j.Done != 1200 {
					t.Errorf("%s: without answer %d, %d are done, want 1200", kind, n, j.Done)
				}
				if kind == store.ReplayJob {
					w.eachOnce(1200)
				}
			})
		}
	}
}

// TestAProcessThatGetsItsJobAgainHasItOnce keeps the database away until the lease is over,
// so that the process takes on the job that it is at.
func TestAProcessThatGetsItsJobAgainHasItOnce(t *testing.T) {
	for away := 40 * time.Second; away < 2*time.Minute; away += 14 * time.Second {
		inBubble(t, func(w *world) {
			w.buryMany(1600)
			p := w.process()
			begins := time.Now().Add(3 * time.Second)
			p.befalls = func(what string) fault {
				if since := time.Since(begins); what != "ask" && what != "read" && since > 0 && since < away {
					return refused
				}
				return none
			}
			p.enqueuer = func(ctx context.Context, all []ReplayRequest) []error {
				for _, a := range all {
					w.put(a, time.Now())
				}
				select { // it is slow enough for two to meet
				case <-time.After(700 * time.Millisecond):
				case <-ctx.Done():
				}
				return make([]error, len(all))
			}
			w.counted(w.ended(p.run().start(Order{}).ID), 1600, map[string]int64{})
			w.eachOnce(1600)
		})
	}
}

// TestWhoIsFrozenAsksForNothingWhenAnotherGoesOn freezes a process in the middle of a chunk
// for longer than its lease.
func TestWhoIsFrozenAsksForNothingWhenAnotherGoesOn(t *testing.T) {
	inBubble(t, func(w *world) {
		w.buryMany(400)
		p := w.process()
		var calls atomic.Int64 // it may go on with the job itself, beside what is frozen
		p.enqueuer = func(_ context.Context, all []ReplayRequest) []error {
			if calls.Add(1) == 3 {
				<-time.After(2 * lease)
				return make([]error, len(all)) // as far as it knows
			}
			for _, a := range all {
				w.put(a, time.Now())
			}
			return make([]error, len(all))
		}
		id := p.run().start(Order{}).ID
		<-time.After(time.Second)
		w.process().run()
		w.counted(w.ended(id), 400, map[string]int64{})
		<-time.After(5 * time.Minute)
		w.counted(w.job(id), 400, map[string]int64{})
		w.eachOnce(400)
	})
}

// TestWhoStopsBehindTroubleLeavesTimeForWhatIsOnItsWay stops a process whose requests have
// not arrived yet: they do when another could have asked for them once more.
func TestWhoStopsBehindTroubleLeavesTimeForWhatIsOnItsWay(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		inBubble(t, func(w *world) {
			w.buryMany(10)
			p := w.process()
			p.enqueuer = func(_ context.Context, all []ReplayRequest) []error {
				errs := make([]error, len(all))
				at := time.Now()
				for i, a := range all {
					errs[i] = errAway
					time.AfterFunc(onTheWay-time.Second, func() { w.put(a, at) })
				}
				return errs
			}
			id := p.run().start(Order{}).ID
			<-time.After(100 * time.Millisecond)
			if stopped {
				if _, err := p.Switch(w.Context(), id, store.JobStopped, "me"); err != nil {
					t.Fatal(err)
				}
				<-time.After(100 * time.Millisecond)
			}
			p.shut()
			other := w.process().run()
			if stopped {
				if _, err := other.Switch(w.Context(), id, store.JobRunning, "me"); err != nil {
					t.Fatal(err)
				}
			}
			w.counted(w.ended(id), 10, map[string]int64{})
			<-time.After(time.Minute)
			w.eachOnce(10)
		})
	}
}

// TestOfAReplayThatWasStoppedInAChunkNoOtherAsksAgain kills a process in the middle of a
// chunk, and stops its job before another goes on with it.
func TestOfAReplayThatWasStoppedInAChunkNoOtherAsksAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		w.buryMany(400)
		p := w.process()
		p.befalls = once("ask", 3, killed)
		id := p.run().start(Order{}).ID
		<-time.After(time.Second)
		other := w.process().run()
		if _, err := other.Switch(w.Context(), id, store.JobStopped, "me"); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Start(w.Context(), Order{Kind: store.ReplayJob, Lane: schemas.Low, Filter: store.LetterFilter{Source: theSource}}, "me"); !errors.Is(err, store.ErrJobUnderWay) {
			t.Errorf("another was ordered: %v", err)
		}
		<-time.After(lease)
		if j := w.job(id); j.State != store.JobStopped || !j.ChunkAt.IsZero() || j.Done != 100 {
			t.Errorf("what it asked for is not known: %+v", j)
		}
		w.counted(w.ended(other.start(Order{}).ID), 300, map[string]int64{})
		w.eachOnce(400)
	})
}

func TestAJobThatIsStoppedGoesOnAtOnceWhenItIsResumed(t *testing.T) {
	inBubble(t, func(w *world) {
		w.buryMany(1000)
		p := w.process().run()
		id := p.start(Order{Rate: 10}).ID
		<-time.After(20 * time.Second)
		for range 2 { // who says it twice is told the same
			if j, err := p.Switch(w.Context(), id, store.JobStopped, "me"); err != nil || j.State != store.JobStopped {
				t.Fatal(j, err)
			}
		}
		<-time.After(5 * time.Second)
		stopped := len(w.asked())
		<-time.After(20 * time.Second)
		if n := len(w.asked()); n != stopped || n < 150 || n > 250 {
			t.Fatalf("%d were asked for until it stopped, then %d", stopped, n-stopped)
		}
		if j, err := p.Switch(w.Context(), id, store.JobRunning, "me"); err != nil || j.State != store.JobRunning {
			t.Fatal(j, err)
		}
		<-time.After(5 * time.Second)
		if n := len(w.asked()); n < stopped+30 {
			t.Errorf("%d are asked for 5 s after it was resumed", n-stopped)
		}
		// Who stops and resumes it at once, too: its holder may not have seen that it was.
		for _, to := range []store.JobState{store.JobStopped, store.JobRunning} {
			if _, err := p.Switch(w.Context(), id, to, "me"); err != nil {
				t.Fatal(err)
			}
		}
		w.counted(w.ended(id), 1000, map[string]int64{})
		w.eachOnce(1000)
		for _, to := range []store.JobState{store.JobStopped, store.JobRunning} {
			if _, err := p.Switch(w.Context(), id, to, "me"); !errors.Is(err, store.ErrNoJob) {
				t.Errorf("a job that has ended was %s: %v", to, err)
			}
		}
	})
}

// TestAJobThatIsResumedWhileItsHolderLetsItGoRuns resumes one after its holder has seen that
// it was stopped, and before that says so.
func TestAJobThatIsResumedWhileItsHolderLetsItGoRuns(t *testing.T) {
	inBubble(t, func(w *world) {
		w.buryMany(100)
		p := w.process()
		other := w.process()
		stopped := false
		p.befalls = func(what string) fault {
			if what != "advance" || len(w.asked()) == 0 {
				return none
			}
			to := store.JobRunning
			if !stopped {
				to, stopped = store.JobStopped, true
			} else {
				p.befalls = nil
			}
			all, err := w.db.Jobs(w.Context(), 1)
			if err == nil {
				_, err = other.Switch(w.Context(), all[0].ID, to, "me")
			}
			if err != nil {
				t.Error(err)
			}
			return none
		}
		w.counted(w.ended(p.run().start(Order{Rate: 10}).ID), 100, map[string]int64{})
		w.eachOnce(100)
	})
}

// TestAJobIsLeftToWhoKnowsItsSource: another would refuse all of its letters.
func TestAJobIsLeftToWhoKnowsItsSource(t *testing.T) {
	inBubble(t, func(w *world) {
		w.buryMany(10)
		old := w.process()
		old.Sources = map[string]Source{"other": fakeSource{}}
		id := old.run().start(Order{}).ID
		<-time.After(time.Minute)
		w.process().run()
		w.counted(w.ended(id), 10, map[string]int64{})
	})
}

func TestAJobThatWaitsKeepsNoOtherWaiting(t *testing.T) {
	inBubble(t, func(w *world) {
		w.buryMany(100)
		p := w.process().run()
		slow := p.start(Order{Rate: 1. / 60, Filter: store.LetterFilter{Since: time.Now().Add(-time.Hour)}})
		<-time.After(time.Second)
		began := time.Now()
		w.ended(p.start(Order{Kind: store.PurgeJob}).ID)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it waited %v", took)
		}
		if j := w.ended(slow.ID); j.Done != 1 {
			t.Errorf("%+v", j)
		}
	})
}

// TestWhoOrdersIsInTheAudit with what they ordered, and how it ended.
func TestWhoOrdersIsInTheAudit(t *testing.T) {
	inBubble(t, func(w *world) {
		w.buryMany(3)
		p := w.process().run()
		w.ended(p.start(Order{Note: "mended", Filter: store.LetterFilter{Reason: schemas.Upstream5xx}}).ID)
		all, err := w.db.Audit(w.Context(), 10)
		if err != nil || len(all) != 2 || all[1].Action != "replay-started" || all[0].Action != "replay-ended" ||
			all[1].Actor != "me" || all[1].Note != "mended" {
			t.Errorf("%+v, %v", all, err)
		}
	})
}
