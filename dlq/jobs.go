package dlq

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/store"
)

const (
	// maxChunk is how many letters a job handles between two looks at its state, and
	// chunkTime how long that may take.
	maxChunk     = 500
	chunkTimeout = 30 * time.Second
	// maxDeliveryTime is how long a request may be on its way to its topic: for the producer's
	// delivery timeout, and as long again if it was sent at the end of that.
	maxDeliveryTime = 20 * time.Second
	// leaseDuration is how long a job belongs to its holder from a chunk's start, besides the pause
	// that its rate wants. Who comes next sees the last request of the chunk on the topic.
	leaseDuration = chunkTimeout + maxDeliveryTime
	// pollInterval is how long a job waits, whose process has died, if nobody is told of it.
	pollInterval = leaseDuration
	// retryInterval is how long a job waits for what keeps it from going on: until then a
	// request that Kafka did not acknowledge in time has arrived, or never will.
	retryInterval = maxDeliveryTime
	// shutdownGrace is how long a chunk goes on when its process ends: for the requests that are
	// being asked for, so that nobody has to look whether they were.
	shutdownGrace = 5 * time.Second
	// saveTimeout bounds a write of how far a job is.
	saveTimeout = 5 * time.Second
)

// Run works on jobs until ctx ends, several at once, as do other processes. Of a chunk that
// has begun no more is done then than endsWithin allows; another process goes on with the
// rest.
func (l *Queue) Run(ctx context.Context) error {
	l.stopping = ctx.Done()
	var working sync.WaitGroup
	defer working.Wait()
	// What this process knows nothing of is for one that does, as while the configuration is
	// being changed: here no letter of it could be replayed.
	sources := slices.Sorted(maps.Keys(l.Sources))
	return l.Notifier.Run(ctx, pollInterval, func(ctx context.Context, now time.Time) (time.Time, error) {
		for {
			select {
			case l.slots <- struct{}{}:
			default:
				return time.Time{}, nil // who ends here wakes
			}
			j, held, err := l.Store.LeaseJob(ctx, l.newHolder(), sources, now, now.Add(leaseDuration))
			if err != nil || !held {
				<-l.slots
				if err != nil {
					return time.Time{}, err
				}
				return l.Store.NextLeaseEnd(ctx, sources)
			}
			working.Go(func() {
				l.runJob(ctx, j)
				<-l.slots
				l.Notifier.WakeLocal(time.Now())
			})
		}
	})
}

// newHolder is a new name for who takes on a job. A process that has lost one, as while the
// database was away, may get it again: then it must not have it twice.
func (l *Queue) newHolder() string { return fmt.Sprintf("%s/%s", l.Process, rand.Text()) }

// runJob goes on with a job that this process holds, until it has ended, is stopped, is
// somebody else's, or ctx ends.
func (l *Queue) runJob(ctx context.Context, j store.DLQJob) {
	log := l.Log.With("job", j.ID, "kind", string(j.Kind), "source", j.Source)
	log.Info("a job on dead letters is worked on here", "done", j.Done, "of", j.Total)
	var trouble error
	defer func() {
		if trouble != nil {
			l.metrics.waiting.Dec()
		}
	}()
	for {
		began := time.Now()
		next, err := l.runChunk(ctx, j, trouble != nil)
		if errors.Is(err, store.ErrConflict) {
			log.Warn("another process works on the job now")
			return
		}
		switch {
		case err != nil && trouble == nil:
			log.Warn("a job on dead letters waits", "err", err)
			l.metrics.waiting.Inc()
		case err == nil && trouble != nil:
			log.Info("a job on dead letters goes on")
			l.metrics.waiting.Dec()
		}
		trouble, j = err, next
		if needsNoWorker(j) {
			log.Info("a job on dead letters has ended or was stopped", "state", string(j.State), "done", j.Done, "refused", j.Refused)
		}
		if j.State == store.JobDone {
			return
		}
		wait := chunkInterval(j) - time.Since(began)
		if err != nil {
			wait = retryInterval
		}
		if needsNoWorker(j) || ctx.Err() != nil || !poll.Pause(ctx, wait) {
			l.releaseLease(ctx, j, trouble != nil)
			return
		}
	}
}

// needsNoWorker reports whether there is nothing to do for a job: it has ended, or was stopped and it
// is known which letters it asked for.
func needsNoWorker(j store.DLQJob) bool {
	return j.State != store.JobRunning && j.ChunkStartedAt.IsZero()
}

// chunkSize is how many letters a job handles at once, and pauseOf how long that is to take.
func chunkSize(j store.DLQJob) int {
	n := int64(maxChunk)
	if j.Rate > 0 {
		n = int64(max(1, min(maxChunk, j.Rate)))
	}
	if j.Max > 0 {
		n = min(n, j.Max-j.Done)
	}
	return int(n)
}

func chunkInterval(j store.DLQJob) time.Duration {
	if j.Rate <= 0 {
		return 0
	}
	n := max(1, min(maxChunk, math.Floor(j.Rate)))
	return time.Duration(n / j.Rate * float64(time.Second))
}

// releaseLease lets another process go on: at once, or behind trouble when what may still be on
// its way has arrived.
func (l *Queue) releaseLease(ctx context.Context, j store.DLQJob, troubled bool) {
	var err error
	at := time.Now()
	if troubled {
		at = at.Add(retryInterval)
		j, err = l.reloadJob(ctx, j)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
		defer cancel()
		j.LeaseUntil = at
		_, err = l.Store.SaveJobProgress(ctx, j, nil, store.Disposition{}, nil)
	}
	if err != nil {
		l.Log.Warn("a job on dead letters waits until its lease ends", "job", j.ID, "err", err)
		return
	}
	l.Notifier.WakeAt(ctx, at)
}

// reloadJob reads a job anew. After trouble the database alone knows how far it is: what was
// written may not have been answered.
func (l *Queue) reloadJob(ctx context.Context, j store.DLQJob) (store.DLQJob, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	is, err := l.Store.Job(ctx, j.ID)
	if err == nil && is.Holder != j.Holder {
		err = store.ErrConflict
	}
	if err != nil {
		return j, err
	}
	return is, nil
}

// saveProgress writes how far the job is now, and which letters were handled, and returns it as
// it then is. With an error nothing is written.
func (l *Queue) saveProgress(ctx context.Context, j store.DLQJob, handled []store.DeadLetterID) (store.DLQJob, error) {
	now := time.Now().UTC()
	j.UpdatedAt, j.LeaseUntil = now, now.Add(leaseDuration+chunkInterval(j))
	how := store.Replayed
	if j.Kind == store.PurgeJob {
		how = store.Purged
	}
	var ended *store.AuditEntry
	if j.State == store.JobDone {
		j.EndedAt = now
		e := auditEntry(j, "ended", j.CreatedBy, now)
		ended = &e
	}
	// What was asked for is to be known, also when the chunk's time is over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	state, err := l.Store.SaveJobProgress(ctx, j, handled, store.Disposition{Outcome: how, By: j.CreatedBy, Job: j.ID, At: now}, ended)
	j.State = state
	if err == nil {
		l.metrics.handled.WithLabelValues(j.Source, how).Add(float64(len(handled)))
	}
	return j, err
}

// runChunk handles the next letters of a job, and returns it as it is then known to be; err says
// why less was done than could be.
func (l *Queue) runChunk(ctx context.Context, j store.DLQJob, troubled bool) (store.DLQJob, error) {
	process := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), chunkTimeout)
	defer cancel()
	defer context.AfterFunc(process, func() {
		poll.Pause(ctx, shutdownGrace)
		cancel()
	})()
	if troubled {
		var err error
		if j, err = l.reloadJob(ctx, j); err != nil || needsNoWorker(j) {
			return j, err
		}
	}
	work := l.replay
	if j.Kind == store.PurgeJob {
		work = l.purge
	}
	after, err := work(ctx, j)
	if err == nil || errors.Is(err, store.ErrConflict) {
		return after, err
	}
	if process.Err() != nil { // whoever goes on with it tells why it waits
		return j, err
	}
	is, failed := l.reloadJob(ctx, j)
	if failed == nil && !needsNoWorker(is) {
		// Whoever looks is told why it waits. If that can't be written either, the lease ends.
		is.Error = err.Error()
		is, failed = l.saveProgress(ctx, is, nil)
	}
	switch {
	case errors.Is(failed, store.ErrConflict):
		return j, failed
	case failed != nil:
		return j, err
	}
	return is, err
}
