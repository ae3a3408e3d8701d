package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
)

// What the preset's quota gives: of 450 calls a second LOW may have 350.
const (
	allRate = 450
	lowRate = 350
	// enough is the part of a rate that counts as used up: the machine is shared
	// with what is judged.
	enough = 0.97
	// warming is how long a limiter that has just begun may take to its full rate.
	warming = 4 * time.Second
)

// lanes is an installation with one worker and one query process, whose lanes are
// asked for so much.
type lanes struct {
	*site
	reader reader
	client *kgo.Client
	mu     sync.Mutex
	asked  map[string]time.Time // when each key was
	failed error
}

func (s *site) lanes(ctx context.Context, facets map[string]string) (*lanes, error) {
	l, err := s.lanesWithout(ctx, facets)
	if err == nil {
		_, err = s.worker(ctx, "worker")
	}
	return l, err
}

// lanesWithout is lanes without the worker.
func (s *site) lanesWithout(ctx context.Context, facets map[string]string) (*lanes, error) {
	// At 350 a second a day's 20 million last for 16 hours, so the day holds LOW below
	// that for most of its time. Here the second is judged.
	s.tuned = strings.NewReplacer("limit: 20000000,", "limit: 200000000,")
	if err := s.prepare(ctx, facets, "--latency", "30ms-1.7s"); err != nil {
		return nil, err
	}
	readers, err := s.readers(ctx, 1, "")
	if err != nil {
		return nil, err
	}
	client, err := s.connectKafka()
	if err != nil {
		return nil, err
	}
	s.later(client.Close)
	return &lanes{site: s, reader: readers[0], client: client, asked: map[string]time.Time{}}, nil
}

// low asks for keys in the LOW lane.
func (l *lanes) low(ctx context.Context, keys ...string) {
	l.note(keys, nil)
	l.note(nil, l.publish(ctx, l.client, schemas.Low, keys...))
}

// high asks for one in the HIGH lane, as a reader of what is missing does.
func (l *lanes) high(ctx context.Context, key string) {
	now := time.Now()
	_, err := l.reader.queue(ctx, key)
	l.note(nil, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked[key] = now
}

func (l *lanes) note(keys []string, err error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		l.asked[key] = now
	}
	if err != nil {
		l.failed = err
	}
}

// both asks in both lanes at rates for some time; 0 asks nothing. The keys of each
// phase have a name of their own.
func (l *lanes) both(ctx context.Context, phase string, high, low int, length time.Duration) error {
	var under sync.WaitGroup
	var errLow error
	under.Go(func() {
		const atOnce = 20 // as a scheduler asks, which has many to ask for
		errLow = steadily(ctx, low/atOnce, length, func(n int) { l.low(ctx, keys(fmt.Sprint("low-", phase, "-", n, "-"), atOnce)...) })
	})
	err := steadily(ctx, high, length, func(n int) { l.high(ctx, fmt.Sprint("high-", phase, "-", n)) })
	under.Wait()
	if err == nil {
		err = errLow
	}
	if err == nil {
		err = l.failed
	}
	return err
}

// waits returns how long calls for keys that begin so came after they were asked for,
// of those in a time.
func (l *lanes) waits(all []arrival, prefix string, from, to time.Time) (took []time.Duration) {
	for _, a := range all {
		if at, ok := l.asked[a.key]; ok && strings.HasPrefix(a.key, prefix) && !a.at.Before(from) && a.at.Before(to) {
			took = append(took, max(0, a.at.Sub(at)))
		}
	}
	return took
}

// flowing waits until a backlog of LOW is called as often as it may be.
func (l *lanes) flowing(ctx context.Context, backlog int) error {
	l.low(ctx, keys("low-backlog-", backlog)...)
	if err := l.until(ctx, patience, "the upstream is called", func() (bool, error) {
		st, err := l.stats(ctx)
		return st.Arrivals > 0, err
	}); err != nil {
		return err
	}
	if err := pause(ctx, warming); err != nil {
		return err
	}
	return l.failed
}

// judgeRate judges how often calls were made for keys that begin so, between parts of
// a rate.
func (t *table) judgeRate(what string, all []arrival, prefix string, from, to time.Time, least, most float64) {
	rate := perSecond(calls(all, prefix, from, to), to.Sub(from))
	limit := fmt.Sprintf(">=%.0f/s", least)
	if most > 0 {
		limit = fmt.Sprintf("%.0f to %.0f/s", least, most)
	}
	t.judge(what, fmt.Sprintf("%.1f/s", rate), limit, rate >= least && (most == 0 || rate <= most))
}

// finish judges the contract, and returns the calls.
func (l *lanes) finish(ctx context.Context, t *table) ([]arrival, error) {
	st, err := l.stats(ctx)
	if err != nil {
		return nil, err
	}
	t.judgeContract(st)
	return l.arrivals(ctx)
}

// finishBehind is finish where LOW has had more to do than it may, until the end.
func (l *lanes) finishBehind(ctx context.Context, t *table) ([]arrival, error) {
	left, err := l.behind(ctx, schemas.Low)
	if err != nil {
		return nil, err
	}
	t.judge("LOW requests that wait at the end", strconv.FormatInt(left, 10), "some", left > 0)
	return l.finish(ctx, t)
}

// lowAlone: however much LOW asks for, and nobody else anything, it stays at its rate.
func lowAlone(ctx context.Context, s *site, o options) error {
	length := time.Duration(o.seconds) * time.Second
	l, err := s.lanes(ctx, onlySmall)
	if err != nil {
		return err
	}
	if err := l.flowing(ctx, int((warming+length).Seconds()+4)*allRate); err != nil {
		return err
	}
	from := time.Now()
	if err := pause(ctx, length); err != nil {
		return err
	}
	to, t := time.Now(), &table{}
	all, err := l.finishBehind(ctx, t)
	if err != nil {
		return err
	}
	t.judgeRate("calls of LOW alone", all, "low-", from, to, enough*lowRate, 1.01*lowRate)
	most := mostInASecond(all, from, to)
	t.judge("  most in a sliding second", strconv.Itoa(most), "<=400, 100 are kept for HIGH", most <= 400)
	s.judged("low-alone", t)
	return nil
}

// peak: both lanes ask for more than there is; all of it is used, exactly, and HIGH
// does not wait.
func peak(ctx context.Context, s *site, o options) error {
	const high, low = 200, 300
	length := time.Duration(o.seconds) * time.Second
	l, err := s.lanes(ctx, onlySmall)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := l.both(ctx, "peak", high, low, warming+length); err != nil {
		return err
	}
	from, to, t := began.Add(warming), began.Add(warming+length), &table{}
	all, err := l.finish(ctx, t)
	if err != nil {
		return err
	}
	t.target(contract)
	t.judgeRate("calls", all, "", from, to, enough*allRate, 1.01*allRate)
	t.judgeRate("  of HIGH, which asks for 200/s", all, "high-", from, to, enough*high, 0)
	t.judgeRate("  of LOW, which asks for 300/s", all, "low-", from, to, 0, lowRate)
	// With the upstream's own 1.7 s at most it stays within the target of 3 s.
	t.under("HIGH waits for its call, 95 of 100", p95(l.waits(all, "high-", from, to)), time.Second)
	// LOW gets what HIGH leaves, so it falls behind for as long as the peak lasts.
	lag := p95(l.waits(all, "low-", to.Add(-2*time.Second), to))
	const aim = 30 * time.Minute
	bearable := time.Duration(float64(aim) / lag.Seconds() * (warming + length).Seconds())
	t.judge("LOW is behind at the end", fmt.Sprintf("%s after %v; 30 min after %.1f h of it", short(lag), warming+length, bearable.Hours()),
		"<30 min after an hour", bearable > time.Hour)
	t.target(lowLag)
	s.judged("peak", t)
	return nil
}

// bothBuckets: while LOW is refused for its own cap, none of the common permits is
// lost on it: HIGH gets all that LOW may not have.
func bothBuckets(ctx context.Context, s *site, o options) error {
	length := time.Duration(o.seconds) * time.Second / 2
	l, err := s.lanes(ctx, onlySmall)
	if err != nil {
		return err
	}
	if err := l.flowing(ctx, int((warming+2*length).Seconds()+6)*allRate); err != nil {
		return err
	}
	alone := time.Now()
	if err := pause(ctx, length); err != nil {
		return err
	}
	with := time.Now()
	if err := l.both(ctx, "share", allRate-lowRate, 0, length); err != nil {
		return err
	}
	end, t := time.Now(), &table{}
	all, err := l.finishBehind(ctx, t)
	if err != nil {
		return err
	}
	t.judgeRate("calls of LOW alone, its cap used up", all, "low-", alone, with, enough*lowRate, 1.01*lowRate)
	from := with.Add(time.Second) // until the first of HIGH are on their way
	t.judgeRate("calls of HIGH beside it, which asks for 100/s", all, "high-", from, end, enough*(allRate-lowRate), 0)
	t.judgeRate("calls of both", all, "", from, end, enough*allRate, 1.01*allRate)
	t.under("HIGH waits for its call, 95 of 100", p95(l.waits(all, "high-", from, end)), time.Second)
	s.judged("two-buckets", t)
	return nil
}

// isolation: HIGH falls behind while LOW has a backlog; LOW stands back until HIGH has
// caught up, and their consumers are not the same.
func isolation(ctx context.Context, s *site, _ options) error {
	const (
		burst = 10_000
		seen  = 12 * time.Second // within this LOW stands back, and goes on: how far HIGH is behind is sampled
	)
	l, err := s.lanes(ctx, onlySmall)
	if err != nil {
		return err
	}
	if err := l.flowing(ctx, 20_000); err != nil {
		return err
	}
	members, err := s.members(ctx)
	if err != nil {
		return err
	}
	all := keys("high-burst-", burst)
	began := time.Now()
	for i := 0; i < burst; i += 100 {
		if err := l.reader.many(ctx, all[i:i+100]); err != nil {
			return err
		}
	}
	asked := time.Now()
	if err := s.untilStored(ctx, 4*patience, "high-burst-", burst); err != nil {
		return err
	}
	end := time.Now()
	if err := pause(ctx, seen+warming); err != nil {
		return err
	}
	t := &table{}
	t.judge("members of HIGH's group, of LOW's, of both", fmt.Sprintf("%d, %d, %d", members[0], members[1], members[2]), ">=1, >=1, 0",
		members[0] > 0 && members[1] > 0 && members[2] == 0)
	arrivals, err := l.finish(ctx, t)
	if err != nil {
		return err
	}
	from, to := stillness(arrivals, "low-", asked, end.Add(seen))
	t.judge("LOW stands still for, after", short(to.Sub(from))+", "+short(from.Sub(asked)), ">=5 s, <"+seen.String(),
		to.Sub(from) >= 5*time.Second && from.Sub(asked) < seen)
	t.judgeRate("calls of HIGH meanwhile", arrivals, "high-", from, from.Add(min(to.Sub(from), end.Sub(from))*9/10), enough*allRate, 1.01*allRate)
	t.figure(fmt.Sprintf("all %d of HIGH are asked for, stored", burst), "in %s, %s", short(asked.Sub(began)), short(end.Sub(began)))
	t.judgeRate("calls of LOW afterwards", arrivals, "low-", end.Add(seen), end.Add(seen+warming), 0.8*lowRate, 1.02*lowRate)
	s.judged("isolation", t)
	return nil
}

// stillness is the longest time within another in which no call is made for keys that
// begin so.
func stillness(all []arrival, prefix string, from, to time.Time) (begins, ends time.Time) {
	last := from
	for _, a := range append(all, arrival{at: to, key: prefix}) {
		if !strings.HasPrefix(a.key, prefix) || a.at.Before(from) || a.at.After(to) {
			continue
		}
		if a.at.Sub(last) > ends.Sub(begins) {
			begins, ends = last, a.at
		}
		last = a.at
	}
	return begins, ends
}

// members counts the members of the two groups, and those that are in both.
func (s *site) members(ctx context.Context) (n [3]int, err error) {
	client, err := s.connectKafka()
	if err != nil {
		return n, err
	}
	defer client.Close()
	high, low := schemas.Group(s.source, schemas.High), schemas.Group(s.source, schemas.Low)
	groups, err := kadm.NewClient(client).DescribeGroups(ctx, high, low)
	if err != nil {
		return n, err
	}
	seen := map[string]bool{}
	for i, name := range []string{high, low} {
		for _, m := range groups[name].Members {
			n[i]++
			if seen[m.MemberID] {
				n[2]++
			}
			seen[m.MemberID] = true
		}
	}
	return n, nil
}
