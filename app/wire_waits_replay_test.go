package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/topics"
)

// replay is a source with a quota, its HIGH topic and one worker, on the virtual clock. The worker
// calls in the order of the records, as often as the quota allows, and commits every 500 ms. The
// sampler and the estimator are the real ones. The limiter's state is computed from the calls.
type replay struct {
	*testing.T
	quota   limiter.Quota
	sampler *topics.Sampler
	waits   *waits

	mu        sync.Mutex          // guards calls and down, which the reader of the limiter's state reads too
	queue     []int64             // numbers of the records that wait
	fetchedAt map[int64]time.Time // when each waiting record was fetched, by the number of the record
	calls     []time.Time
	produced  int64
	committed int64
	down      bool      // true: the breaker is open, so the worker sends no call
	next      time.Time // when the next sample is taken
	number    int64
}

const replayRate = 10 // quota of the source, in calls a second

func newReplay(t *testing.T) *replay {
	t.Helper()
	quota, err := limiter.NewQuota(limiter.Config{Policies: []limiter.Policy{{Name: "second", Limit: replayRate, Window: limiter.Window(time.Second)}}})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	r := &replay{
		T: t, quota: quota, fetchedAt: map[int64]time.Time{}, next: time.Now().Add(1700 * time.Millisecond),
		sampler: topics.NewSampler(nil, []string{"api"}, log, prometheus.NewRegistry()),
	}
	read := func(context.Context, string) (limiter.WaitEstimate, error) { return quota.EstimateWait(r.view()), nil }
	r.waits = newWaits(r.sampler, map[string]float64{"api": 1}, read, log)
	go func() { _ = r.waits.Run(t.Context()) }()
	synctest.Wait()
	return r
}

// view returns the limiter's state, computed from the calls.
func (r *replay) view() limiter.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := limiter.View{State: limiter.StateFlowing, At: time.Now(), RampRatio: 1, Policies: []limiter.PolicyView{
		{Name: "second", Window: "1s", Limit: replayRate, Remaining: int64(replayRate - r.used())},
	}}
	if r.down {
		probe := v.At.Add(3 * time.Second)
		v.State, v.Until, v.Policies[0].Remaining = limiter.StateBreakerOpen, &probe, 0
	}
	return v
}

// setDown opens or closes the breaker.
func (r *replay) setDown(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

// used returns the number of calls in the last window. The caller holds r.mu.
func (r *replay) used() (n int) {
	for _, at := range r.calls {
		if time.Since(at) < 1050*time.Millisecond {
			n++
		}
	}
	return n
}

// run lets the virtual time pass.
func (r *replay) run(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		now := time.Now()
		r.mu.Lock()
		for !r.down && len(r.queue) > 0 && r.used() < replayRate {
			r.fetchedAt[r.queue[0]] = now
			r.queue, r.calls = r.queue[1:], append(r.calls, now)
		}
		r.mu.Unlock()
		if now.UnixMilli()%500 == 0 {
			r.committed = r.produced - int64(len(r.queue))
		}
		if !now.Before(r.next) {
			r.sampler.Record(now, []topics.Lag{{Source: "api", Lane: schemas.High, Topic: "t", Group: "g", Records: r.produced - r.committed, Committed: r.committed}})
			r.next = now.Add(5 * time.Second)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
	}
}

// publish publishes update requests of new keys, and returns their numbers.
func (r *replay) publish(n int) (numbers []int64) {
	for range n {
		r.number = max(r.number+1, time.Now().UnixMilli())
		numbers, r.queue = append(numbers, r.number), append(r.queue, r.number)
		r.produced++
	}
	r.waits.published("api", n)
	return numbers
}

// answer is the estimated wait in the response to one read.
type answer struct {
	name     string
	number   int64
	at       time.Time
	estimate time.Duration
}

// read returns the estimate for the record with this number.
func (r *replay) read(name string, number int64) answer {
	r.Helper()
	estimate, _, known := r.waits.EstimateWait("api", number)
	if !known {
		r.Errorf("%s: got no estimate, want one", name)
	}
	return answer{name, number, time.Now(), estimate}
}

// judge fails the test if an estimate is wrong by more than a factor of two and by more than 1 s.
func (r *replay) judge(answers []answer) {
	r.Helper()
	for _, a := range answers {
		fetched, ok := r.fetchedAt[a.number]
		if !ok {
			r.Errorf("%s: the record was not fetched", a.name)
			continue
		}
		want := fetched.Sub(a.at)
		off := max(a.estimate-want, want-a.estimate)
		if off > time.Second && (a.estimate > 2*want || 2*a.estimate < want) {
			r.Errorf("%s: got an estimate of %v, want %v", a.name, a.estimate, want)
		}
	}
}

// flood publishes 150 requests within 750 ms, reads some of them again while they wait, and judges the
// answers.
func (r *replay) flood() {
	r.Helper()
	var all []int64
	for len(all) < 150 {
		all = append(all, r.publish(2)...)
		r.run(10 * time.Millisecond)
	}
	answers := []answer{r.read("the last of 150, at once", all[149])}
	began := time.Now()
	for _, after := range []time.Duration{300 * time.Millisecond, 2 * time.Second, 4 * time.Second, 6 * time.Second, 9 * time.Second, 12 * time.Second} {
		r.run(time.Until(began.Add(after)))
		for _, i := range []int{30, 90, 149} {
			if _, fetched := r.fetchedAt[all[i]]; !fetched {
				answers = append(answers, r.read(fmt.Sprintf("record %d after %v", i, after), all[i]))
			}
		}
		one := r.publish(1)
		answers = append(answers, r.read(fmt.Sprintf("a new record after %v", after), one[0]))
	}
	r.run(30 * time.Second)
	r.judge(answers)
}

// Clients request many more refreshes than a source with 10 calls a second can process. Each estimated
// wait must differ from the real wait by at most a factor of two, or by at most one second.
func TestWaits_ReplayFloodsWithTrueEstimates(t *testing.T) {
	t.Run("after an idle minute", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newReplay(t)
			r.publish(15)
			r.run(time.Minute)
			r.flood()
		})
	})
	t.Run("after the start", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newReplay(t)
			r.run(2 * time.Second)
			r.publish(1)
			r.run(35 * time.Second)
			r.flood()
		})
	})
	t.Run("after an outage", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newReplay(t)
			r.publish(15)
			r.run(10 * time.Second)
			waiting := r.publish(60)
			r.run(time.Second)
			r.setDown(true)
			r.run(6 * time.Second)
			if wait, _, known := r.waits.EstimateWait("api", waiting[59]); known {
				t.Errorf("got an estimate of %v while the breaker is open, want none", wait)
			}
			r.run(40 * time.Second)
			r.setDown(false)
			r.run(5 * time.Second) // run until the limiter has been read again
			r.judge([]answer{r.read("during the outage", waiting[59])})
			r.flood()
		})
	})
}
