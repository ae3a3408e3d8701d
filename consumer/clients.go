package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
)

const (
	// dischargeLinger is how long the first ended request waits for others, so that one
	// call to Redis ends many counts. No record waits for it.
	dischargeLinger = 10 * time.Millisecond
	// maxDischarges bounds the requests whose counts are not ended yet, as while Redis is
	// away. What is dropped ends with its lease.
	maxDischarges = 10_000
	// dischargeTimeout bounds one call, and is the wait after one that failed.
	dischargeTimeout = time.Second
)

// discharges are requests that have ended and are still counted as outstanding for their
// clients. A worker that is killed loses them, and their leases end the counts.
type discharges struct {
	mu    sync.Mutex
	ended []schemas.Outstanding
	added chan struct{} // has room for one
}

func newDischarges() *discharges { return &discharges{added: make(chan struct{}, 1)} }

// add notes that the task's request has ended. A nil receiver notes nothing.
func (d *discharges) add(t *task) {
	if d == nil || t.client == "" {
		return
	}
	d.mu.Lock()
	if len(d.ended) < maxDischarges {
		d.ended = append(d.ended, schemas.Outstanding{Client: t.client, Entity: t.request.Entity, Number: t.request.Version})
	}
	d.mu.Unlock()
	select {
	case d.added <- struct{}{}:
	default:
	}
}

func (d *discharges) take() []schemas.Outstanding {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.ended
	d.ended = nil
	return all
}

// putBack keeps requests whose counts could not be ended.
func (d *discharges) putBack(all []schemas.Outstanding) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = append(all, d.ended[:min(len(d.ended), maxDischarges-len(all))]...)
	select {
	case d.added <- struct{}{}:
	default:
	}
}

// dischargeLoop ends the counts of ended requests until ctx ends, and then those that are
// left. It holds no record: a count that stays ends with its lease.
func (w *Worker) dischargeLoop(ctx context.Context) {
	wait, failing := dischargeLinger, false
	for {
		select {
		case <-w.discharges.added:
		case <-ctx.Done():
		}
		if !sleep(ctx, wait) {
			break
		}
		ended := w.discharges.take()
		err := w.dischargeBatch(ctx, ended)
		if wait = dischargeLinger; err != nil {
			wait = dischargeTimeout
			w.discharges.putBack(ended)
		}
		if failing != (err != nil) {
			failing = err != nil
			w.logDischarges(err)
		}
	}
	if err := w.dischargeBatch(context.WithoutCancel(ctx), w.discharges.take()); err != nil {
		w.log.Warn("clients' outstanding requests stay counted until their leases end", "err", err)
	}
}

func (w *Worker) dischargeBatch(ctx context.Context, ended []schemas.Outstanding) error {
	ctx, cancel := context.WithTimeout(ctx, dischargeTimeout)
	defer cancel()
	return w.requests.ReleaseOutstanding(ctx, ended)
}

func (w *Worker) logDischarges(err error) {
	if err != nil {
		w.log.Warn("clients' outstanding requests can't be discharged; each count ends with its lease", "err", err)
	} else {
		w.log.Info("clients' outstanding requests are discharged again")
	}
}
