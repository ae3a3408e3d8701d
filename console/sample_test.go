package console

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/servicetest"
)

// blockView makes each read of the limiter block until the test sends a view to the returned
// channel.
func (r *rig) blockView() (answer chan limiter.View) {
	answer = make(chan limiter.View)
	r.view = func(string) limiter.View { return <-answer }
	return answer
}

func onlyNexon(n *Deps) { n.Sources = []string{"nexon"} }

func TestSample_OutlivesItsFirstReader(t *testing.T) {
	r := newRig(t, onlyNexon)
	answer := r.blockView()
	ctx, leave := context.WithCancel(t.Context())
	leave()
	// Each call of latest returns at once, because ctx has ended. The read of the sample, which the
	// first call started, must continue.
	for range 3 {
		if n := r.sampler.latest(ctx); n.Sources["nexon"].Limits != nil || n.Sources["nexon"].OpenDeadLetters != -1 {
			t.Fatalf("sample of nexon: got %+v, want no limits and -1 open dead letters", n.Sources["nexon"])
		}
	}
	answer <- testView("nexon", 0)
	var n *sample
	servicetest.WaitFor(t, 30*time.Second, "the read of the sample ends although its caller has left", func() bool {
		n, _, _ = r.sampler.samples.Get(ctx, time.Hour)
		return n != nil
	})
	if r.viewCallCount() != 1 || n.Sources["nexon"].Limits == nil || n.Sources["nexon"].OpenDeadLetters != 0 {
		t.Errorf("sample of nexon: got %d limiter reads and %+v, want 1 read, limits and 0 open dead letters",
			r.viewCallCount(), n.Sources["nexon"])
	}
}

func TestSample_ReturnsPreviousOnTimeout(t *testing.T) {
	now := testNow
	r := newRig(t, onlyNexon, func(n *Deps) { n.Clock = func() time.Time { return now } })
	r.sampler.latest(t.Context())
	now = testNow.Add(40 * time.Second)
	answer := r.blockView()
	ctx, leave := context.WithCancel(t.Context())
	leave()
	n := r.sampler.latest(ctx)
	if !n.At.Equal(testNow) || n.Sources["nexon"].Limits == nil {
		t.Errorf("sample: got %+v, want the time %v and limits of nexon", n, testNow)
	}
	page := livePage{liveStatus: r.statusOf(n, r.Sources), Sources: r.Sources}
	if page.asOf() != "12:00:30 UTC" {
		t.Errorf("time of the page: got %s, want 12:00:30 UTC", page.asOf())
	}
	answer <- testView("nexon", 0)
}

func TestSample_HasTheTimeOfItsEnd(t *testing.T) {
	var late atomic.Bool
	r := newRig(t, onlyNexon, func(n *Deps) {
		n.Clock = func() time.Time {
			if late.Load() {
				return testNow.Add(2 * time.Second)
			}
			return testNow
		}
	})
	r.view = func(string) limiter.View {
		late.Store(true)
		return testView("nexon", 0)
	}
	if n := r.sampler.latest(t.Context()); !n.At.Equal(testNow.Add(2 * time.Second)) {
		t.Errorf("got the time %v, want %v", n.At, testNow.Add(2*time.Second))
	}
}

func TestSample_RecoversPanic(t *testing.T) {
	r := newRig(t, onlyNexon)
	r.view = func(string) limiter.View { panic("a bug") }
	if d := r.get(root); d.status != 200 {
		t.Errorf("got status %d, want 200", d.status)
	}
}

func TestSample_UncountedDeadLettersAreUnknown(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	if n := r.sampler.latest(t.Context()); n.Sources["nexon"].OpenDeadLetters != 12_268 || n.Sources["github"].OpenDeadLetters != 0 {
		t.Errorf("open dead letters: got %d and %d, want 12268 and 0",
			n.Sources["nexon"].OpenDeadLetters, n.Sources["github"].OpenDeadLetters)
	}
	r = withNewConsole(r)
	r.readErr = errBroken
	if n := r.sampler.latest(t.Context()); n.Sources["nexon"].OpenDeadLetters != -1 {
		t.Errorf("open dead letters: got %d, want -1", n.Sources["nexon"].OpenDeadLetters)
	}
}

func TestReads_NamesProcessAndPeriod(t *testing.T) {
	if text := newRig(t).get(root).text(); !strings.Contains(text, "Reads of query-1 in the last 5 min") {
		t.Errorf("got %s, want %q in it", text, "Reads of query-1 in the last 5 min")
	}
}
