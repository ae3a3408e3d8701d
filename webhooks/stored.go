package webhooks

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
)

const (
	// maxWatched is the maximum number of deliveries that are watched at the same time (storedWatch).
	maxWatched = 10_000
	// A delivery is watched for at most watchTTL. Every sweepInterval, older deliveries are removed.
	watchTTL, sweepInterval = time.Hour, time.Minute
	// settledBatch is the maximum number of entities whose states are read from the database together.
	settledBatch = 500
)

// storedWatch measures the time from a delivery until the snapshot of a fetch that began after the
// delivery is stored. A settle message does not say whether the fetch succeeded. So storedWatch reads
// the snapshot from the database after each settle message about a watched entity.
type storedWatch struct {
	store Store
	times *prometheus.HistogramVec
	now   func() time.Time
	log   *slog.Logger
	ready chan struct{} // holds one element while the map ended is not empty

	mu       sync.Mutex
	count    int
	byEntity map[schemas.Entity][]*watched
	ended    map[schemas.Entity]time.Time // entities whose request may have ended, with the time of the settle message
}

// watched is one entity of one delivery. `number` is the number of its update request; math.MaxInt64
// means that it is not known yet. `last` is the highest number in a settle message about the entity
// since the call of `begin`. `lastAt` is the time of the newest such message.
type watched struct {
	entity       schemas.Entity
	hook         *Hook
	received     time.Time
	number, last int64
	lastAt       time.Time
}

func newStoredWatch(st Store, times *prometheus.HistogramVec, now func() time.Time, log *slog.Logger) *storedWatch {
	return &storedWatch{
		store: st, times: times, now: now, log: log, ready: make(chan struct{}, 1),
		byEntity: map[schemas.Entity][]*watched{}, ended: map[schemas.Entity]time.Time{},
	}
}

// begin starts to watch an entity of a delivery. It must be called before the request is enqueued,
// because the request may end before the caller knows its number. It returns nil if maxWatched
// deliveries are watched already.
func (s *storedWatch) begin(e schemas.Entity, h *Hook, received time.Time) *watched {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == maxWatched {
		return nil
	}
	w := &watched{entity: e, hook: h, received: received, number: math.MaxInt64}
	s.byEntity[e] = append(s.byEntity[e], w)
	s.count++
	return w
}

// confirm stores the number of the request of a watched entity.
func (s *storedWatch) confirm(w *watched, number int64) {
	if w == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.number = number
	if w.last >= number {
		s.end(w.entity, w.lastAt)
	}
}

// drop stops watching an entity, because its request was not enqueued.
func (s *storedWatch) drop(w *watched) {
	if w == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(w.entity, func(other *watched) bool { return other != w })
}

// keep calls `stays` for each watched delivery of an entity, and removes the delivery if `stays`
// returns false.
func (s *storedWatch) keep(e schemas.Entity, stays func(*watched) bool) {
	var left []*watched
	for _, w := range s.byEntity[e] {
		if stays(w) {
			left = append(left, w)
		}
	}
	s.count -= len(s.byEntity[e]) - len(left)
	if s.byEntity[e] = left; len(left) == 0 {
		delete(s.byEntity, e)
	}
}

// settled handles a settle message.
func (s *storedWatch) settled(m schemas.Settled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.byEntity[m.Entity] {
		w.last, w.lastAt = max(w.last, m.Number), s.now()
		if m.Number >= w.number {
			s.end(m.Entity, w.lastAt)
		}
	}
}

// end records that a request of the entity may have ended at the time `at`, and wakes the goroutine of
// the method `run`.
func (s *storedWatch) end(e schemas.Entity, at time.Time) {
	s.ended[e] = at
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// run measures the times of watched deliveries until ctx ends.
func (s *storedWatch) run(ctx context.Context) error {
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sweep.C:
			s.sweep()
		case <-s.ready:
			s.measure(ctx)
		}
	}
}

// measure reads the snapshots of the entities in the map ended. It observes the time of each delivery
// whose snapshot is stored.
func (s *storedWatch) measure(ctx context.Context) {
	s.mu.Lock()
	var of []schemas.Entity
	var at []time.Time
	for e, t := range s.ended {
		if of, at = append(of, e), append(at, t); len(of) == settledBatch {
			break
		}
	}
	for _, e := range of {
		delete(s.ended, e)
	}
	if len(s.ended) > 0 {
		select {
		case s.ready <- struct{}{}:
		default:
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	states, err := s.store.States(ctx, of)
	if err != nil {
		s.log.Debug("the time from webhook deliveries to snapshots is not measured; reading the snapshots failed", "entities", len(of), "err", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, e := range of {
		s.keep(e, func(w *watched) bool {
			if states[i].Version < w.number {
				return true
			}
			s.times.WithLabelValues(w.hook.source, w.hook.name).Observe(at[i].Sub(w.received).Seconds())
			return false
		})
	}
}

// sweep removes the deliveries that have been watched for longer than watchTTL.
func (s *storedWatch) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := s.now().Add(-watchTTL)
	for e := range s.byEntity {
		s.keep(e, func(w *watched) bool { return w.received.After(oldest) })
	}
}
