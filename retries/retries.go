// Package retries enqueues scheduled retries when they are due. Any number of instances may run for
// a source; each due retry is claimed by one of them. An instance sleeps until the next retry is
// due. It is woken when an earlier retry is scheduled (package poll).
//
// States of a retry, which is a status row with state RETRYING:
//
//	scheduled → claimed    it is due; an instance claims it for 10 minutes (the lease)
//	claimed   → enqueued   the producer has accepted its request
//	enqueued  → deleted    the snapshot of a later fetch is stored
//	enqueued  → scheduled  the fetch failed again; the next round has a longer delay
//	claimed, enqueued → due again, when the lease ends and the row has not changed since the claim
//
// Invariants:
//   - Enqueueing a retry does not delete its row. The row is deleted when the snapshot of the
//     retry's fetch is stored (semantics §5). If the request is lost, the retry is due again after
//     the lease.
//   - A retry stays due until an instance claims it.
//
// Example: a fetch fails at 12:00 and the facet's first delay is 1 min. The retry is due at 12:01.
// If the worker that reads its request is killed, the retry is enqueued again at 12:11.
package retries

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/store"
)

// Store is the database with the scheduled retries.
type Store interface {
	// ClaimRetries claims up to `limit` due retries of the source, the earliest first. No other
	// caller gets them before the lease ends.
	ClaimRetries(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) ([]store.Status, error)
	// NextRetryTime returns when the next retry is due, or zero if there is none.
	NextRetryTime(ctx context.Context, source string) (time.Time, error)
}

// Enqueuer publishes update requests for due retries.
type Enqueuer interface {
	// Enqueue enqueues a strict request for each retry in its original lane: a fetch must begin
	// after the request. It returns the retries that could not be enqueued.
	Enqueue(ctx context.Context, due []store.Status) []store.Status
}

const (
	// lease is how long a retry stays claimed. If neither a snapshot nor a new failure of the entity
	// is stored by then, the retry is due again.
	lease = 10 * time.Minute
	// maxClaim is the maximum number of retries in one claim.
	maxClaim = 256
)

// Retries enqueues the due retries of one source.
type Retries struct {
	source    string
	store     Store
	enqueuer  Enqueuer
	poller    *poll.Poller
	log       *slog.Logger
	requested prometheus.Counter
}

// New returns the Retries of a source, which enqueues nothing before Run is called.
func New(source string, st Store, enqueuer Enqueuer, rdb redis.UniversalClient, log *slog.Logger, reg prometheus.Registerer) *Retries {
	log = log.With("source", source)
	r := &Retries{
		source: source, store: st, enqueuer: enqueuer, log: log,
		poller: poll.New("retries:"+source, rdb, log, observe.Condition{
			Event: "retries_unclaimed", Failing: "scheduled retries can't be claimed; retrying", Recovered: "claiming scheduled retries works again",
		}),
		requested: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "retries_requested_total", Help: "Scheduled retries that were enqueued when due.",
			ConstLabels: prometheus.Labels{"source": source},
		}),
	}
	reg.MustRegister(r.requested)
	return r
}

// WakeAt announces to all instances that a retry is due at the time `at`. An instance that misses
// the announcement finds the retry after one lease at the latest.
func (r *Retries) WakeAt(ctx context.Context, at time.Time) { r.poller.WakeAt(ctx, at) }

// Run enqueues retries as they become due, until ctx ends.
func (r *Retries) Run(ctx context.Context) error { return r.poller.Run(ctx, lease, r.enqueueDue) }

// enqueueDue claims and enqueues due retries. It returns when the next retry is due.
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

// enqueue enqueues claimed retries. If some can't be enqueued, it tries again with these, until half
// of the lease has passed. Retries that are not enqueued by then are due again when the lease ends.
func (r *Retries) enqueue(ctx context.Context, all []store.Status) {
	until := time.Now().Add(lease / 2)
	left := poll.EnqueueAll(ctx, all, func() bool { return time.Now().Before(until) }, func(ctx context.Context, some []store.Status) []store.Status {
		left := r.enqueuer.Enqueue(ctx, some)
		r.requested.Add(float64(len(some) - len(left)))
		return left
	})
	if len(left) > 0 && ctx.Err() == nil {
		r.log.Warn("enqueueing retries failed; the retries are due again after the lease", "retries", len(left), "lease", lease)
	}
}
