package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// job returns a running replay with number n. Job 1 belongs to the source nexon. Each further job
// belongs to a source of its own.
func job(n int64) deadletters.Job {
	attempts, partition, offset := 2, int32(3), int64(9)
	source := "nexon"
	if n > 1 {
		source = fmt.Sprint("source-", n)
	}
	return deadletters.Job{
		ID: fmt.Sprint("job-", n), Source: source, Kind: deadletters.ReplayJob, Lane: schemas.Low, Rate: 0.5, Max: 10, Note: "why", State: deadletters.JobRunning,
		Filter: deadletters.Filter{
			Source: "nexon", Reason: schemas.Upstream4xx, Fingerprint: "f", Facet: "character", Key: "k", Since: at(1), Until: at(2),
			Attempts: &attempts, Partition: &partition, Offset: &offset, Handled: deadletters.Open,
		},
		Total: 7, Refused: map[string]int64{"GONE": 1}, Position: deadletters.ID{Topic: schemas.DeadLetterTopic(source), Partition: -1},
		CreatedAt: at(n), CreatedBy: "me", UpdatedAt: at(n),
	}
}

// jobSources are the sources of the first eight jobs.
var jobSources = []string{"nexon", "source-2", "source-3", "source-4", "source-5", "source-6", "source-7", "source-8"}

func testJobs(b suite) {
	next := func(want time.Time) {
		b.Helper()
		if got, err := b.store.NextLeaseEnd(b.Context(), jobSources); err != nil || !got.Equal(want) {
			b.Errorf("NextLeaseEnd: got %v, %v, want %v", got, err, want)
		}
	}
	if _, err := b.store.Job(b.Context(), "job-1"); !errors.Is(err, deadletters.ErrJobNotFound) {
		b.Error(err)
	}
	next(time.Time{})
	b.deadLetter(newDeadLetter(entity, 1), newDeadLetter(entity, 2))
	for n := range int64(2) {
		if err := b.store.CreateJob(b.Context(), job(n+1), auditEntry(fmt.Sprint("order ", n+1))); err != nil {
			b.Fatal(err)
		}
	}
	// No job belongs to these sources, so none is leased.
	for _, sources := range [][]string{nil, {"source-9", "nexo"}} {
		_, ok, err := b.store.LeaseJob(b.Context(), "a", sources, at(10), at(20))
		next, none := b.store.NextLeaseEnd(b.Context(), sources)
		if ok || err != nil || none != nil || !next.IsZero() {
			b.Errorf("sources %v: leased %v, %v; next lease end %v, %v", sources, ok, err, next, none)
		}
	}
	if got, err := b.store.Job(b.Context(), "job-1"); err != nil || !reflect.DeepEqual(got, job(1)) {
		b.Errorf("%+v, %v; want %+v", got, err, job(1))
	}
	if all, err := b.store.Jobs(b.Context(), 9); err != nil || len(all) != 2 || all[0].ID != "job-2" {
		b.Errorf("jobs: got %+v, %v", all, err)
	}
	hold := func(holder string, now, until int64) (deadletters.Job, bool) {
		b.Helper()
		j, ok, err := b.store.LeaseJob(b.Context(), holder, jobSources, at(now), at(until))
		if err != nil {
			b.Fatal(err)
		}
		return j, ok
	}
	first, ok := hold("a", 10, 20)
	if second, also := hold("b", 10, 30); !ok || !also || first.ID != "job-1" || second.ID != "job-2" || second.Lease.Holder != "b" {
		b.Errorf("leased %+v and %+v", first, second)
	}
	if _, ok := hold("c", 19, 40); ok {
		b.Error("a leased job was leased again")
	}
	next(at(20))

	advance := func(j deadletters.Job, want deadletters.JobState, handled ...deadletters.ID) {
		b.Helper()
		state, err := b.store.SaveJobProgress(b.Context(), j, handled, deadletters.Disposition{Outcome: deadletters.Replayed, By: "me", Job: j.ID, At: at(12)}, nil)
		if state != want || (err != nil) != (want == "") || err != nil && !errors.Is(err, store.ErrConflict) {
			b.Errorf("%s, %v; want %q", state, err, want)
		}
	}
	first.Done, first.Position, first.ChunkStartedAt, first.Lease.Until, first.Error, first.UpdatedAt = 1, newDeadLetter(entity, 1).ID, at(12), at(25), "waits", at(12)
	first.Refused = map[string]int64{"GONE": 1, "LIMIT": 2}
	advance(first, deadletters.JobRunning, newDeadLetter(entity, 1).ID)
	if got, err := b.store.Job(b.Context(), "job-1"); err != nil || !reflect.DeepEqual(got, first) {
		b.Errorf("%+v, %v; want %+v", got, err, first)
	}
	if open := b.deadLetters("nexon", true, 9); len(open) != 1 || open[0].Offset != 2 {
		b.Errorf("open dead letters: got %+v", open)
	}

	taken, ok := hold("c", 25, 50)
	taken.Lease = deadletters.JobLease{Holder: "a", Until: at(25)}
	if !ok || !reflect.DeepEqual(taken, first) {
		b.Errorf("%v %+v; want %+v", ok, taken, first)
	}
	advance(first, "", newDeadLetter(entity, 2).ID) // the former holder has lost the lease, so none of its results is saved
	if open := b.deadLetters("nexon", true, 9); len(open) != 1 {
		b.Error("a former lease holder marked a dead letter")
	}

	stop := func(from, to deadletters.JobState, want error) {
		b.Helper()
		if err := b.store.SetJobState(b.Context(), "job-1", from, to, at(13), auditEntry("switch")); !errors.Is(err, want) {
			b.Errorf("%v, want %v", err, want)
		}
	}
	stop(deadletters.JobStopped, deadletters.JobRunning, deadletters.ErrJobNotFound)
	stop(deadletters.JobRunning, deadletters.JobStopped, nil)
	taken.Lease, taken.Done = deadletters.JobLease{Holder: "c", Until: at(50)}, 2
	taken.ChunkStartedAt = time.Time{}
	advance(taken, deadletters.JobStopped, newDeadLetter(entity, 2).ID) // the job is stopped, but the results of its last chunk are still saved
	if open := b.deadLetters("nexon", true, 9); len(open) != 0 {
		b.Error("the outcome of a stopped job was not saved")
	}
	next(at(30))
	rival := job(1)
	rival.ID = "rival"
	create := func(want error) {
		b.Helper()
		if err := b.store.CreateJob(b.Context(), rival, auditEntry("rival")); !errors.Is(err, want) {
			b.Errorf("%v, want %v", err, want)
		}
	}
	create(nil)
	stop(deadletters.JobStopped, deadletters.JobRunning, deadletters.ErrJobNotFound) // the job can't be resumed: another replay of its source is running
	rival.Lease.Holder, rival.State = "r", deadletters.JobDone
	if held, ok := hold("r", 40, 60); !ok || held.ID != "rival" {
		b.Errorf("LeaseJob: got %+v", held)
	}
	advance(rival, deadletters.JobDone)
	stop(deadletters.JobStopped, deadletters.JobRunning, nil)
	rival.ID, rival.State = "another", deadletters.JobRunning
	create(deadletters.ErrReplayRunning)
	rival.Kind, rival.Lease.Until = deadletters.PurgeJob, at(9999) // a purge may run beside a replay
	create(nil)
	taken.State, taken.EndedAt = deadletters.JobDone, at(14)
	entry := auditEntry("ended")
	stop(deadletters.JobRunning, deadletters.JobStopped, nil)
	if state, err := b.store.SaveJobProgress(b.Context(), taken, nil, deadletters.Disposition{}, &entry); state != deadletters.JobStopped || err != nil {
		b.Errorf("SaveJobProgress: got %v, %v", state, err) // a stopped job does not become done, so no audit entry is written
	}
	stop(deadletters.JobStopped, deadletters.JobRunning, nil)
	if state, err := b.store.SaveJobProgress(b.Context(), taken, nil, deadletters.Disposition{}, &entry); state != deadletters.JobDone || err != nil {
		b.Errorf("SaveJobProgress: got %v, %v", state, err)
	}
	advance(taken, "")
	stop(deadletters.JobRunning, deadletters.JobStopped, deadletters.ErrJobNotFound)
	all, err := b.store.Audit(b.Context(), 20)
	if err != nil || len(all) != 9 || all[0].Action != "ended" || all[1].Action == "ended" || all[8].Action != "order 1" {
		b.Errorf("audit: got %+v, %v", all, err)
	}
}

// testReplayStoppedInChunk stops a replay while a chunk is in flight. Until the chunk is
// reconciled, no other replay of the source may be created or resumed.
func testReplayStoppedInChunk(b suite) {
	create := func(id string, want error) {
		b.Helper()
		j := job(1)
		j.ID = id
		if err := b.store.CreateJob(b.Context(), j, auditEntry("order")); !errors.Is(err, want) {
			b.Errorf("%s: %v, want %v", id, err, want)
		}
	}
	hold := func(now int64, want bool) deadletters.Job {
		b.Helper()
		j, ok, err := b.store.LeaseJob(b.Context(), "a", jobSources, at(now), at(now+10))
		if err != nil || ok != want {
			b.Errorf("leased at %d: %v, %v", now, ok, err)
		}
		return j
	}
	advance := func(j deadletters.Job, want deadletters.JobState) {
		b.Helper()
		if state, err := b.store.SaveJobProgress(b.Context(), j, nil, deadletters.Disposition{}, nil); err != nil || state != want {
			b.Errorf("%s, %v; want %s", state, err, want)
		}
	}
	turn := func(id string, from, to deadletters.JobState, want error) {
		b.Helper()
		if err := b.store.SetJobState(b.Context(), id, from, to, at(13), auditEntry("switch")); !errors.Is(err, want) {
			b.Errorf("%s: %v, want %v", id, err, want)
		}
	}
	create("job-0", nil)
	turn("job-0", deadletters.JobRunning, deadletters.JobStopped, nil)
	create("job-1", nil)
	j := hold(10, true)
	j.ChunkStartedAt = at(11)
	advance(j, deadletters.JobRunning)
	turn("job-1", deadletters.JobRunning, deadletters.JobStopped, nil)
	create("job-2", deadletters.ErrReplayRunning)
	turn("job-0", deadletters.JobStopped, deadletters.JobRunning, deadletters.ErrJobNotFound)
	if next, err := b.store.NextLeaseEnd(b.Context(), jobSources); err != nil || !next.Equal(at(20)) {
		b.Errorf("next lease end: got %v, %v", next, err)
	}
	hold(19, false)
	if j = hold(20, true); j.ID != "job-1" || j.State != deadletters.JobStopped || !j.ChunkStartedAt.Equal(at(11)) {
		b.Errorf("leased job: got %+v", j)
	}
	j.ChunkStartedAt = time.Time{} // the chunk in flight was reconciled, so none is in flight now
	advance(j, deadletters.JobStopped)
	turn("job-1", deadletters.JobStopped, deadletters.JobRunning, nil) // j was read before this call and still has the state STOPPED
	advance(j, deadletters.JobRunning)
	turn("job-1", deadletters.JobRunning, deadletters.JobStopped, nil)
	hold(90, false)
	create("job-2", nil)
	j.ChunkStartedAt = at(12) // the job is stopped, so the store must not save that its holder starts a chunk
	advance(j, deadletters.JobStopped)
	if is, err := b.store.Job(b.Context(), "job-1"); err != nil || !is.ChunkStartedAt.IsZero() {
		b.Errorf("job: got %+v, %v", is, err)
	}
}

// testResumeRace resumes several replays of one source concurrently: only one call succeeds.
func testResumeRace(b suite) {
	const n = 6
	for i := range n {
		j := job(1)
		j.ID, j.State = fmt.Sprint("job-", i), deadletters.JobStopped
		if err := b.store.CreateJob(b.Context(), j, auditEntry("order")); err != nil {
			b.Fatal(err)
		}
	}
	for range 10 {
		var wg sync.WaitGroup
		var runs [n]bool
		for i := range n {
			wg.Go(func() {
				err := b.store.SetJobState(b.Context(), fmt.Sprint("job-", i), deadletters.JobStopped, deadletters.JobRunning, at(1), auditEntry("resume"))
				if runs[i] = err == nil; err != nil && !errors.Is(err, deadletters.ErrJobNotFound) {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		running := 0
		for i := range n {
			if runs[i] {
				running++
				if err := b.store.SetJobState(b.Context(), fmt.Sprint("job-", i), deadletters.JobRunning, deadletters.JobStopped, at(1), auditEntry("stop")); err != nil {
					b.Error(err)
				}
			}
		}
		if running != 1 {
			b.Errorf("running replays: got %d, want 1", running)
		}
	}
}

func testJobRace(b suite) {
	for n := range int64(8) {
		if err := b.store.CreateJob(b.Context(), job(n+1), auditEntry("order")); err != nil {
			b.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	var held atomic.Int64
	for who := range 4 {
		wg.Go(func() {
			for range 60 {
				_, ok, err := b.store.LeaseJob(b.Context(), fmt.Sprint(who), jobSources, at(10), at(20))
				if err != nil {
					b.Error(err)
				}
				if ok {
					held.Add(1)
				}
			}
		})
	}
	if wg.Wait(); held.Load() != 8 {
		b.Errorf("leases of 8 jobs: got %d, want 8", held.Load())
	}
}
