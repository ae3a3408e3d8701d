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

// These constants are the rates of the preset's quota, in calls per second. LOW may use 350 of 450.
const (
	totalRate = 450
	lowRate   = 350
	// minShare is the part of an expected call rate that the measured rate must reach. It is
	// below 1 because other processes use the same machine.
	minShare = 0.97
	// warmUp is how long a new limiter may take to reach its full rate.
	warmUp = 4 * time.Second
)

// lanes is an installation with one worker and one query service. It records when each request was
// sent.
type lanes struct {
	*site
	reader        harness.Reader
	client        *kgo.Client
	mu            sync.Mutex
	enqueuedAt    map[string]time.Time // time at which each key was requested
	ask           func(ctx context.Context, key string)
	highLatencies []time.Duration // latencies of the reads by readHigh, until the snapshot was stored and returned
	failed        error
}

func (s *site) startLanes(ctx context.Context, facets map[string]string) (*lanes, error) {
	l, err := s.startLanesWithoutWorker(ctx, facets)
	if err == nil {
		_, err = s.Worker(ctx, "worker")
	}
	return l, err
}

// startLanesWithoutWorker starts an installation with one query service and without a worker.
func (s *site) startLanesWithoutWorker(ctx context.Context, facets map[string]string) (*lanes, error) {
	// The daily limit is raised, because the scenarios with this installation judge the quota per
	// second. The preset's limit of 20 million calls a day lasts for only 16 hours at 350 calls a
	// second, so the limiter would slow LOW down.
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

// enqueueLow publishes LOW requests for keys.
func (l *lanes) enqueueLow(ctx context.Context, keys ...string) {
	l.record(keys, nil)
	l.record(nil, l.Publish(ctx, l.client, small, schemas.Low, keys...))
}

// enqueueHigh reads a missing key, which enqueues a HIGH request.
func (l *lanes) enqueueHigh(ctx context.Context, key string) {
	now := time.Now()
	_, err := l.reader.Queue(ctx, key)
	l.record(nil, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueuedAt[key] = now
}

// readHigh reads a missing key and waits for its snapshot. It records the latency of the read if
// the read begins after the time "from".
func (l *lanes) readHigh(ctx context.Context, key string, from time.Time) {
	now := time.Now()
	l.record([]string{key}, nil)
	a, err := l.reader.Read(ctx, key, "?wait=20s")
	if err == nil && a.Freshness != "FRESH" {
		err = fmt.Errorf("read %s with a wait: got %d %s, want FRESH", key, a.Status, a.Freshness)
	}
	l.record(nil, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.After(from) {
		l.highLatencies = append(l.highLatencies, time.Since(now))
	}
}

// record stores the current time as the request time of each key. It stores err in l.failed if
// err is not nil.
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

// runLoad enqueues requests for the given time: "high" requests per second in the HIGH lane, and
// "low" requests per second in the LOW lane. The keys contain the name of the phase.
func (l *lanes) runLoad(ctx context.Context, phase string, high, low int, length time.Duration) error {
	var running sync.WaitGroup
	var errLow error
	running.Go(func() {
		const batch = 20 // the number of requests that a scheduler enqueues at once
		errLow = harness.AtRate(ctx, low/batch, length, func(n int) { l.enqueueLow(ctx, harness.Keys(fmt.Sprint("low-", phase, "-", n, "-"), batch)...) })
	})
	err := harness.AtRate(ctx, high, length, func(n int) { l.ask(ctx, fmt.Sprint("high-", phase, "-", n)) })
	running.Wait()
	if err == nil {
		err = errLow
	}
	if err == nil {
		err = l.failed
	}
	return err
}

// callDelays returns the times from request to upstream call, for the calls in the interval [from,
// to) whose keys have the prefix.
func (l *lanes) callDelays(all []harness.Arrival, prefix string, from, to time.Time) (took []time.Duration) {
	for _, a := range all {
		if at, ok := l.enqueuedAt[a.Key]; ok && strings.HasPrefix(a.Key, prefix) && !a.At.Before(from) && a.At.Before(to) {
			took = append(took, max(0, a.At.Sub(at)))
		}
	}
	return took
}

// lagAt returns the lag of a lane at the time "at", as a duration. It is the larger of two
// values: the p95 delay of the lane's calls in the last two seconds, and the longest wait of a
// request without a call. prefix selects the lane's keys.
func (l *lanes) lagAt(all []harness.Arrival, prefix string, at time.Time) time.Duration {
	called := map[string]bool{}
	for _, a := range all {
		if a.At.Before(at) {
			called[a.Key] = true
		}
	}
	longest := p95(l.callDelays(all, prefix, at.Add(-2*time.Second), at))
	for key, enqueued := range l.enqueuedAt {
		if strings.HasPrefix(key, prefix) && !called[key] {
			longest = max(longest, at.Sub(enqueued))
		}
	}
	return longest
}

// untilLowFlows enqueues a backlog of LOW requests and waits until the LOW calls have reached their
// full rate.
func (l *lanes) untilLowFlows(ctx context.Context, backlog int) error {
	l.enqueueLow(ctx, harness.Keys("low-backlog-", backlog)...)
	if err := harness.Until(ctx, harness.Timeout, "a call to the upstream", func() (bool, error) {
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

// judgeRate judges the rate per second of the calls in the interval [from, to) whose keys have the
// prefix. maxRate 0 means no upper limit.
func (t *table) judgeRate(what string, all []harness.Arrival, prefix string, from, to time.Time, minRate, maxRate float64) {
	rate := perSecond(harness.CountCalls(all, prefix, from, to), to.Sub(from))
	limit := fmt.Sprintf(">=%.0f/s", minRate)
	if maxRate > 0 {
		limit = fmt.Sprintf("%.0f to %.0f/s", minRate, maxRate)
	}
	t.judge(what, fmt.Sprintf("%.1f/s", rate), limit, rate >= minRate && (maxRate == 0 || rate <= maxRate))
}

// judgeEnd judges that all calls stayed within the upstream's quota, and returns the calls.
func (l *lanes) judgeEnd(ctx context.Context, t *table) ([]harness.Arrival, error) {
	st, err := l.Stats(ctx)
	if err != nil {
		return nil, err
	}
	t.judgeContract(st)
	return l.Arrivals(ctx)
}

// judgeEndWithBacklog judges that LOW has a backlog at the end, and that all calls stayed within the
// upstream's quota. It returns the calls.
func (l *lanes) judgeEndWithBacklog(ctx context.Context, t *table) ([]harness.Arrival, error) {
	left, err := l.Lag(ctx, schemas.Low)
	if err != nil {
		return nil, err
	}
	t.judge("LOW backlog at the end", strconv.FormatInt(left, 10), "some", left > 0)
	return l.judgeEnd(ctx, t)
}

// lowAlone judges that LOW never exceeds its cap, however large its backlog is and even if HIGH has
// no requests.
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
	t.judgeRate("LOW calls", all, "low-", from, to, minShare*lowRate, 1.01*lowRate)
	peak := harness.MaxInSecond(all, from, to)
	// The cap limits the mean rate to 350 calls a second. One second may contain a few more
	// calls, because permits of the previous second may be used late.
	t.judge("  max in a sliding second", strconv.Itoa(peak), "<=385, 10 % above 350", peak <= 385)
	s.addResult("low-alone", t)
	return nil
}

// peak enqueues more requests in both lanes together than the quota allows. It judges that the
// whole quota is used, and that HIGH does not wait.
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
	// A lane that has a lag at the start of the measurement exceeds its requested rate until it has
	// caught up. The other lane gets fewer calls during that time. The limits allow for this.
	t.judgeRate("  HIGH calls, of 200/s requested", all, "high-", from, to, minShare*high, 1.1*high)
	t.judgeRate("  LOW calls, of 300/s requested", all, "low-", from, to, 0.9*(totalRate-high), 1.1*(totalRate-high))
	t.judgeBelow("HIGH delay until its call, p95", p95(l.callDelays(all, "high-", from, to)), time.Second)
	t.judgeBelow("HIGH latency until stored and read, p95", p95(l.highLatencies), 3*time.Second)
	t.markTarget(highP95)
	// LOW gets only the permits that HIGH does not use, so the lag of LOW grows during the peak.
	// The variable minutes is the lag that LOW would have after an hour of peak.
	lag := l.lagAt(all, "low-", to)
	minutes := lag.Minutes() * time.Hour.Seconds() / (warmUp + length).Seconds()
	t.judge("LOW lag", fmt.Sprintf("%s at the end; extrapolated to an hour of peak: %.0f min, from %v", formatDuration(lag), minutes, warmUp+length),
		"<30 min after an hour of peak", minutes < 30)
	t.markTarget(lowLag)
	s.addResult("peak", t)
	return nil
}

// bothBuckets judges that a backlog of LOW requests does not slow HIGH down: LOW gets no more permits
// than its cap, and HIGH gets all the other permits of the quota.
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
	t.judgeRate("LOW calls at its cap, without HIGH", all, "low-", alone, with, minShare*lowRate, 1.01*lowRate)
	from := with.Add(time.Second) // skip the first second, until HIGH calls have started
	t.judgeRate("HIGH calls beside it, of 100/s requested", all, "high-", from, end, minShare*(totalRate-lowRate), 0)
	t.judgeRate("calls of both lanes", all, "", from, end, minShare*totalRate, 1.01*totalRate)
	t.judgeBelow("HIGH delay until its call, p95", p95(l.callDelays(all, "high-", from, end)), time.Second)
	s.addResult("two-buckets", t)
	return nil
}
