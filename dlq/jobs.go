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

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

const (
	// A chunk is at most maxChunk dead letters and takes at most chunkTimeout. The process reads the
	// job's state again between two chunks.
	maxChunk     = 500
	chunkTimeout = 30 * time.Second
	// maxDeliveryTime is the maximum time from sending a record until it is visible on its topic. It
	// is twice the producer's delivery timeout: the producer may send the record at the end of the
	// timeout, and Kafka may then need the same time to store it.
	maxDeliveryTime = 20 * time.Second
	// leaseDuration is the length of a lease from the start of a chunk; chunkInterval is added to
	// it. When the lease expires, every request that the chunk has sent is visible on its topic.
	leaseDuration = chunkTimeout + maxDeliveryTime
	// pollInterval is the maximum time between two attempts of a process to lease a job, if no
	// wake-up arrives. So a job of a crashed process is continued without a wake-up.
	pollInterval = leaseDuration
	// retryInterval is the delay after a failed chunk. After this delay, a request that Kafka had
	// not acknowledged in time is either visible on its topic or lost.
	retryInterval = maxDeliveryTime
	// shutdownGrace is how long a chunk may continue after the process begins to shut down. In
	// this time Kafka normally acknowledges the requests in flight. Then the process that leases
	// the job next need not search the request topic for them.
	shutdownGrace = 5 * time.Second
	// saveTimeout is the timeout of one read or write of a job in the database.
	saveTimeout = 5 * time.Second
)

// runner runs the jobs that this process has leased.
type runner struct {
	*Queue
	metrics *metrics
	slots   chan struct{} // semaphore with one element for each job that this process is running
	// stopping is closed when the context of run ends.
	stopping <-chan struct{}
}

// run implements Queue.Run.
func (w *runner) run(ctx context.Context) error {
	w.stopping = ctx.Done()
	var running sync.WaitGroup
	defer running.Wait()
	// A process leases only jobs of the sources in its configuration. During a deployment,
	// processes may have different configurations. A process that does not have a job's source
	// would refuse every dead letter of the job.
	sources := slices.Sorted(maps.Keys(w.Sources))
	return w.Notifier.Run(ctx, pollInterval, func(ctx context.Context, now time.Time) (time.Time, error) {
		for {
			select {
			case w.slots <- struct{}{}:
			default:
				// The maximum number of jobs is running. The next job that ends calls WakeLocal, and
				// then this function runs again.
				return time.Time{}, nil
			}
			j, leased, err := w.Store.LeaseJob(ctx, w.newHolder(), sources, now, now.Add(leaseDuration))
			if err != nil || !leased {
				<-w.slots
				if err != nil {
					return time.Time{}, err
				}
				return w.Store.NextLeaseEnd(ctx, sources)
			}
			running.Go(func() {
				w.runJob(ctx, j)
				<-w.slots
				w.Notifier.WakeLocal(time.Now())
			})
		}
	})
}

// newHolder returns a unique holder name for one lease. After a database outage, a process may
// lose the lease of a job and then lease the same job again. The goroutine that ran the job under
// the first lease must then get store.ErrConflict.
func (w *runner) newHolder() string { return fmt.Sprintf("%s/%s", w.Process, rand.Text()) }

// jobBlocked is the log condition of a job whose last chunk failed.
var jobBlocked = observe.Condition{Event: "dlq_job_blocked", Failing: "dlq job blocked; will retry", Recovered: "dlq job continued"}

// runJob runs chunks of a leased job until the job is done or stopped, the lease is lost, or ctx
// ends.
func (w *runner) runJob(ctx context.Context, j deadletters.Job) {
	log := w.Log.With("job", j.ID, "kind", string(j.Kind), "source", j.Source)
	log.Info("dlq job leased", "done", j.Done, "total", j.Total)
	var conditions observe.Conditions
	var lastErr error
	defer func() {
		if lastErr != nil {
			w.metrics.waiting.Dec()
		}
	}()
	for {
		start := time.Now()
		next, err := w.runChunk(ctx, j, lastErr != nil)
		if errors.Is(err, store.ErrConflict) {
			log.Warn("dlq job lease lost to another process")
			return
		}
		conditions.Record(log, jobBlocked, err)
		switch {
		case err != nil && lastErr == nil:
			w.metrics.waiting.Inc()
		case err == nil && lastErr != nil:
			w.metrics.waiting.Dec()
		}
		lastErr, j = err, next
		if needsNoWorker(j) {
			log.Info("dlq job ended", "state", string(j.State), "done", j.Done, "refused", j.Refused)
		}
		if j.State == deadletters.JobDone {
			return
		}
		delay := chunkInterval(j) - time.Since(start)
		if err != nil {
			delay = retryInterval
		}
		if needsNoWorker(j) || ctx.Err() != nil || !poll.Pause(ctx, delay) {
			w.releaseLease(ctx, j, lastErr != nil)
			return
		}
	}
}

// needsNoWorker reports whether a job is done, or is stopped without a chunk in flight.
func needsNoWorker(j deadletters.Job) bool {
	return j.State != deadletters.JobRunning && j.ChunkStartedAt.IsZero()
}

// chunkSize returns the maximum number of dead letters in the job's next chunk: as many as its
// rate allows in one second, but at most maxChunk, and not more than its Max still allows.
func chunkSize(j deadletters.Job) int {
	n := int64(maxChunk)
	if j.Rate > 0 {
		n = int64(max(1, min(maxChunk, j.Rate)))
	}
	if j.Max > 0 {
		n = min(n, j.Max-j.Done)
	}
	return int(n)
}

// chunkInterval returns the time from the start of a chunk to the start of the next chunk, so that
// the job keeps its rate; 0 for an unlimited rate. Example: at 0.5 per second a chunk has one dead
// letter and the interval is 2 s.
func chunkInterval(j deadletters.Job) time.Duration {
	if j.Rate <= 0 {
		return 0
	}
	n := max(1, min(maxChunk, math.Floor(j.Rate)))
	return time.Duration(n / j.Rate * float64(time.Second))
}

// releaseLease ends the job's lease now. After a failed chunk, it lets the lease end after
// retryInterval: by then Kafka has delivered or lost the requests in flight.
func (w *runner) releaseLease(ctx context.Context, j deadletters.Job, failed bool) {
	var err error
	at := time.Now()
	if failed {
		at = at.Add(retryInterval)
		j, err = w.reloadJob(ctx, j)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
		defer cancel()
		j.Lease.Until = at
		_, err = w.Store.SaveJobProgress(ctx, j, nil, deadletters.Disposition{}, nil)
	}
	if err != nil {
		w.Log.Warn("dlq job lease not released; job waits until the lease expires", "job", j.ID, "err", err)
		return
	}
	w.Notifier.WakeAt(ctx, at)
}

// reloadJob reads the job from the database. It is needed after a failed write, because the write
// may have been committed nevertheless. It returns store.ErrConflict if the lease was lost.
func (w *runner) reloadJob(ctx context.Context, j deadletters.Job) (deadletters.Job, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	stored, err := w.Store.Job(ctx, j.ID)
	if err == nil && stored.Lease.Holder != j.Lease.Holder {
		err = store.ErrConflict
	}
	if err != nil {
		return j, err
	}
	return stored, nil
}

// saveProgress writes the job and the outcomes of its handled dead letters in one transaction, and
// renews the lease. It returns the job with its stored state.
func (w *runner) saveProgress(ctx context.Context, j deadletters.Job, handled []deadletters.ID) (deadletters.Job, error) {
	now := time.Now().UTC()
	j.UpdatedAt, j.Lease.Until = now, now.Add(leaseDuration+chunkInterval(j))
	outcome := deadletters.Replayed
	if j.Kind == deadletters.PurgeJob {
		outcome = deadletters.Purged
	}
	var ended *store.AuditEntry
	if j.State == deadletters.JobDone {
		j.EndedAt = now
		e := auditEntry(j, "ended", j.CreatedBy, now)
		ended = &e
	}
	// Enqueued requests must be saved as handled even if ctx has ended at the chunk's timeout.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	state, err := w.Store.SaveJobProgress(ctx, j, handled, deadletters.Disposition{Outcome: outcome, By: j.CreatedBy, Job: j.ID, At: now}, ended)
	j.State = state
	if err == nil {
		w.metrics.handled.WithLabelValues(j.Source, outcome).Add(float64(len(handled)))
	}
	return j, err
}

// runChunk handles the job's next chunk and returns the job's last known progress. If it returns
// an error, a part of the chunk may have been handled. The caller sets reload if the previous
// chunk failed; runChunk then first reads the job from the database.
func (w *runner) runChunk(ctx context.Context, j deadletters.Job, reload bool) (deadletters.Job, error) {
	process := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), chunkTimeout)
	defer cancel()
	defer context.AfterFunc(process, func() {
		poll.Pause(ctx, shutdownGrace)
		cancel()
	})()
	if reload {
		var err error
		if j, err = w.reloadJob(ctx, j); err != nil || needsNoWorker(j) {
			return j, err
		}
	}
	handle := w.replay
	if j.Kind == deadletters.PurgeJob {
		handle = w.purge
	}
	after, err := handle(ctx, j)
	if err == nil || errors.Is(err, store.ErrConflict) {
		return after, err
	}
	// The process is shutting down, which may have caused err. So err is not stored in the job.
	if process.Err() != nil {
		return j, err
	}
	stored, saveErr := w.reloadJob(ctx, j)
	if saveErr == nil && !needsNoWorker(stored) {
		// Operators see the error in the job. If the job can't be saved either, its lease expires.
		stored.Error = err.Error()
		stored, saveErr = w.saveProgress(ctx, stored, nil)
	}
	switch {
	case errors.Is(saveErr, store.ErrConflict):
		return j, saveErr
	case saveErr != nil:
		return j, err
	}
	return stored, err
}
