package query

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
)

const (
	// flushInterval is the interval at which the counts are passed to the ReadRecorder.
	flushInterval = 10 * time.Second
	// maxFlushBatch is the maximum number of entities in one call of RecordReads, and flushTimeout
	// is the timeout of one call.
	maxFlushBatch = 5_000
	flushTimeout  = 5 * time.Second
	// finalFlushTimeout is the timeout of the last flush during shutdown.
	finalFlushTimeout = 5 * time.Second
	// maxReadCounts is the maximum number of entities that wait for the next flush: 35 MB if all
	// keys have the maximum length, and another 35 MB during a flush.
	maxReadCounts = 100_000
	// readCountWeight is the memory of a readCount in bytes, without the strings that it shares
	// with its entry.
	readCountWeight = 64
)

// readCount counts the reads of one entity since the last flush. It is separate from the cache
// entry that points to it, so that a pending count does not keep a snapshot in memory.
type readCount struct {
	entity schemas.Entity
	count  atomic.Int64
}

// readCounter has the read counts since the last flush. A nil readCounter counts nothing. Only
// reads with a snapshot count: a client may request any key, and an entity that does not exist
// must not be prefetched.
//
// Invariants:
//   - A read costs one atomic addition. Only the read that changes a count from 0 to 1 also
//     appends the count to the field `list`. At a flush, `take` empties `list` and resets its counts to
//     0. So each read is recorded once or counted as unrecorded in the metrics.
//   - An entity appears at most once in a flush, although each load creates a new readCount for
//     it.
type readCounter struct {
	recorder   ReadRecorder
	metrics    *metrics
	log        *slog.Logger
	conditions observe.Conditions

	mu   sync.Mutex
	list []*readCount
}

func newReadCounter(reads ReadRecorder, m *metrics, log *slog.Logger) *readCounter {
	if reads == nil {
		return nil
	}
	return &readCounter{recorder: reads, metrics: m, log: log}
}

// newCount returns the readCount for a new cache entry; nil if reads of the facet are not
// recorded.
func (t *readCounter) newCount(e schemas.Entity) *readCount {
	if t == nil || !t.recorder.Counts(e.Source, e.Facet) {
		return nil
	}
	return &readCount{entity: e}
}

// read counts one read of an entity that has a snapshot.
func (t *readCounter) read(count *readCount) {
	if count != nil && count.count.Add(1) == 1 {
		t.enqueue(count)
	}
}

func (t *readCounter) enqueue(count *readCount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.list) >= maxReadCounts {
		t.metrics.unrecordedFull.Add(float64(count.count.Swap(0)))
		return
	}
	t.list = append(t.list, count)
}

// remove drops the reads of a deleted entity, so that these reads do not register the entity for
// prefetching again.
func (t *readCounter) remove(e schemas.Entity) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = slices.DeleteFunc(t.list, func(count *readCount) bool {
		if count.entity != e {
			return false
		}
		count.count.Store(0)
		return true
	})
}

// take returns the read counts since the last call of `take`, and resets them.
func (t *readCounter) take() []ReadCount {
	t.mu.Lock()
	list, sums := t.list, map[schemas.Entity]int{}
	t.list = make([]*readCount, 0, len(list)) // the next interval will need about the same capacity
	t.mu.Unlock()
	for _, count := range list {
		sums[count.entity] += int(count.count.Swap(0))
	}
	reads := make([]ReadCount, 0, len(sums))
	for e, n := range sums {
		reads = append(reads, ReadCount{e, n})
	}
	return reads
}

// run flushes every flushInterval until ctx ends, and then once more. After the end of ctx, a flush
// in progress and the last flush together may take finalFlushTimeout.
func (t *readCounter) run(ctx context.Context) {
	if t == nil {
		return
	}
	flushCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(finalFlushTimeout, cancel) })()
	flush := func(context.Context) { t.flush(flushCtx, time.Now()) }
	poll.Every(ctx, flushInterval, flush)
	flush(flushCtx)
}

// recordingFails is the condition of a readCounter whose last flush failed.
var recordingFails = observe.Condition{
	Event: "read_recording_failed", Failing: "recording of reads failed; the scheduler does not count these reads", Recovered: "recording of reads resumed",
}

// flush records the reads since the last flush. Reads of a failed call are lost.
func (t *readCounter) flush(ctx context.Context, now time.Time) {
	reads := t.take()
	if len(reads) == 0 {
		return
	}
	var failed error
	for batch := range slices.Chunk(reads, maxFlushBatch) {
		counts := map[string]int{} // number of reads by source
		for _, r := range batch {
			counts[r.Entity.Source] += r.Count
		}
		err := t.record(ctx, batch, now)
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
	t.conditions.Record(t.log, recordingFails, failed)
}

func (t *readCounter) record(ctx context.Context, reads []ReadCount, until time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	return t.recorder.RecordReads(ctx, reads, until)
}
