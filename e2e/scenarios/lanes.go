package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
)

// What the preset's quota gives: of 450 calls a second LOW may have 350.
const (
	totalRate = 450
	lowRate   = 350
	// minShare is the part of a rate that counts as used up: the machine is shared
	// with what is judged.
	minShare = 0.97
	// warmUp is how long a limiter that has just begun may take to its full rate.
	warmUp = 4 * time.Second
)

// lanes is an installation with one worker and one query process, whose lanes are
// asked for so much.
type lanes struct {
	*site
	reader        harness.Reader
	client        *kgo.Client
	mu            sync.Mutex
	enqueuedAt    map[string]time.Time // when each key was
	ask           func(ctx context.Context, key string)
	highLatencies []time.Duration // until each was stored and read, of those that were awaited
	failed        error
}

func (s *site) startLanes(ctx context.Context, facets map[string]string) (*lanes, error) {
	l, err := s.startLanesWithoutWorker(ctx, facets)
	if err == nil {
		_, err = s.Worker(ctx, "worker")
	}
	return l, err
}

// startLanesWithoutWorker is lanes without the worker.
func (s *site) startLanesWithoutWorker(ctx context.Context, facets map[string]string) (*lanes, error) {
	// At 350 a second a day's 20 million last for 16 hours, so the day holds LOW below
	// that for most of its time. Here the second is judged.
	s.Edits = []string{"limit: 20000000,", "limit: 200000000,"}
	if err := s.Prepare(ctx, facets, "--latency", "30ms-1.7s"); err != nil {
		return nil, err
	}
	readers, err := s.Readers(ctx, 1, small, "")
	if err != nil {
		return nil, err
	}
	client, err := s.ConnectKafka()
	if err != nil {
		return nil, err
	}
	s.OnClose(client.Close)
	l := &lanes{site: s, reader: readers[0], client: client, enqueuedAt: map[string]time.Time{}}
	l.ask = l.enqueueHigh
	return l, nil
}

// enqueueLow asks for keys in the LOW lane.
func (l *lanes) enqueueLow(ctx context.Context, keys ...string) {
	l.record(keys, nil)
	l.record(nil, l.Publish(ctx, l.client, small, schemas.Low, keys...))
}

// enqueueHigh asks for one in the HIGH lane, as a reader of what is missing does.
func (l *lanes) enqueueHigh(ctx context.Context, key string) {
	now := time.Now()
	_, err := l.reader.Queue(ctx, key)
	l.record(nil, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueuedAt[key] = now
}

// readHigh is high, and waits for the snapshot; how long counts from a time on.
func (l *lanes) readHigh(ctx context.Context, key string, from time.Time) {
	now := time.Now()
	l.record([]string{key}, nil)
	a, err := l.reader.Read(ctx, key, "?wait=20s")
	if err == nil && a.Freshness != "FRESH" {
		err = fmt.Errorf("HIGH is not stored: %s is %d %s", key, a.Status, a.Freshness)
	}
	l.record(nil, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.After(from) {
		l.highLatencies = append(l.highLatencies, time.Since(now))
	}
}

func (l *lanes) record(keys []string, err error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		l.enqueuedAt[key] = now
	}
	if err != nil {
		l.failed = err
	}
}

// runLoad asks in both lanes at rates for some time; 0 asks nothing. The keys of each
// phase have a name of their own.
func (l *lanes) runLoad(ctx context.Context, phase string, high, low int, length time.Duration) error {
	var under sync.WaitGroup
	var errLow error
	under.Go(func() {
		const atOnce = 20 // as a scheduler asks, which has many to ask for
		errLow = harness.AtRate(ctx, low/atOnce, length, func(n int) { l.enqueueLow(ctx, harness.Keys(fmt.Sprint("low-", phase, "-", n, "-"), atOnce)...) })
	})
	err := harness.AtRate(ctx, high, length, func(n int) { l.ask(ctx, fmt.Sprint("high-", phase, "-", n)) })
	under.Wait()
	if err == nil {
		err = errLow
	}
	if err == nil {
		err = l.failed
	}
	return err
}

// callDelays returns how long calls for keys that begin so came after they were asked for,
// of those in a time.
func (l *lanes) callDelays(all []harness.Arrival, prefix string, from, to time.Time) (took []time.Duration) {
	for _, a := range all {
		if at, ok := l.enqueuedAt[a.Key]; ok && strings.HasPrefix(a.Key, prefix) && !a.At.Before(from) && a.At.Before(to) {
			took = append(took, max(0, a.At.Sub(at)))
		}
	}
	return took
}

// lagAt is how far a lane is behind at a moment: how long 95 of 100 of its last
// calls have waited, or the longest wait of a request that has not been called.
func (l *lanes) lagAt(all []harness.Arrival, prefix string, at time.Time) time.Duration {
	called := map[string]bool{}
	for _, a := range all {
		if a.At.Before(at) {
			called[a.Key] = true
		}
	}
	longest := p95(l.callDelays(all, prefix, at.Add(-2*time.Second), at))
	for key, asked := range l.enqueuedAt {
		if strings.HasPrefix(key, prefix) && !called[key] {
			longest = max(longest, at.Sub(asked))
		}
	}
	return longest
}

// untilLowFlows waits until a backlog of LOW is called as often as it may be.
func (l *lanes) untilLowFlows(ctx context.Context, backlog int) error {
	l.enqueueLow(ctx, harness.Keys("low-backlog-", backlog)...)
	if err := harness.Until(ctx, harness.Timeout, "the upstream is called", func() (bool, error) {
		st, err := l.Stats(ctx)
		return st.Arrivals > 0, err
	}); err != nil {
		return err
	}
	if err := harness.Pause(ctx, warmUp); err != nil {
		return err
	}
	return l.failed
}

// judgeRate judges how often calls were made for keys that begin so, between parts of
// a rate.
func (t *table) judgeRate(what string, all []harness.Arrival, prefix string, from, to time.Time, least, most float64) {
	rate := perSecond(harness.CountCalls(all, prefix, from, to), to.Sub(from))
	limit := fmt.Sprintf(">=%.0f/s", least)
	if most > 0 {
		limit = fmt.Sprintf("%.0f to %.0f/s", least, most)
	}
	t.judge(what, fmt.Sprintf("%.1f/s", rate), limit, rate >= least && (most == 0 || rate <= most))
}

// judgeEnd judges the contract, and returns the calls.
func (l *lanes) judgeEnd(ctx context.Context, t *table) ([]harness.Arrival, error) {
	st, err := l.Stats(ctx)
	if err != nil {
		return nil, err
	}
	t.judgeContract(st)
	return l.Arrivals(ctx)
}

// judgeEndWithBacklog is finish where LOW has had more to do than it may, until the end.
func (l *lanes) judgeEndWithBacklog(ctx context.Context, t *table) ([]harness.Arrival, error) {
	left, err := l.Lag(ctx, schemas.Low)
	if err != nil {
		return nil, err
	}
	t.judge("LOW requests that wait at the end", strconv.FormatInt(left, 10), "some", left > 0)
	return l.judgeEnd(ctx, t)
}

// lowAlone: however much LOW asks for, and nobody else anything, it stays at its rate.
func lowAlone(ctx context.Context, s *site, o options) error {
	length := time.Duration(o.seconds) * time.Second
	l, err := s.startLanes(ctx, onlySmall)
	if err != nil {
		return err
	}
	if err := l.untilLowFlows(ctx, int((warmUp+length).Seconds()+4)*totalRate); err != nil {
		return err
	}
	from := time.Now()
	if err := harness.Pause(ctx, length); err != nil {
		return err
	}
	to, t := time.Now(), &table{}
	all, err := l.judgeEndWithBacklog(ctx, t)
	if err != nil {
		return err
	}
	t.judgeRate("calls of LOW alone", all, "low-", from, to, minShare*lowRate, 1.01*lowRate)
	most := harness.MaxInSecond(all, from, to)
	// The rate is 350 in the long run; a second may begin with what the one before has left.
	t.judge("  most in a sliding second", strconv.Itoa(most), "<=385, a tenth above the 350", most <= 385)
	s.addResult("low-alone", t)
	return nil
}

// peak: both lanes ask for more than there is; all of it is used, exactly, and HIGH
// does not wait.
func peak(ctx context.Context, s *site, o options) error {
	const high, low = 200, 300
	length := time.Duration(o.seconds) * time.Second
	l, err := s.startLanes(ctx, onlySmall)
	if err != nil {
		return err
	}
	began := time.Now()
	l.ask = func(ctx context.Context, key string) { l.readHigh(ctx, key, began.Add(warmUp)) }
	if err := l.runLoad(ctx, "peak", high, low, warmUp+length); err != nil {
		return err
	}
	from, to, t := began.Add(warmUp), began.Add(warmUp+length), &table{}
	all, err := l.judgeEnd(ctx, t)
	if err != nil {
		return err
	}
	t.markTarget(contract)
	t.judgeRate("calls", all, "", from, to, minShare*totalRate, 1.01*totalRate)
	// Who was behind when it began makes up for it, at the other's cost.
	t.judgeRate("  of HIGH, which asks for 200/s", all, "high-", from, to, minShare*high, 1.1*high)
	t.judgeRate("  of LOW, which asks for 300/s and gets what is left", all, "low-", from, to, 0.9*(totalRate-high), 1.1*(totalRate-high))
	t.judgeBelow("HIGH waits for its call, 95 of 100", p95(l.callDelays(all, "high-", from, to)), time.Second)
	t.judgeBelow("HIGH at the peak, from asked to stored and read, 95 of 100", p95(l.highLatencies), 3*time.Second)
	t.markTarget(highP95)
	// LOW gets what HIGH leaves, so it falls behind for as long as the peak lasts.
	lag := l.lagAt(all, "low-", to)
	minutes := lag.Minutes() * time.Hour.Seconds() / (warmUp + length).Seconds()
	t.judge("LOW is behind", fmt.Sprintf("%s at the end, so %.0f min after an hour of peak, extrapolated from %v", formatDuration(lag), minutes, warmUp+length),
		"<30 min after an hour of peak", minutes < 30)
	t.markTarget(lowLag)
	s.addResult("peak", t)
	return nil
}

// bothBuckets: while LOW is refused for its own cap, none of the common permits is
// lost on it: HIGH gets all that LOW may not have.
func bothBuckets(ctx context.Context, s *site, o options) error {
	length := time.Duration(o.seconds) * time.Second / 2
	l, err := s.startLanes(ctx, onlySmall)
	if err != nil {
		return err
	}
	if err := l.untilLowFlows(ctx, int((warmUp+2*length).Seconds()+6)*totalRate); err != nil {
		return err
	}
	alone := time.Now()
	if err := harness.Pause(ctx, length); err != nil {
		return err
	}
	with := time.Now()
	if err := l.runLoad(ctx, "share", totalRate-lowRate, 0, length); err != nil {
		return err
	}
	end, t := time.Now(), &table{}
	all, err := l.judgeEndWithBacklog(ctx, t)
	if err != nil {
		return err
	}
	t.judgeRate("calls of LOW alone, its cap used up", all, "low-", alone, with, minShare*lowRate, 1.01*lowRate)
	from := with.Add(time.Second) // until the first of HIGH are on their way
	t.judgeRate("calls of HIGH beside it, which asks for 100/s", all, "high-", from, end, minShare*(totalRate-lowRate), 0)
	t.judgeRate("calls of both", all, "", from, end, minShare*totalRate, 1.01*totalRate)
	t.judgeBelow("HIGH waits for its call, 95 of 100", p95(l.callDelays(all, "high-", from, end)), time.Second)
	s.addResult("two-buckets", t)
	return nil
}
