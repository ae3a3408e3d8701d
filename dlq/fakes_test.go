package dlq

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/sqlite"
)

// fakeStore is the SQLite store with injected faults. LeaseJob and NextLeaseEnd ignore the
// cancellation of their context, because a cancelled call would close the connection to the
// database in memory.
type fakeStore struct {
	*sqlite.Store
	p *process
}

func (s fakeStore) DeadLettersByOffset(ctx context.Context, f deadletters.Filter, behind deadletters.ID, limit int) ([]deadletters.DeadLetter, error) {
	return withFault(ctx, s.p, "list", func() ([]deadletters.DeadLetter, error) { return s.Store.DeadLettersByOffset(ctx, f, behind, limit) })
}

func (s fakeStore) Job(ctx context.Context, id string) (deadletters.Job, error) {
	return withFault(ctx, s.p, "job", func() (deadletters.Job, error) { return s.Store.Job(ctx, id) })
}

func (s fakeStore) LeaseJob(ctx context.Context, holder string, sources []string, now, until time.Time) (j deadletters.Job, ok bool, err error) {
	j, err = withFault(ctx, s.p, "lease", func() (deadletters.Job, error) {
		var err error
		j, ok, err = s.Store.LeaseJob(context.WithoutCancel(ctx), holder, sources, now, until)
		return j, err
	})
	return j, ok, err
}

func (s fakeStore) NextLeaseEnd(ctx context.Context, sources []string) (time.Time, error) {
	return withFault(ctx, s.p, "next", func() (time.Time, error) { return s.Store.NextLeaseEnd(context.WithoutCancel(ctx), sources) })
}

func (s fakeStore) SaveJobProgress(ctx context.Context, j deadletters.Job, handled []deadletters.ID, h deadletters.Disposition, e *store.AuditEntry) (deadletters.JobState, error) {
	return withFault(ctx, s.p, "save", func() (deadletters.JobState, error) { return s.Store.SaveJobProgress(ctx, j, handled, h, e) })
}

// fakeSource has one facet, character, and accepts all keys without the prefix bad.
type fakeSource struct{}

func (fakeSource) HasFacet(name string) bool { return name == "character" }

func (fakeSource) CheckKey(_, key string) error {
	if strings.HasPrefix(key, "bad") {
		return errors.New("invalid key")
	}
	return nil
}

type fakeTopics struct{ p *process }

func (m fakeTopics) ReadDeadLetters(ctx context.Context, ids []deadletters.ID, found func(deadletters.ID, ReadResult)) error {
	_, err := withFault(ctx, m.p, "read", func() (any, error) {
		g := m.p.rig
		for _, id := range ids {
			if !poll.Pause(ctx, g.readDelay) {
				return nil, ctx.Err()
			}
			g.mu.Lock()
			r, there := g.records[id]
			there = there && id.Offset >= g.starts[id.Partition]
			g.mu.Unlock()
			if there {
				found(id, r)
			}
		}
		return nil, nil
	})
	return err
}

func (m fakeTopics) EnqueuedByJob(ctx context.Context, _, job string, from, to time.Time) (map[string]bool, error) {
	return withFault(ctx, m.p, "enqueued", func() (map[string]bool, error) {
		g := m.p.rig
		g.mu.Lock()
		defer g.mu.Unlock()
		enqueued := map[string]bool{}
		for _, r := range g.requests {
			if r.Mark.ID == job && !r.at.Before(from.Truncate(time.Millisecond)) && !r.at.After(to) {
				enqueued[r.Mark.Of] = true
			}
		}
		return enqueued, nil
	})
}

func (m fakeTopics) Bounds(ctx context.Context, _ string) (map[int32]PartitionBounds, error) {
	return withFault(ctx, m.p, "bounds", func() (map[int32]PartitionBounds, error) {
		g := m.p.rig
		g.mu.Lock()
		defer g.mu.Unlock()
		bounds := map[int32]PartitionBounds{}
		for id := range g.records {
			b := bounds[id.Partition]
			bounds[id.Partition] = PartitionBounds{g.starts[id.Partition], max(b.End, id.Offset+1)}
		}
		return bounds, nil
	})
}

func (m fakeTopics) DeleteBefore(ctx context.Context, _ string, before map[int32]int64) (map[int32]int64, error) {
	return withFault(ctx, m.p, "delete", func() (map[int32]int64, error) {
		g := m.p.rig
		g.mu.Lock()
		defer g.mu.Unlock()
		for id, r := range g.records {
			if id.Offset < before[id.Partition] && time.Since(r.DeadLetter.Time) < minDeleteAge {
				g.Errorf("%+v was deleted before minDeleteAge; records before it may lack their entries", id)
			}
		}
		for partition, offset := range before {
			g.starts[partition] = max(g.starts[partition], offset)
		}
		return maps.Clone(g.starts), nil
	})
}

// put appends a request to the request topic, with the given time as its timestamp.
func (g *rig) put(a ReplayRequest, at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests = append(g.requests, request{a, at})
}

// Enqueue implements Enqueuer.
func (p *process) Enqueue(ctx context.Context, all []ReplayRequest) []error {
	if p.enqueueFunc != nil {
		if p.isDead() {
			runtime.Goexit()
		}
		return p.enqueueFunc(ctx, all)
	}
	errs, err := withFault(ctx, p, "enqueue", func() ([]error, error) {
		for _, a := range all {
			p.rig.put(a, time.Now())
		}
		return make([]error, len(all)), nil
	})
	if err != nil {
		return slices.Repeat([]error{err}, len(all))
	}
	return errs
}

// fakeNotifier delivers every wake-up without delay.
type fakeNotifier struct{ p *process }

func (b fakeNotifier) Run(ctx context.Context, latest time.Duration, work func(context.Context, time.Time) (time.Time, error)) error {
	for {
		next, err := work(ctx, time.Now())
		wait := latest
		if err != nil {
			wait = 5 * time.Second
		} else if !next.IsZero() {
			wait = min(latest, max(time.Until(next), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-b.p.woken:
		case <-time.After(wait):
		}
	}
}

func (b fakeNotifier) WakeAt(_ context.Context, at time.Time) {
	time.AfterFunc(time.Until(at), func() {
		b.p.rig.mu.Lock()
		all := slices.Clone(b.p.rig.processes)
		b.p.rig.mu.Unlock()
		for _, p := range all {
			fakeNotifier{p}.WakeLocal(at)
		}
	})
}

func (b fakeNotifier) WakeLocal(time.Time) {
	select {
	case b.p.woken <- struct{}{}:
	default:
	}
}
