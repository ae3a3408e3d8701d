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

// look is one call of the store.
type look struct {
	after  time.Duration // since the start
	before time.Duration // the bound, since the start
}

// shelf answers calls in turn, the last answer for ever.
type shelf struct {
	*testing.T
	start   time.Time
	answers []answer
	looks   []look
}

type answer struct {
	deleted int
	done    bool
	err     error
}

func (s *shelf) DeleteOldStatuses(ctx context.Context, source, facet string, before time.Time, most int) (int, bool, error) {
	return s.DeleteExpired(ctx, source, facet, before, before, most)
}

func (s *shelf) DeleteExpired(_ context.Context, source, facet string, before, absence time.Time, most int) (int, bool, error) {
	if before != absence {
		s.Errorf("content before %v, absences before %v", before, absence)
	}
	if source != "court" || facet != "progress" || most != lookMost {
		s.Errorf("%s/%s, %d at once", source, facet, most)
	}
	a := s.answers[min(len(s.looks), len(s.answers)-1)]
	s.looks = append(s.looks, look{time.Since(s.start), before.Sub(s.start)})
	return a.deleted, a.done, a.err
}

const keepFor = 720 * time.Hour

// walked runs a walk for a time and returns its looks, what it said, and its count.
func walked(t *testing.T, during time.Duration, answers ...answer) (looks []look, said string, deleted float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &shelf{T: t, start: time.Now(), answers: answers}
		w := New("court", "progress", Times{keepFor, keepFor, keepFor}, s, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry())[0]
		ctx, stop := context.WithTimeout(t.Context(), during)
		defer stop()
		if err := w.Run(ctx); err != nil || time.Since(s.start) != during {
			t.Errorf("it ended after %v: %v", time.Since(s.start), err)
		}
		looks, said, deleted = s.looks, log.String(), testutil.ToFloat64(w.deleted)
	})
	return looks, said, deleted
}

// at fails the test unless the looks came then, each with the bound of its time.
func at(t *testing.T, looks []look, want ...time.Duration) {
	t.Helper()
	if len(looks) != len(want) {
		t.Fatalf("looks %v, want them at %v", looks, want)
	}
	for i, l := range looks {
		if l.after != want[i] || l.before != l.after-keepFor {
			t.Errorf("look %d after %v with the bound %v, want after %v with %v", i, l.after, l.before, want[i], want[i]-keepFor)
		}
	}
}

func TestAWalkKeepsItsPaceAndRestsAtTheEnd(t *testing.T) {
	looks, said, deleted := walked(t, rest+5*pace,
		answer{deleted: 3}, answer{}, answer{deleted: 4, done: true}, answer{}, answer{done: true})
	at(t, looks, pace, 2*pace, 3*pace, 3*pace+rest, 4*pace+rest)
	if strings.Count(said, "\n") != 1 || !strings.Contains(said, `rows=7 of="snapshots and absences"`) {
		t.Errorf("it said %s", said) // nothing of the second walk, which deleted nothing
	}
	if deleted != 7 {
		t.Errorf("%v are counted", deleted)
	}
}

func TestTroubleIsSaidOnceAndItsEndOnceAndTheWalkGoesOn(t *testing.T) {
	bad := answer{err: errors.New("no database")}
	looks, said, deleted := walked(t, 5*trouble, answer{deleted: 2}, bad, bad, bad, answer{deleted: 1}, answer{done: true})
	first := 2 * pace
	at(t, looks, pace, first, first+trouble, first+2*trouble, first+3*trouble, first+3*trouble+pace)
	lines := strings.Split(strings.TrimSpace(said), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], "no database") ||
		!strings.Contains(lines[1], "deleted again") || !strings.Contains(lines[2], "rows=3") {
		t.Errorf("it said %s", said)
	}
	if deleted != 3 {
		t.Errorf("%v are counted", deleted)
	}
}

func TestTroubleThatComesBackIsSaidAgain(t *testing.T) {
	bad := answer{err: errors.New("no database")}
	_, said, _ := walked(t, 3*trouble, bad, answer{}, bad, answer{done: true})
	if strings.Count(said, "level=WARN") != 2 || strings.Count(said, "deleted again") != 2 {
		t.Errorf("it said %s", said)
	}
}

func TestAStopIsNoTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ctx, stop := context.WithCancel(t.Context())
		hung := hanging(func(ctx context.Context) error { stop(); <-ctx.Done(); return ctx.Err() })
		w := New("court", "progress", Times{keepFor, keepFor, keepFor}, hung, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry())[0]
		if err := w.Run(ctx); err != nil || log.Len() > 0 {
			t.Errorf("%v, it said %s", err, &log)
		}
	})
}

type hanging func(context.Context) error

func (h hanging) DeleteExpired(ctx context.Context, _, _ string, _, _ time.Time, _ int) (int, bool, error) {
	return 0, false, h(ctx)
}

func (h hanging) DeleteOldStatuses(ctx context.Context, _, _ string, _ time.Time, _ int) (int, bool, error) {
	return 0, false, h(ctx)
}

func TestStatuses_AreWalkedLikeSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{T: t, start: time.Now(), answers: []answer{{deleted: 5, done: true}}}
		w := New("court", "progress", Times{0, keepFor, keepFor}, s, slog.New(slog.DiscardHandler), prometheus.NewRegistry())[1]
		ctx, stop := context.WithTimeout(t.Context(), 2*pace)
		defer stop()
		if err := w.Run(ctx); err != nil {
			t.Fatal(err)
		}
		at(t, s.looks, pace)
		if got := testutil.ToFloat64(w.deleted); got != 5 {
			t.Errorf("retention_statuses_deleted_total: got %v, want 5", got)
		}
	})
}

func TestTimesOf_BoundsRowsWithoutContent(t *testing.T) {
	const week = 7 * 24 * time.Hour
	for _, c := range []struct {
		facet source.Facet
		want  Times
	}{
		{source.DefaultFacet(), Times{0, week, week}},
		{source.Facet{KeepFor: time.Hour, FailedFor: 6 * time.Hour}, Times{time.Hour, time.Hour, 6 * time.Hour}},
		{source.Facet{NotFoundFor: 2 * week, FailedFor: 3 * week}, Times{0, 2 * week, 3 * week}},
	} {
		if got := TimesOf(c.facet); got != c.want {
			t.Errorf("%+v: got %+v, want %+v", c.facet, got, c.want)
		}
	}
}
