package retention

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/source"
)

// storeCall is one call of the store's methods.
type storeCall struct {
	after  time.Duration // time from the start of the test to the call
	before time.Duration // time from the start of the test to the call's time argument; older rows are deleted
}

// fakeStore returns the given answers one after the other, and then repeats the last answer.
type fakeStore struct {
	*testing.T
	start   time.Time
	answers []answer
	calls   []storeCall
}

type answer struct {
	deleted int
	done    bool
	err     error
}

func (s *fakeStore) DeleteOldStatuses(ctx context.Context, source, facet string, before time.Time, limit int) (int, bool, error) {
	return s.DeleteExpired(ctx, source, facet, before, before, limit)
}

func (s *fakeStore) DeleteExpired(_ context.Context, source, facet string, before, notFound time.Time, limit int) (int, bool, error) {
	if before != notFound {
		s.Errorf("content before %v, not-found results before %v", before, notFound)
	}
	if source != "court" || facet != "progress" || limit != stepRows {
		s.Errorf("unexpected call: %s/%s, limit %d", source, facet, limit)
	}
	a := s.answers[min(len(s.calls), len(s.answers)-1)]
	s.calls = append(s.calls, storeCall{time.Since(s.start), before.Sub(s.start)})
	return a.deleted, a.done, a.err
}

const keepFor = 720 * time.Hour

// runWalk runs the task that deletes the old snapshots of one facet (a Walk) for the given time. It
// returns the calls that the task made to the store, its log, and the value of its counter of deleted
// rows.
func runWalk(t *testing.T, during time.Duration, answers ...answer) (calls []storeCall, logged string, deleted float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &fakeStore{T: t, start: time.Now(), answers: answers}
		w := New("court", "progress", Periods{keepFor, keepFor, keepFor}, s, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry())[0]
		ctx, stop := context.WithTimeout(t.Context(), during)
		defer stop()
		if err := w.Run(ctx); err != nil || time.Since(s.start) != during {
			t.Errorf("Run ended after %v: %v", time.Since(s.start), err)
		}
		calls, logged, deleted = s.calls, log.String(), testutil.ToFloat64(w.deleted)
	})
	return calls, logged, deleted
}

// at fails the test unless the store was called at these times after the start. The time argument
// of each call must be the time of the call minus keepFor.
func at(t *testing.T, calls []storeCall, want ...time.Duration) {
	t.Helper()
	if len(calls) != len(want) {
		t.Fatalf("calls: got %v, want at %v", calls, want)
	}
	for i, l := range calls {
		if l.after != want[i] || l.before != l.after-keepFor {
			t.Errorf("call %d: got after %v with bound %v, want after %v with %v", i, l.after, l.before, want[i], want[i]-keepFor)
		}
	}
}

func TestWalk_KeepsItsIntervals(t *testing.T) {
	calls, logged, deleted := runWalk(t, walkInterval+5*stepInterval,
		answer{deleted: 3}, answer{}, answer{deleted: 4, done: true}, answer{}, answer{done: true})
	at(t, calls, stepInterval, 2*stepInterval, 3*stepInterval, 3*stepInterval+walkInterval, 4*stepInterval+walkInterval)
	if strings.Count(logged, "\n") != 1 || !strings.Contains(logged, `rows="snapshots and not-found results" deleted=7`) {
		t.Errorf("it logged %s", logged) // only the first walk deleted rows, so only its end is logged
	}
	if deleted != 7 {
		t.Errorf("retention_deleted_total: got %v", deleted)
	}
}

func TestWalk_LogsFailureAndRecoveryOnce(t *testing.T) {
	bad := answer{err: errors.New("no database")}
	calls, logged, deleted := runWalk(t, 5*retryInterval, answer{deleted: 2}, bad, bad, bad, answer{deleted: 1}, answer{done: true})
	first := 2 * stepInterval
	at(t, calls, stepInterval, first, first+retryInterval, first+2*retryInterval, first+3*retryInterval, first+3*retryInterval+stepInterval)
	lines := strings.Split(strings.TrimSpace(logged), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], "no database") ||
		!strings.Contains(lines[1], "rows resumed") || !strings.Contains(lines[2], "deleted=3") {
		t.Errorf("it logged %s", logged)
	}
	if deleted != 3 {
		t.Errorf("retention_deleted_total: got %v", deleted)
	}
}

func TestWalk_LogsARepeatedFailure(t *testing.T) {
	bad := answer{err: errors.New("no database")}
	_, logged, _ := runWalk(t, 3*retryInterval, bad, answer{}, bad, answer{done: true})
	if strings.Count(logged, "level=WARN") != 2 || strings.Count(logged, "rows resumed") != 2 {
		t.Errorf("it logged %s", logged)
	}
}

func TestWalk_DoesNotLogItsStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ctx, stop := context.WithCancel(t.Context())
		store := blockingStore(func(ctx context.Context) error { stop(); <-ctx.Done(); return ctx.Err() })
		w := New("court", "progress", Periods{keepFor, keepFor, keepFor}, store, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry())[0]
		if err := w.Run(ctx); err != nil || log.Len() > 0 {
			t.Errorf("%v, it logged %s", err, &log)
		}
	})
}

type blockingStore func(context.Context) error

func (h blockingStore) DeleteExpired(ctx context.Context, _, _ string, _, _ time.Time, _ int) (int, bool, error) {
	return 0, false, h(ctx)
}

func (h blockingStore) DeleteOldStatuses(ctx context.Context, _, _ string, _ time.Time, _ int) (int, bool, error) {
	return 0, false, h(ctx)
}

func TestWalk_DeletesStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{T: t, start: time.Now(), answers: []answer{{deleted: 5, done: true}}}
		w := New("court", "progress", Periods{0, keepFor, keepFor}, s, slog.New(slog.DiscardHandler), prometheus.NewRegistry())[1]
		ctx, stop := context.WithTimeout(t.Context(), 2*stepInterval)
		defer stop()
		if err := w.Run(ctx); err != nil {
			t.Fatal(err)
		}
		at(t, s.calls, stepInterval)
		if got := testutil.ToFloat64(w.deleted); got != 5 {
			t.Errorf("retention_statuses_deleted_total: got %v, want 5", got)
		}
	})
}

func TestPeriodsOf_BoundsRowsWithoutContent(t *testing.T) {
	const week = 7 * 24 * time.Hour
	for _, c := range []struct {
		facet source.Facet
		want  Periods
	}{
		{source.DefaultFacet(), Periods{0, week, week}},
		{source.Facet{KeepFor: time.Hour, FailedFor: 6 * time.Hour}, Periods{time.Hour, time.Hour, 6 * time.Hour}},
		{source.Facet{NotFoundFor: 2 * week, FailedFor: 3 * week}, Periods{0, 2 * week, 3 * week}},
	} {
		if got := PeriodsOf(c.facet); got != c.want {
			t.Errorf("%+v: got %+v, want %+v", c.facet, got, c.want)
		}
	}
}
