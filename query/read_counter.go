package query

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/schemas"
)

const (
	// flushInterval is how often it is told who was read.
	flushInterval = 10 * time.Second
	// maxFlushBatch are told of at once, and tellTimeout is how long that may take.
	maxFlushBatch = 5_000
	flushTimeout  = 5 * time.Second
	// finalFlushTimeout is how long a stop waits until the last are told.
	finalFlushTimeout = 5 * time.Second
	// maxReadCounts bounds what waits to be told: 35 MB if all keys are as long as may be,
	// and as much again that is being told.
	maxReadCounts = 100_000
	// readCountWeight is what a tally takes of memory; its entity's text is its entry's.
	readCountWeight = 64
)

// readCount counts reads of one entity since they were told last. It stands apart from the
// entry that points to it: what waits to be told must not keep a snapshot in memory.
type readCount struct {
	entity schemas.Entity
	count  atomic.Int64
}

// readCounter are what was read and is not told yet. A nil one counts nothing. A read counts
// that is answered with a snapshot: anybody may ask for any key, and what nobody has found
// must not be prefetched for ever.
//
// Invariants:
//   - A read of a snapshot costs one addition. The one that makes a count 1 puts the
//     tally on the list, and nobody else does; whoever takes the list makes its counts 0.
//     So each read is told once, or counted as lost, whatever happens meanwhile.
//   - An entity is told of once at a time, although each look makes another tally.
type readCounter struct {
	recorder ReadRecorder
	metrics  *metrics
	log      *slog.Logger

	mu   sync.Mutex
	list []*readCount
}

func newReadCounter(reads ReadRecorder, m *metrics, log *slog.Logger) *readCounter {
	if reads == nil {
		return nil
	}
	return &readCounter{recorder: reads, metrics: m, log: log}
}

// newCount returns a tally for an entry to point to, nil if its reads do not count.
func (t *readCounter) newCount(e schemas.Entity) *readCount {
	if t == nil || !t.recorder.Counts(e.Source, e.Facet) {
		return nil
	}
	return &readCount{entity: e}
}

// read counts a read of a snapshot.
func (t *readCounter) read(of *readCount) {
	if of != nil && of.count.Add(1) == 1 {
		t.enqueue(of)
	}
}

func (t *readCounter) enqueue(of *readCount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.list) >= maxReadCounts {
		t.metrics.unrecordedFull.Add(float64(of.count.Swap(0)))
		return
	}
	t.list = append(t.list, of)
}

// forget drops reads of an entity that was deleted: they must not register it again.
func (t *readCounter) forget(e schemas.Entity) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = slices.DeleteFunc(t.list, func(of *readCount) bool {
		if of.entity != e {
			return false
		}
		of.count.Store(0)
		return true
	})
}

// take returns what was read since it was called last.
func (t *readCounter) take() []ReadCount {
	t.mu.Lock()
	list, sums := t.list, map[schemas.Entity]int{}
	t.list = make([]*readCount, 0, len(list)) // about as many come again
	t.mu.Unlock()
	for _, of := range list {
		sums[of.entity] += int(of.count.Swap(0))
	}
	reads := make([]ReadCount, 0, len(sums))
	for e, n := range sums {
		reads = append(reads, ReadCount{e, n})
	}
	return reads
}

// run tells who was read until ctx ends, and then once more: a stop waits for that, and
// for what is being told, for tellLast.
func (t *readCounter) run(ctx context.Context) {
	if t == nil {
		return
	}
	hard, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(finalFlushTimeout, cut) })()
	ticker := time.NewTicker(flushInterval)
	defer ticker.Stop()
	for failing := false; ; {
		select {
		case <-ticker.C:
			failing = t.flush(hard, time.Now(), failing)
		case <-ctx.Done():
			t.flush(hard, time.Now(), failing)
			return
		}
	}
}

// flush tells of what was read until now. What fails is lost, and logged when it begins
// and when it is over; it returns whether telling fails.
func (t *readCounter) flush(ctx context.Context, now time.Time, failing bool) bool {
	reads := t.take()
	if len(reads) == 0 {
		return failing
	}
	var failed error
	for some := range slices.Chunk(reads, maxFlushBatch) {
		counts := map[string]int{} // by source
		for _, r := range some {
			counts[r.Entity.Source] += r.Count
		}
		err := t.record(ctx, some, now)
		if err != nil {
			failed = err
		}
		for source, n := range counts {
			if err != nil {
				t.metrics.unrecordedFailed.Add(float64(n))
				continue
			}
			t.metrics.recorded.WithLabelValues(source).Add(float64(n))
		}
	}
	switch {
	case failed != nil && !failing:
		t.log.Warn("who is read is not known to the schedule until this succeeds; reads go on", "err", failed)
	case failed == nil && failing:
		t.log.Info("the schedule is told again who is read")
	}
	return failed != nil
}

func (t *readCounter) record(ctx context.Context, reads []ReadCount, until time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	return t.recorder.RecordReads(ctx, reads, until)
}
