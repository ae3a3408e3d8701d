package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/schemas"
)

const (
	// releaseLinger is how long the first ended request waits for further ended requests, so that
	// one call to Redis subtracts many requests from their clients' outstanding counts. This wait
	// delays no record.
	releaseLinger = 10 * time.Millisecond
	// maxReleases is the maximum length of an endQueue. Ended requests wait there, for example while
	// Redis is down. If the queue is full, further ended requests are not added: they count as
	// outstanding until their leases expire.
	maxReleases = 10_000
	// releaseTimeout is the time limit of one call to Redis that subtracts ended requests from
	// their clients' outstanding counts. It is also the delay after a failed call.
	releaseTimeout = time.Second
)

// ends holds ended requests until Redis and the database know about their ends. If a worker is killed
// before that, these requests count as outstanding until their leases expire, and the steps of runs are
// due again after their leases.
type ends struct {
	*base
	client   Requests
	walks    *walks
	requests endQueue[schemas.Outstanding] // requests that count as outstanding requests of clients
	steps    endQueue[runs.Ref]            // steps of runs
	added    chan struct{}                 // a channel with room for one element; an element means that a queue is not empty
}

func newEnds(b *base, client Requests, w *walks) *ends {
	return &ends{base: b, client: client, walks: w, added: make(chan struct{}, 1)}
}

// add adds the ended request of a task to the queues. A nil receiver ignores the request.
func (d *ends) add(t *task) {
	if d == nil || (t.client == "" && t.request.RunID == "") {
		return
	}
	if t.client != "" {
		d.requests.add(schemas.Outstanding{Client: t.client, Entity: t.request.Entity, Number: t.request.Version})
	}
	if t.request.RunID != "" {
		d.steps.add(runs.Ref{Run: t.request.RunID, Entity: t.request.Entity})
	}
	d.signal()
}

func (d *ends) signal() {
	select {
	case d.added <- struct{}{}:
	default:
	}
}

// endQueue is a list of at most maxReleases elements.
type endQueue[T any] struct {
	mu    sync.Mutex
	ended []T
}

func (q *endQueue[T]) add(e T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.ended) < maxReleases {
		q.ended = append(q.ended, e)
	}
}

func (q *endQueue[T]) take() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.ended
	q.ended = nil
	return all
}

// putBack puts elements back at the start of the queue, because their ends could not be announced.
func (q *endQueue[T]) putBack(all []T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = append(all, q.ended[:min(len(q.ended), maxReleases-len(all))]...)
}

// run announces ended requests until ctx ends: it subtracts them from the numbers of
// outstanding requests of their clients, and makes the steps of their runs due. When ctx ends, it
// announces the remaining requests once. The processing of records does not wait for it.
func (d *ends) run(ctx context.Context) {
	wait := releaseLinger
	for {
		select {
		case <-d.added:
		case <-ctx.Done():
		}
		if !poll.Pause(ctx, wait) {
			break
		}
		wait = releaseLinger
		for condition, err := range d.announce(ctx) {
			if err != nil {
				wait = releaseTimeout
				d.signal()
			}
			d.conditions.Record(d.log, condition, err)
		}
	}
	for _, err := range d.announce(context.WithoutCancel(ctx)) {
		if err != nil {
			d.log.Warn("worker stopped before it announced the ends of all requests; outstanding requests of clients count until their leases expire, and steps of runs are due after their leases", "err", err)
		}
	}
}

// announce announces the requests in both queues, and empties the queues. The result has an entry for
// each queue that was not empty: the log condition of the queue, and the error or nil.
func (d *ends) announce(ctx context.Context) map[observe.Condition]error {
	errs := map[observe.Condition]error{}
	if ended := d.requests.take(); len(ended) > 0 {
		errs[conditionReleases] = d.release(ctx, ended)
		if errs[conditionReleases] != nil {
			d.requests.putBack(ended)
		}
	}
	if ended := d.steps.take(); len(ended) > 0 {
		errs[conditionSteps] = d.walks.answered(ctx, ended)
		if errs[conditionSteps] != nil {
			d.steps.putBack(ended)
		}
	}
	return errs
}

func (d *ends) release(ctx context.Context, ended []schemas.Outstanding) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	return d.client.ReleaseOutstanding(ctx, ended)
}
