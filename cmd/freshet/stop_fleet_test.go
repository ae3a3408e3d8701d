package main

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"
)

// slowWork starts a worker whose upstream takes long, and has it send some calls.
func slowWork(t *testing.T, latency string, n int) (f *fleet, w *process, api string) {
	t.Helper()
	f = newFleet(t, false, "--latency", latency)
	w = f.worker()
	api = f.query()
	f.ask(api, characters("k", n), n)
	f.until(patience, "the calls", func() bool { return f.stats().Arrivals == n })
	return f, w, api
}

// asked asks the process to end, again and again if it is not to wait, and returns
// how long that took, and its code.
func (p *process) asked(t *testing.T, again bool) (took time.Duration, code int) {
	t.Helper()
	began, limit := time.Now(), time.After(patience)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		if n == 0 || again {
			_ = p.Process.Signal(syscall.SIGTERM)
		}
		select {
		case <-p.done:
			return time.Since(began), p.ProcessState.ExitCode()
		case <-tick.C:
		case <-limit:
			t.Fatalf("it does not end within %v", patience)
		}
	}
}

func aStopWaitsForTheAnswersAndLeavesNothingToRepeat(t *testing.T) {
	f, w, api := slowWork(t, "5s", 40)
	took, code := w.asked(t, false)
	t.Logf("ended after %v with %d; %d are stored", took.Round(10*time.Millisecond), code, f.one(storedPayloads))
	if code != 0 || f.one(storedPayloads) != 40 || f.behind() != 0 {
		t.Errorf("it ended with %d, %d of 40 are stored, %d records are not committed", code, f.one(storedPayloads), f.behind())
	}
	if groups, err := f.admin.DescribeGroups(t.Context(), f.source+".high-worker"); err != nil || len(groups[f.source+".high-worker"].Members) > 0 {
		t.Errorf("the group still has %+v, %v", groups, err)
	}
	f.worker()
	f.ask(api, characters("other", 1), 1)
	f.until(patience, "another worker's work", func() bool { return f.one(storedPayloads) == 41 })
	if n := f.stats().Arrivals; n != 41 {
		t.Errorf("%d calls for 41 entities", n)
	}
}

func aSecondSignalEndsAtOnceAndItsRecordsAreReadAgain(t *testing.T) {
	f, w, _ := slowWork(t, "5s", 40)
	took, code := w.asked(t, true)
	t.Logf("ended after %v with %d; %d are stored", took.Round(10*time.Millisecond), code, f.one(storedPayloads))
	if code == 0 || took > 3*time.Second {
		t.Errorf("it ended with %d after %v", code, took)
	}
	began := time.Now()
	f.worker()
	f.until(time.Minute, "all of it by another", func() bool { return f.one(storedPayloads) == 40 && f.behind() == 0 })
	t.Logf("another had done it %v later, with %d calls in all", time.Since(began).Round(time.Second), f.stats().Arrivals)
	if n := f.stats().Arrivals; n > 80 {
		t.Errorf("%d calls for 40 entities, each of which was under way once", n)
	}
}

func TestAPartThatIsStoppedAsItStartsIsNoFailure(t *testing.T) {
	g := newGroup(t.Context())
	g.run(func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("ask Redis for its settings: %w", ctx.Err())
	})
	if err := g.stop(); err != nil {
		t.Errorf("stopped with %v", err)
	}
}
