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
	// tellEvery is how often it is told who was read.
	tellEvery = 10 * time.Second
	// tellMost are told of at once, and tellTimeout is how long that may take.
	tellMost    = 5_000
	tellTimeout = 5 * time.Second
	// tellLast is how long a stop waits until the last are told.
	tellLast = 5 * time.Second
	// talliesMost bounds what waits to be told: 35 MB if all keys are as long as may be,
	// and as much again that is being told.
	talliesMost = 100_000
	// tallyWeight is what a tally takes of memory; its entity's text is its entry's.
	tallyWeight = 64
)

// tally counts reads of one entity since they were told last. It stands apart from the
// entry that points to it: what waits to be told must not keep a snapshot in memory.
type tally struct {
	entity schemas.Entity
	count  atomic.Int64
}

// tallies are what was read and is not told yet. A nil one counts nothing. A read counts
// that is answered with a snapshot: anybody may ask for any key, and what nobody has found
// must not be prefetched for ever.
//
// Invariants:
//   - A read of a snapshot costs one addition. The one that makes a count 1 puts the
//     tally on the list, and nobody else does; whoever takes the list makes its counts 0.
//     So each read is told once, or counted as lost, whatever happens meanwhile.
//   - An entity is told of once at a time, although each look makes another tally.
type tallies struct {
	reads   ReadRecorder
	metrics *metrics
	log     *slog.Logger

	mu   sync.Mutex
	list []*tally
}

func newTallies(reads ReadRecorder, m *metrics, log *slog.Logger) *tallies {
	if reads == nil {
		return nil
	}
	return &tallies{reads: reads, metrics: m, log: log}
}

// of returns a tally for an entry to point to, nil if its reads do not count.
func (t *tallies) of(e schemas.Entity) *tally {
	if t == nil || !t.reads.Counts(e.Source, e.Facet) {
		return nil
	}
	return &tally{entity: e}
}

// read counts a read of a snapshot.
func (t *tallies) read(of *tally) {
	if of != nil && of.count.Add(1) == 1 {
		t.put(of)
	}
}

func (t *tallies) put(of *tally) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.list) >= talliesMost {
		t.metrics.untoldFull.Add(float64(of.count.Swap(0)))
		return
	}
	t.list = append(t.list, of)
}

// forget drops reads of an entity that was deleted: they must not register it again.
func (t *tallies) forget(e schemas.Entity) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = slices.DeleteFunc(t.list, func(of *tally) bool {
		if of.entity != e {
			return false
		}
		of.count.Store(0)
		return true
	})
}

// take returns what was read since it was called last.
func (t *tallies) take() []ReadCount {
	t.mu.Lock()
	list, sums := t.list, map[schemas.Entity]int{}
	t.list = make([]*tally, 0, len(list)) // about as many come again
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
func (t *tallies) run(ctx context.Context) {
	if t == nil {
		return
	}
	hard, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(tellLast, cut) })()
	ticker := time.NewTicker(tellEvery)
	defer ticker.Stop()
	for failing := false; ; {
		select {
		case <-ticker.C:
			failing = t.tell(hard, time.Now(), failing)
		case <-ctx.Done():
			t.tell(hard, time.Now(), failing)
			return
		}
	}
}

// tell tells of what was read until now. What fails is lost, and logged when it begins
// and when it is over; it returns whether telling fails.
func (t *tallies) tell(ctx context.Context, now time.Time, failing bool) bool {
	reads := t.take()
	if len(reads) == 0 {
		return failing
	}
	var failed error
	for some := range slices.Chunk(reads, tellMost) {
		counts := map[string]int{} // by source
		for _, r := range some {
			counts[r.Entity.Source] += r.Count
		}
		err := t.observe(ctx, some, now)
		if err != nil {
			failed = err
		}
		for source, n := range counts {
			if err != nil {
				t.metrics.untoldFailed.Add(float64(n))
				continue
			}
			t.metrics.told.WithLabelValues(source).Add(float64(n))
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

func (t *tallies) observe(ctx context.Context, reads []ReadCount, until time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	return t.reads.RecordReads(ctx, reads, until)
}
