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
	// maxWatched is the maximum number of deliveries whose time until the snapshot is measured.
	maxWatched = 10_000
	// watchTTL is how long a delivery is watched, and sweepInterval how often older ones are removed.
	watchTTL, sweepInterval = time.Hour, time.Minute
	// settledBatch is the maximum number of entities of one read of the database.
	settledBatch = 500
)

// storedWatch measures the time from a delivery to the snapshot of a fetch that began after it. It reads the
// database only for entities that were settled, because a settled request may have failed.
type storedWatch struct {
	store Store
	times *prometheus.HistogramVec
	now   func() time.Time
	log   *slog.Logger
	ready chan struct{} // has an element while `ended` is not empty

	mu       sync.Mutex
	count    int
	byEntity map[schemas.Entity][]*watched
	ended    map[schemas.Entity]time.Time // entities whose request may have ended, with the time of the message
}

// watched is one entity of one delivery. number is the number of its request; math.MaxInt64: not known yet.
// last is the highest number that was settled since begin was called. lastAt is the time of the last message.
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

// begin watches an entity of a delivery. It must be called before the request is enqueued, because the
// request may end before its number is known. It returns nil if the maximum number of
// deliveries (maxWatched) is watched.
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

// confirm sets the number of the request.
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

// drop ends the watch of a request that was not enqueued.
func (s *storedWatch) drop(w *watched) {
	if w == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(w.entity, func(other *watched) bool { return other != w })
}

// keep removes the watched deliveries of an entity for which the function stays returns false.
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

// settled receives the message that a request was settled.
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

// end notes that a request of the entity ended at the time `at`.
func (s *storedWatch) end(e schemas.Entity, at time.Time) {
	s.ended[e] = at
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// run measures the times of ended requests until ctx ends.
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

// measure reads the snapshots of the ended requests and observes the times of the stored ones.
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

// sweep removes the deliveries whose snapshot was not stored within watchTTL.
func (s *storedWatch) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := s.now().Add(-watchTTL)
	for e := range s.byEntity {
		s.keep(e, func(w *watched) bool { return w.received.After(oldest) })
	}
}
