// Package retries asks again for what has failed, when its time has come. Any
// number of instances may run for a source: each due retry is claimed by one. It
// sleeps until the next one is due, and hears of an earlier one (package due).
//
// Invariants:
//   - A retry that was asked for is not deleted: its row goes with the snapshot
//     that it leads to (semantics §5). Until then it comes round again, should the
//     request be lost.
//   - A retry that nobody takes stays due.
package retries

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/store"
)

// Store keeps the scheduled retries.
type Store interface {
	// ClaimRetries claims up to limit retries of the source that are due, the earliest first,
	// by having them due again after the lease. No other caller gets the same.
	ClaimRetries(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) ([]store.Status, error)
	// NextRetryTime returns when the next retry is due; zero if there is none.
	NextRetryTime(ctx context.Context, source string) (time.Time, error)
}

// Enqueuer is where requests are asked for.
type Enqueuer interface {
	// Enqueue asks for each, in the lane from which it came, with a fetch that begins
	// after it. It returns those that must be asked for once more.
	Enqueue(ctx context.Context, due []store.Status) []store.Status
}

const (
	// lease is how long a claimed retry has to lead to a snapshot or to another
	// failure before it is asked for again.
	lease = 10 * time.Minute
	// maxClaim is claimed at once.
	maxClaim = 256
)

// Retries asks for the due retries of one source.
type Retries struct {
	source    string
	store     Store
	enqueuer  Enqueuer
	poller    *poll.Poller
	log       *slog.Logger
	requested prometheus.Counter
}

// New returns the retries of a source; Run asks for them.
func New(source string, st Store, enqueuer Enqueuer, rdb redis.UniversalClient, log *slog.Logger, reg prometheus.Registerer) *Retries {
	log = log.With("source", source)
	r := &Retries{
		source: source, store: st, enqueuer: enqueuer, log: log,
		poller: poll.New("retries:"+source, rdb, log, poll.Messages{
			Failing: "scheduled retries wait until the database answers", Recovered: "scheduled retries go on",
		}),
		requested: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "retries_requested_total", Help: "Scheduled retries that were asked for when due.",
			ConstLabels: prometheus.Labels{"source": source},
		}),
	}
	reg.MustRegister(r.requested)
	return r
}

// WakeAt tells all instances that a retry is due then. One that misses it finds it
// after a lease at the latest.
func (r *Retries) WakeAt(ctx context.Context, at time.Time) { r.poller.WakeAt(ctx, at) }

// Run asks for retries as they come due, until ctx ends. Whatever was not heard of is
// found at the latest when a claim would end.
func (r *Retries) Run(ctx context.Context) error { return r.poller.Run(ctx, lease, r.enqueueDue) }

// enqueueDue asks for what is due, and returns when the next retry will be.
func (r *Retries) enqueueDue(ctx context.Context, _ time.Time) (next time.Time, err error) {
	for {
		all, err := r.store.ClaimRetries(ctx, r.source, time.Now(), lease, maxClaim)
		if err != nil {
			return time.Time{}, err
		}
		r.enqueue(ctx, all)
		if len(all) < maxClaim {
			return r.store.NextRetryTime(ctx, r.source)
		}
	}
}

// enqueue asks until all are asked for, or the claim has run out: then they come round.
func (r *Retries) enqueue(ctx context.Context, all []store.Status) {
	until := time.Now().Add(lease / 2)
	left := poll.EnqueueAll(ctx, all, func() bool { return time.Now().Before(until) }, func(ctx context.Context, some []store.Status) []store.Status {
		left := r.enqueuer.Enqueue(ctx, some)
		r.requested.Add(float64(len(some) - len(left)))
		return left
	})
	if len(left) > 0 && ctx.Err() == nil {
		r.log.Warn("retries could not be asked for, and come round again", "retries", len(left), "within", lease)
	}
}
