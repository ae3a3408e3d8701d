// Package retries asks again for what has failed, when its time has come. Any
// number of instances may run for a source: each due retry is claimed by one. It
// sleeps until the next one is due; that an earlier one was scheduled is heard by
// Redis' pub/sub, and looked for whenever the line was cut.
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
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

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

// Door is where requests are asked for.
type Door interface {
	// Ask asks for each, in the lane from which it came, with a fetch that begins
	// after it. It returns those that must be asked for once more.
	Ask(ctx context.Context, due []store.Status) []store.Status
}

const (
	// lease is how long a claimed retry has to lead to a snapshot or to another
	// failure before it is asked for again.
	lease = 10 * time.Minute
	// claimMost is claimed at once.
	claimMost = 256
	// backoffFirst doubles up to backoffMost while the database, Redis or Kafka is away.
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 5 * time.Second
)

// Retries asks for the due retries of one source.
type Retries struct {
	source string
	store  Store
	door   Door
	rdb    redis.UniversalClient
	log    *slog.Logger
	asked  prometheus.Counter
	own    chan time.Time // scheduled in this process; has room for one
}

// New returns the retries of a source; Run asks for them.
func New(source string, st Store, door Door, rdb redis.UniversalClient, log *slog.Logger, reg prometheus.Registerer) *Retries {
	r := &Retries{
		source: source, store: st, door: door, rdb: rdb, log: log.With("source", source),
		asked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "retries_asked_total", Help: "Scheduled retries that were asked for when due.",
			ConstLabels: prometheus.Labels{"source": source},
		}),
		own: make(chan time.Time, 1),
	}
	reg.MustRegister(r.asked)
	return r
}

func (r *Retries) channel() string { return "retries:" + r.source }

// Scheduled tells all instances that a retry is due then. This one hears it without
// Redis; another that misses it finds it when its line is back, or after a lease.
func (r *Retries) Scheduled(ctx context.Context, at time.Time) {
	first := at
	for heard := false; !heard; {
		select {
		case r.own <- first:
			heard = true
		case other := <-r.own: // not heard yet: the earlier of the two will do
			first = earlier(first, other)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := r.rdb.Publish(ctx, r.channel(), strconv.FormatInt(at.UnixMilli(), 10)).Err(); err != nil {
		r.log.Debug("a scheduled retry was not told to others; one of them finds it later", "err", err)
	}
}

// Run asks for retries as they come due, until ctx ends.
func (r *Retries) Run(ctx context.Context) error {
	line := r.rdb.Subscribe(ctx, r.channel())
	defer func() { _ = line.Close() }()
	heard := line.ChannelWithSubscriptions()
	var next time.Time // to look
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var told time.Time
		select {
		case <-ctx.Done():
			return nil
		case told = <-r.own:
		case message := <-heard:
			if m, ok := message.(*redis.Message); ok {
				if ms, err := strconv.ParseInt(m.Payload, 10, 64); err == nil {
					told = time.UnixMilli(ms)
				}
			} // otherwise the line was cut, and something may have been missed
		case <-timer.C:
		}
		if told.IsZero() {
			due, ok := r.work(ctx)
			if !ok {
				return nil
			}
			// Whatever was not heard of is found at the latest when a claim would end.
			next = time.Now().Add(lease)
			told = due
		}
		next = earlier(next, told)
		timer.Reset(time.Until(next))
	}
}

// earlier returns the earlier of two times; one that is zero is none.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || (!a.IsZero() && a.Before(b)) {
		return a
	}
	return b
}

// work asks for what is due, and returns when the next retry will be. It waits as
// long as the database is away, and reports false if ctx ended.
func (r *Retries) work(ctx context.Context) (next time.Time, ok bool) {
	failed := false
	for backoff := backoffFirst; ; backoff = min(2*backoff, backoffMost) {
		next, err := r.once(ctx)
		switch {
		case ctx.Err() != nil:
			return time.Time{}, false
		case err == nil && failed:
			r.log.Info("scheduled retries go on")
			return next, true
		case err == nil:
			return next, true
		case !failed:
			failed = true
			r.log.Warn("scheduled retries wait until the database answers", "err", err)
		}
		if !pause(ctx, backoff) {
			return time.Time{}, false
		}
	}
}

func (r *Retries) once(ctx context.Context) (next time.Time, err error) {
	for {
		due, err := r.store.Due(ctx, r.source, time.Now(), lease, claimMost)
		if err != nil {
			return time.Time{}, err
		}
		r.ask(ctx, due)
		if len(due) < claimMost {
			return r.store.NextDue(ctx, r.source)
		}
	}
}

// ask asks until all are asked for, or the claim has run out: then they come round.
func (r *Retries) ask(ctx context.Context, due []store.Status) {
	backoff := backoffFirst
	until := time.Now().Add(lease / 2)
	for left := due; ; {
		n := len(left)
		left = r.door.Ask(ctx, left)
		r.asked.Add(float64(n - len(left)))
		switch {
		case len(left) == 0:
			return
		case time.Now().After(until):
			r.log.Warn("retries could not be asked for, and come round again", "retries", len(left), "within", lease)
			return
		case !pause(ctx, backoff):
			return
		}
		backoff = min(2*backoff, backoffMost)
	}
}

// pause waits; it reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
