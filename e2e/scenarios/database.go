package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
)

// slowDatabase locks the snapshot tables for ten seconds. It judges that requests wait during the
// lock, and that no request is lost or recorded as failed. HIGH requests must be as fast after
// the lock as before it.
func slowDatabase(ctx context.Context, s *site, _ options) error {
	const rate, slow, known = 50, 10 * time.Second, 20
	l, err := s.startLanesWithoutWorker(ctx, onlySmall)
	if err != nil {
		return err
	}
	worker := target{name: "worker", role: "worker"}
	port, err := s.FreePort(ctx)
	if err != nil {
		return err
	}
	worker.address = net.JoinHostPort("127.0.0.1", port)
	if _, err := s.startTarget(ctx, worker); err != nil {
		return err
	}
	before, err := l.measureHigh(ctx, "before", rate, 5*time.Second)
	if err != nil {
		return err
	}
	if err := s.UntilCommitted(ctx, harness.Timeout); err != nil {
		return err
	}

	const inFlight = 100
	stored, unlock, err := l.lockDuringCalls(ctx, "under-", inFlight)
	if err != nil {
		return err
	}
	w := &slowDatabaseWatch{worker: worker.address}
	began := time.Now()
	var watched sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watched.Go(func() { w.untilOpen(watching) })
	// The requests are published directly to their topic: without the database, the query service
	// rejects reads of keys that are not in its cache.
	err = harness.AtRate(ctx, rate, slow, func(n int) {
		l.record(nil, s.Publish(ctx, l.client, small, schemas.High, fmt.Sprint("held-", n)))
		if n%10 == 0 { // with every tenth request, also read a key that the query service has cached
			began := time.Now()
			a, err := l.reader.Read(ctx, fmt.Sprint("before-", n/10%known), "")
			w.addRead(a, err, time.Since(began))
		}
	})
	if err != nil {
		return errors.Join(err, unlock())
	}
	lag, err := s.Lag(ctx, schemas.High)
	if err = errors.Join(err, l.failed, unlock()); err != nil {
		return err
	}
	unlocked := time.Now()
	asked := rate * int(slow.Seconds())
	for prefix, n := range map[string]int{"held-": asked, "under-": inFlight} {
		if err := s.UntilStored(ctx, 2*harness.Timeout, prefix, n); err != nil {
			return err
		}
	}
	if err := s.UntilCommitted(ctx, harness.Timeout); err != nil {
		return err
	}
	caughtUp := time.Since(unlocked)
	stop()
	watched.Wait()
	after, err := l.measureHigh(ctx, "after", rate, 5*time.Second)
	if err != nil {
		return err
	}

	all, err := s.Arrivals(ctx)
	if err != nil {
		return err
	}
	t := &table{}
	t.report("length of the table lock", "%s", formatDuration(unlocked.Sub(began)))
	t.judge("circuit breaker of the worker opened after", w.openedAfter(began), "<"+slow.String(), !w.opened.IsZero() && w.opened.Sub(began) < slow)
	t.judgeEqual("calls during the lock, for its "+strconv.Itoa(asked)+" requests", harness.CountCalls(all, "held-", began, unlocked), 0)
	t.judge(fmt.Sprintf("stored before the lock, of %d in-flight requests", inFlight), strconv.Itoa(stored), fmt.Sprintf("<%d", inFlight/2), stored < inFlight/2)
	unwritten := asked + inFlight - stored
	t.judge("records not committed at the end of the lock", strconv.FormatInt(lag, 10), fmt.Sprintf(">=%d", unwritten), lag >= int64(unwritten))
	t.judge("reads of cached keys, failed", fmt.Sprintf("%d, %d", w.reads, w.failed), "some, 0", w.reads > 0 && w.failed == 0)
	if w.err != nil {
		t.report("  the last failure", "%v", w.err)
	}
	t.judgeBelow("  latency of reads, p95", p95(w.took), time.Second)
	t.judgeBelow("time until all "+strconv.Itoa(asked+inFlight)+" are stored and committed", caughtUp, 10*time.Second)
	repeated := harness.CountCalls(all, "held-", began, time.Now()) - asked + harness.CountCalls(all, "under-", time.Time{}, time.Now()) - inFlight
	t.judgeEqual("repeated calls", repeated, 0)
	t.judgeBelow("HIGH latency before the lock, p95", p95(before), 3*time.Second)
	t.markTarget(highP95)
	t.judgeBelow("HIGH latency after the lock, p95", p95(after), 3*time.Second)
	t.markTarget(highP95)
	if err := l.judgeCrash(ctx, worker, t); err != nil {
		return err
	}
	if err := s.judgeLoss(ctx, t); err != nil {
		return err
	}
	s.addResult("slow-database", t)
	return nil
}

// lockDuringCalls sends n requests and locks the tables while their upstream calls are in flight.
// The worker has then looked up the entities, but cannot write the results. stored is the number of
// results that the worker wrote before the tables were locked.
func (l *lanes) lockDuringCalls(ctx context.Context, prefix string, n int) (stored int, unlock func() error, err error) {
	st, err := l.Stats(ctx)
	if err != nil {
		return 0, nil, err
	}
	before := st.Arrivals
	// With this latency the calls are still in flight when the lock begins.
	if err := l.SetLatency(ctx, 2*time.Second, 3*time.Second); err != nil {
		return 0, nil, err
	}
	if err := l.Publish(ctx, l.client, small, schemas.High, harness.Keys(prefix, n)...); err != nil {
		return 0, nil, err
	}
	if err := harness.Until(ctx, harness.Timeout, "the calls of the requests", func() (bool, error) {
		st, err := l.Stats(ctx)
		return st.Arrivals > before, err
	}); err != nil {
		return 0, nil, err
	}
	if stored, unlock, err = l.LockTables(ctx, prefix); err != nil {
		return 0, nil, err
	}
	return stored, unlock, l.SetLatency(ctx, 30*time.Millisecond, 1700*time.Millisecond)
}

// judgeCrash locks the tables while calls are in flight, and kills the worker. The worker cannot
// have written the results of these calls. judgeCrash judges that the next worker stores all
// results.
func (l *lanes) judgeCrash(ctx context.Context, worker target, t *table) error {
	// The pause is long enough for all calls to end. A worker that does not wait for the database
	// would commit offsets many times during the pause.
	const inFlight, pause = 100, 5 * time.Second
	stored, unlock, err := l.lockDuringCalls(ctx, "crash-", inFlight)
	if err != nil {
		return err
	}
	if err := harness.Pause(ctx, pause); err != nil {
		return errors.Join(err, unlock())
	}
	l.Latest(worker.name).Kill()
	if err := unlock(); err != nil {
		return err
	}
	if _, err := l.startTarget(ctx, worker); err != nil {
		return err
	}
	lost := l.UntilStored(ctx, harness.Timeout, "crash-", inFlight)
	n, err := l.Number(ctx, harness.StoredCount, "crash-")
	if err != nil {
		return err
	}
	t.judge("stored before a second lock, and after it with a killed worker", fmt.Sprintf("%d, %d", stored, n),
		fmt.Sprintf("<%d, =%d", inFlight/2, inFlight), lost == nil && stored < inFlight/2)
	return l.UntilCommitted(ctx, harness.Timeout)
}

// measureHigh reads missing keys, each with ?wait=20s. `rate` is the number of reads per second.
// measureHigh returns the time from each read until its snapshot was returned.
func (l *lanes) measureHigh(ctx context.Context, prefix string, rate int, length time.Duration) (took []time.Duration, err error) {
	var mu sync.Mutex
	err = harness.AtRate(ctx, rate, length, func(n int) {
		asked := time.Now()
		a, failed := l.reader.Read(ctx, fmt.Sprint(prefix, "-", n), "?wait=20s")
		mu.Lock()
		defer mu.Unlock()
		if failed == nil && a.Freshness != "FRESH" {
			failed = fmt.Errorf("read with a wait: got %d %s, want FRESH", a.Status, a.Freshness)
		}
		if took = append(took, time.Since(asked)); failed != nil {
			l.failed = failed
		}
	})
	return took, errors.Join(err, l.failed)
}

// slowDatabaseWatch records the reads while the snapshot tables are locked, and the time at which
// the worker's circuit breaker of the database opened.
type slowDatabaseWatch struct {
	worker        string    // address at which the worker serves its metrics
	opened        time.Time // time at which the metrics first showed that the circuit breaker was open
	mu            sync.Mutex
	reads, failed int
	err           error
	took          []time.Duration
}

func (w *slowDatabaseWatch) openedAfter(began time.Time) string {
	if w.opened.IsZero() {
		return "never"
	}
	return formatDuration(w.opened.Sub(began))
}

func (w *slowDatabaseWatch) addRead(a harness.Reply, err error, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	w.took = append(w.took, took)
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("%d %s", a.Status, a.Freshness)
	}
	if err != nil {
		w.failed++
		w.err = err
	}
}

// untilOpen polls the worker's metrics until the worker's circuit breaker of the database is open.
func (w *slowDatabaseWatch) untilOpen(ctx context.Context) {
	_ = harness.Poll(ctx, time.Hour, func() (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.worker+"/metrics", http.NoBody)
		if err != nil {
			return false, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false, nil // the worker does not respond; poll again
		}
		defer func() { _ = resp.Body.Close() }()
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			l := lines.Text()
			if strings.HasPrefix(l, "freshet_db_circuit_breaker_state{") && strings.Contains(l, `"HIGH"`) && !strings.HasSuffix(l, " 0") {
				w.opened = time.Now()
				return true, nil
			}
		}
		return false, nil
	})
}
