package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
)

const (
	// releaseLinger is how long the first ended request waits for further ended requests, so that
	// one call to Redis subtracts many requests from their clients' outstanding counts. This wait
	// delays no record.
	releaseLinger = 10 * time.Millisecond
	// maxReleases is the maximum length of a releaseQueue, which grows for example while Redis is
	// down. Further ended requests are not added to the queue. They count as outstanding until
	// their leases expire.
	maxReleases = 10_000
	// releaseTimeout is the time limit of one call to Redis that subtracts ended requests from
	// their clients' outstanding counts. It is also the delay after a failed call.
	releaseTimeout = time.Second
)

// releaseQueue holds requests that have ended and are still counted as outstanding for their
// clients. If a worker is killed, its requests count as outstanding until their leases expire.
type releaseQueue struct {
	mu    sync.Mutex
	ended []schemas.Outstanding
	added chan struct{} // buffered for one signal; signals that `ended` is not empty
}

func newReleaseQueue() *releaseQueue { return &releaseQueue{added: make(chan struct{}, 1)} }

// add adds the task's request, which has ended, to the queue. A nil queue ignores the request.
func (d *releaseQueue) add(t *task) {
	if d == nil || t.client == "" {
		return
	}
	d.mu.Lock()
	if len(d.ended) < maxReleases {
		d.ended = append(d.ended, schemas.Outstanding{Client: t.client, Entity: t.request.Entity, Number: t.request.Version})
	}
	d.mu.Unlock()
	select {
	case d.added <- struct{}{}:
	default:
	}
}

func (d *releaseQueue) take() []schemas.Outstanding {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.ended
	d.ended = nil
	return all
}

// putBack returns requests to the queue after their release in Redis failed.
func (d *releaseQueue) putBack(all []schemas.Outstanding) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = append(all, d.ended[:min(len(d.ended), maxReleases-len(all))]...)
	select {
	case d.added <- struct{}{}:
	default:
	}
}

// releaseLoop subtracts ended requests from their clients' outstanding counts until ctx ends. Then
// it makes one last call to Redis for the rest of the queue. No record waits for this call: a
// request that is never released counts only until its lease expires.
func (w *Worker) releaseLoop(ctx context.Context) {
	wait := releaseLinger
	for {
		select {
		case <-w.releases.added:
		case <-ctx.Done():
		}
		if !poll.Pause(ctx, wait) {
			break
		}
		ended := w.releases.take()
		err := w.releaseBatch(ctx, ended)
		if wait = releaseLinger; err != nil {
			wait = releaseTimeout
			w.releases.putBack(ended)
		}
		w.conditions.Record(w.log, conditionReleases, err)
	}
	if err := w.releaseBatch(context.WithoutCancel(ctx), w.releases.take()); err != nil {
		w.log.Warn("worker stopped before it released all outstanding requests of clients; these requests count until their leases expire", "err", err)
	}
}

func (w *Worker) releaseBatch(ctx context.Context, ended []schemas.Outstanding) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	return w.requests.ReleaseOutstanding(ctx, ended)
}
