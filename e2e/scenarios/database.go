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

// slowDatabase: for ten seconds the database answers nothing that reads or writes
// snapshots. What is asked for meanwhile is held, nothing is lost or counted as a
// failure, and afterwards HIGH is as quick as before.
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

	const under = 100
	stored, unlock, err := l.lockDuringCalls(ctx, "under-", under)
	if err != nil {
		return err
	}
	w := &slowDatabaseWatch{worker: worker.address}
	began := time.Now()
	var watched sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watched.Go(func() { w.untilOpen(watching) })
	// Past the query service, which accepts nothing that it can't look up.
	err = harness.AtRate(ctx, rate, slow, func(n int) {
		l.record(nil, s.Publish(ctx, l.client, small, schemas.High, fmt.Sprint("held-", n)))
		if n%10 == 0 { // what is in memory is served
			began := time.Now()
			a, err := l.reader.Read(ctx, fmt.Sprint("before-", n/10%known), "")
			w.addRead(a, err, time.Since(began))
		}
	})
	if err != nil {
		return errors.Join(err, unlock())
	}
	waiting, err := s.Lag(ctx, schemas.High)
	if err = errors.Join(err, l.failed, unlock()); err != nil {
		return err
	}
	unlocked := time.Now()
	asked := rate * int(slow.Seconds())
	for prefix, n := range map[string]int{"held-": asked, "under-": under} {
		if err := s.UntilStored(ctx, 2*harness.Timeout, prefix, n); err != nil {
			return err
		}
	}
	if err := s.UntilCommitted(ctx, harness.Timeout); err != nil {
		return err
	}
	caught := time.Since(unlocked)
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
	t.report("the database did not answer for", "%s", formatDuration(unlocked.Sub(began)))
	t.judge("the worker's breaker opens, as it says itself, after", w.openedAfter(began), "<"+slow.String(), !w.opened.IsZero() && w.opened.Sub(began) < slow)
	t.judgeEqual("calls for the "+strconv.Itoa(asked)+" requests of that time, while it lasts: HIGH is held", harness.CountCalls(all, "held-", began, unlocked), 0)
	t.judge(fmt.Sprintf("of %d requests that are called when it begins, stored", under), strconv.Itoa(stored), fmt.Sprintf("<%d", under/2), stored < under/2)
	unwritten := asked + under - stored
	t.judge("requests that are not written and not committed at its end", strconv.FormatInt(waiting, 10), fmt.Sprintf(">=%d", unwritten), waiting >= int64(unwritten))
	t.judge("reads of what is in memory, failed", fmt.Sprintf("%d, %d", w.reads, w.failed), "some, 0", w.reads > 0 && w.failed == 0)
	if w.err != nil {
		t.report("  the last of them", "%v", w.err)
	}
	t.judgeBelow("  95 of 100, none of which waits for the database", p95(w.took), time.Second)
	t.judgeBelow("all "+strconv.Itoa(asked+under)+" stored and committed after its end in", caught, 10*time.Second)
	again := harness.CountCalls(all, "held-", began, time.Now()) - asked + harness.CountCalls(all, "under-", time.Time{}, time.Now()) - under
	t.judgeEqual("calls made twice", again, 0)
	t.judgeBelow("HIGH before the outage, from asked to stored, 95 of 100", p95(before), 3*time.Second)
	t.markTarget(highP95)
	t.judgeBelow("HIGH after the outage, from asked to stored, 95 of 100", p95(after), 3*time.Second)
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

// lockDuringCalls has the database answer nothing while requests are called: they have
// been looked up and are not written. It says how many of them were nevertheless.
func (l *lanes) lockDuringCalls(ctx context.Context, prefix string, n int) (stored int, unlock func() error, err error) {
	st, err := l.Stats(ctx)
	if err != nil {
		return 0, nil, err
	}
	before := st.Arrivals
	// They take so long that they are under way when it begins.
	if err := l.SetLatency(ctx, 2*time.Second, 3*time.Second); err != nil {
		return 0, nil, err
	}
	if err := l.Publish(ctx, l.client, small, schemas.High, harness.Keys(prefix, n)...); err != nil {
		return 0, nil, err
	}
	if err := harness.Until(ctx, harness.Timeout, "they are called", func() (bool, error) {
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

// judgeCrash: the worker is killed (SIGKILL) while it can't write what it has
// fetched. Its successor does it all.
func (l *lanes) judgeCrash(ctx context.Context, worker target, t *table) error {
	const under, commits = 100, 5 * time.Second // in which a worker commits many times, and all are answered
	stored, unlock, err := l.lockDuringCalls(ctx, "crash-", under)
	if err != nil {
		return err
	}
	if err := harness.Pause(ctx, commits); err != nil {
		return errors.Join(err, unlock())
	}
	l.Latest(worker.name).Kill()
	if err := unlock(); err != nil {
		return err
	}
	if _, err := l.startTarget(ctx, worker); err != nil {
		return err
	}
	lost := l.UntilStored(ctx, harness.Timeout, "crash-", under)
	n, err := l.Number(ctx, harness.StoredCount, "crash-")
	if err != nil {
		return err
	}
	t.judge("stored before another outage, of as many, and after it and a SIGKILL in it", fmt.Sprintf("%d, %d", stored, n),
		fmt.Sprintf("<%d, =%d", under/2, under), lost == nil && stored < under/2)
	return l.UntilCommitted(ctx, harness.Timeout)
}

// measureHigh asks in HIGH at a rate, and returns how long each took until it was stored.
func (l *lanes) measureHigh(ctx context.Context, prefix string, rate int, length time.Duration) (took []time.Duration, err error) {
	var mu sync.Mutex
	err = harness.AtRate(ctx, rate, length, func(n int) {
		asked := time.Now()
		a, failed := l.reader.Read(ctx, fmt.Sprint(prefix, "-", n), "?wait=20s")
		mu.Lock()
		defer mu.Unlock()
		if failed == nil && a.Freshness != "FRESH" {
			failed = fmt.Errorf("HIGH is not stored: %d %s", a.Status, a.Freshness)
		}
		if took = append(took, time.Since(asked)); failed != nil {
			l.failed = failed
		}
	})
	return took, errors.Join(err, l.failed)
}

// slowDatabaseWatch is what is seen meanwhile.
type slowDatabaseWatch struct {
	worker        string    // where it tells of itself
	opened        time.Time // its breaker
	mu            sync.Mutex
	reads, failed int
	err           error
	took          []time.Duration
}

func (w *slowDatabaseWatch) openedAfter(began time.Time) string {
	if w.opened.IsZero() {
		return "not at all"
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

// untilOpen asks the worker for the state of its breaker, which nobody else knows.
func (w *slowDatabaseWatch) untilOpen(ctx context.Context) {
	_ = harness.Poll(ctx, time.Hour, func() (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.worker+"/metrics", http.NoBody)
		if err != nil {
			return false, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false, nil // the next look tells
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
