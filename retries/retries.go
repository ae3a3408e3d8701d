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

	"github.com/freshet/freshet/due"
	"github.com/freshet/freshet/store"
)

// Store keeps the scheduled retries.
type Store interface {
	// Due claims up to limit retries of the source that are due, the earliest first,
	// by having them due again after the lease. No other caller gets the same.
	Due(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) ([]store.Status, error)
	// NextDue returns when the next retry is due; zero if there is none.
	NextDue(ctx context.Context, source string) (time.Time, error)
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
	// claimMost is claimed at once.
	claimMost = 256
)

// Retries asks for the due retries of one source.
type Retries struct {
	source   string
	store    Store
	enqueuer Enqueuer
	loop     *due.Loop
	log      *slog.Logger
	asked    prometheus.Counter
}

// New returns the retries of a source; Run asks for them.
func New(source string, st Store, enqueuer Enqueuer, rdb redis.UniversalClient, log *slog.Logger, reg prometheus.Registerer) *Retries {
	log = log.With("source", source)
	r := &Retries{
		source: source, store: st, enqueuer: enqueuer, log: log,
		loop: due.New("retries:"+source, rdb, log, due.Words{
			Waits: "scheduled retries wait until the database answers", GoesOn: "scheduled retries go on",
		}),
		asked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "retries_asked_total", Help: "Scheduled retries that were asked for when due.",
			ConstLabels: prometheus.Labels{"source": source},
		}),
	}
	reg.MustRegister(r.asked)
	return r
}

// Scheduled tells all instances that a retry is due then. One that misses it finds it
// after a lease at the latest.
func (r *Retries) Scheduled(ctx context.Context, at time.Time) { r.loop.Tell(ctx, at) }

// Run asks for retries as they come due, until ctx ends. Whatever was not heard of is
// found at the latest when a claim would end.
func (r *Retries) Run(ctx context.Context) error { return r.loop.Run(ctx, lease, r.once) }

// once asks for what is due, and returns when the next retry will be.
func (r *Retries) once(ctx context.Context, _ time.Time) (next time.Time, err error) {
	for {
		all, err := r.store.Due(ctx, r.source, time.Now(), lease, claimMost)
		if err != nil {
			return time.Time{}, err
		}
		r.ask(ctx, all)
		if len(all) < claimMost {
			return r.store.NextDue(ctx, r.source)
		}
	}
}

// ask asks until all are asked for, or the claim has run out: then they come round.
func (r *Retries) ask(ctx context.Context, all []store.Status) {
	until := time.Now().Add(lease / 2)
	left := due.UntilAsked(ctx, all, func() bool { return time.Now().Before(until) }, func(ctx context.Context, some []store.Status) []store.Status {
		left := r.enqueuer.Enqueue(ctx, some)
		r.asked.Add(float64(len(some) - len(left)))
		return left
	})
	if len(left) > 0 && ctx.Err() == nil {
		r.log.Warn("retries could not be asked for, and come round again", "retries", len(left), "within", lease)
	}
}
