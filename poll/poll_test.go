package poll

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/servicetest"
)

const waitTimeout = time.Minute

// runPoller runs a poller and returns it. The returned channel receives the time of each call of
// the function `work`.
func runPoller(t *testing.T, rdb redis.UniversalClient, log *slog.Logger, work func(time.Time) (time.Time, error)) (*Poller, <-chan time.Time) {
	t.Helper()
	calls := make(chan time.Time, 1000)
	l := New("due:test", rdb, log, observe.Condition{Failing: "work failing", Recovered: "work recovered"})
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Run(ctx, time.Hour, func(_ context.Context, now time.Time) (time.Time, error) {
			next, err := work(now)
			calls <- now
			return next, err
		}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	return l, calls
}

func nextCall(t *testing.T, calls <-chan time.Time) time.Time {
	t.Helper()
	select {
	case at := <-calls:
		return at
	case <-time.After(waitTimeout):
		t.Fatal("work was not called")
		return time.Time{}
	}
}

// awaitSubscribed waits for two calls of the poller's function: the first one, and the one after
// the poller has subscribed to Redis.
func awaitSubscribed(t *testing.T, calls <-chan time.Time) {
	t.Helper()
	nextCall(t, calls)
	nextCall(t, calls)
}

func TestPoller_WorksAtDueTimesAndWakeUps(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	next := make(chan time.Time, 10)
	_, calls := runPoller(t, rdb, slog.New(slog.DiscardHandler), func(time.Time) (time.Time, error) {
		select {
		case at := <-next:
			return at, nil
		default:
			return time.Time{}, nil
		}
	})
	awaitSubscribed(t, calls)
	soon := time.Now().Add(200 * time.Millisecond)
	next <- soon
	WakeAt(t.Context(), rdb, "due:test", time.Now(), slog.New(slog.DiscardHandler)) // wake the poller over Redis, as another process would
	nextCall(t, calls)
	if at := nextCall(t, calls); at.Before(soon.Truncate(time.Millisecond)) {
		t.Errorf("work was called %v too early", soon.Sub(at))
	}
}

func TestPoller_LocalWakeUpNeedsNoRedis(t *testing.T) {
	rdb, server := servicetest.MiniRedis(t)
	l, calls := runPoller(t, rdb, slog.New(slog.DiscardHandler), func(time.Time) (time.Time, error) { return time.Time{}, nil })
	awaitSubscribed(t, calls)
	server.Close()
	late, early := time.Now().Add(time.Hour), time.Now().Add(50*time.Millisecond)
	l.WakeAt(t.Context(), late)
	l.WakeAt(t.Context(), early) // the poller must wake at the earlier of the two times
	for nextCall(t, calls).Before(early.Truncate(time.Millisecond)) {
	}
}

func TestPoller_RetriesFailedWorkAndLogsOnce(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	var mu sync.Mutex
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(writer(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return text.Write(b)
	}), nil))
	n := 0
	_, calls := runPoller(t, rdb, log, func(time.Time) (time.Time, error) {
		if n++; n < 6 {
			return time.Time{}, errors.New("not now")
		}
		return time.Time{}, nil
	})
	for range 6 { // the pause after the last failure is 1.6 s; a recovery is logged only after 1 s without a failure
		nextCall(t, calls)
	}
	nextCall(t, calls) // the poller calls its function once more when it has subscribed to Redis
	mu.Lock()
	defer mu.Unlock()
	if got := text.String(); strings.Count(got, "work failing") != 1 || strings.Count(got, "work recovered") != 1 {
		t.Errorf("log: got\n%s", got)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

func TestEnqueueAll_RepeatsLeftElements(t *testing.T) {
	tries := 0
	ask := func(_ context.Context, some []int) []int { tries++; return some[:len(some)-1] }
	if left := EnqueueAll(t.Context(), []int{1, 2, 3}, func() bool { return true }, ask); len(left) != 0 || tries != 3 {
		t.Errorf("left: got %v after %d calls, want none", left, tries)
	}
	if left := EnqueueAll(t.Context(), []int{1, 2, 3}, func() bool { return false }, ask); len(left) != 2 {
		t.Errorf("left after one allowed call: got %v", left)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if left := EnqueueAll(ended, []int{1, 2, 3}, func() bool { return true }, ask); len(left) != 2 {
		t.Errorf("left after the context ended: got %v", left)
	}
}

func TestEvery_CallsAtEachIntervalUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		began := time.Now()
		var at []time.Duration
		Every(ctx, time.Second, func(context.Context) { at = append(at, time.Since(began)) })
		if want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("calls: got %v, want %v", at, want)
		}
		if took := time.Since(began); took != 3500*time.Millisecond {
			t.Errorf("end: got %v, want 3.5s", took)
		}
	})
}
