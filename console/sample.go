package console

import (
	"context"
	"sync"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/store"
)

const (
	sampleInterval = time.Second
	// sampleTimeout bounds one look.
	sampleTimeout = 2 * time.Second
	// rateWindow is how far back the counts of permits lie by which a rate is measured; an
	// idle process tells its own every 15 s only. ratesLeast is the shortest time that tells.
	rateWindow, minRateWindow = 40 * time.Second, 2 * time.Second
	// maxReportGap is within what time a process tells of itself that makes calls. When it has
	// made none in a time that would have seen missed of them, they have ended.
	maxReportGap, missedCalls = 3 * time.Second, 3
	// chartSpan is how far back the charts go.
	chartSpan = 5 * time.Minute
	// countInterval is how often the dead letters of a day are counted, and for how long that may
	// take. One look waits for it no longer than diedPatience.
	countInterval, countTimeout = 30 * time.Second, 300 * time.Millisecond
)

// sample is what is known at one moment.
type sample struct {
	At            time.Time
	Sources       map[string]*sourceSample
	Reads         []ReadStats
	Dependencies  []Dependency
	FaultScenario string
}

// sourceSample is what is known of one source at one moment.
type sourceSample struct {
	Limits   *limiter.View // nil: it could not be read
	Lanes    []LaneLag
	Rates    rates
	Schedule ScheduleState
	Settings *settings.State // nil: they could not be read
	// OpenDeadLetters are the letters of the last 24 h that are open; -1: not known.
	OpenDeadLetters int64
}

// point is one of a chart.
type point struct {
	T     float64  `json:"t"` // seconds since 1970
	High  *float64 `json:"high"`
	Low   *float64 `json:"low"`
	Limit *float64 `json:"limit"` // what may be called
}

// report is how many permits a process had been granted at a time.
type report struct {
	at        time.Time
	high, low int64
}

// sampler looks for all who watch, once a second while somebody does.
type sampler struct {
	deps            Deps
	samples         sharedRead[*sample]
	openDeadLetters sharedRead[map[string]int64]   // the open letters of a day, where they could be counted
	reports         map[string]map[string][]report // of the one look that is under way

	mu      sync.Mutex
	points  map[string][]point
	viewers map[chan *sample]bool
	stop    context.CancelFunc // of the loop; nil: nobody watches
}

func newSampler(deps Deps) *sampler {
	s := &sampler{deps: deps, reports: map[string]map[string][]report{}, points: map[string][]point{}, viewers: map[chan *sample]bool{}}
	s.samples.read, s.samples.timeout, s.samples.clock, s.samples.log = s.takeSample, sampleTimeout, deps.Clock, deps.Log
	s.openDeadLetters.read, s.openDeadLetters.timeout, s.openDeadLetters.clock, s.openDeadLetters.log = s.countOpen, countInterval, deps.Clock, deps.Log
	return s
}

// latest looks, unless the loop has within a second. If ctx ends before that is done, it is what
// was seen before, at the time that it says.
func (s *sampler) latest(ctx context.Context) *sample {
	s.mu.Lock()
	life := time.Duration(0)
	if len(s.viewers) > 0 {
		life = sampleInterval
	}
	s.mu.Unlock()
	if n, _, _ := s.samples.get(ctx, life); n != nil {
		return n
	}
	n := &sample{At: s.deps.Clock(), Sources: map[string]*sourceSample{}}
	for _, source := range s.deps.Sources {
		n.Sources[source] = &sourceSample{OpenDeadLetters: -1}
	}
	return n
}

// takeSample asks everything once. What does not answer is not known. What costs nothing to ask is
// asked last: the time of a sample is that of its end.
func (s *sampler) takeSample(ctx context.Context) (*sample, error) {
	n := &sample{Sources: map[string]*sourceSample{}}
	var open map[string]int64
	var asked sync.WaitGroup
	ask := func(f func()) { asked.Go(func() { recoverPanic(s.deps.Log, f) }) }
	ask(func() { n.Dependencies = s.deps.Overview.Dependencies(ctx) })
	ask(func() {
		ctx, cancel := context.WithTimeout(ctx, countTimeout)
		defer cancel()
		open, _, _ = s.openDeadLetters.get(ctx, countInterval) // otherwise a look to come has it
	})
	for _, source := range s.deps.Sources {
		of := &sourceSample{OpenDeadLetters: -1}
		n.Sources[source] = of
		ask(func() { of.Schedule = s.deps.Schedule.Schedule(ctx, source) })
		ask(func() {
			if set, err := s.deps.Limits.Get(ctx, source); err == nil {
				of.Settings = &set
			}
		})
		ask(func() {
			if v, err := s.deps.Limits.View(ctx, source); err == nil {
				of.Limits = &v
			}
		})
	}
	asked.Wait()
	n.At, n.Reads = s.deps.Clock(), s.deps.Overview.Reads()
	if s.deps.FaultScenarios != nil {
		n.FaultScenario = s.deps.FaultScenarios.Current()
	}
	for source, of := range n.Sources {
		of.Lanes = s.deps.Overview.Lanes(source)
		if total, counted := open[source]; counted {
			of.OpenDeadLetters = total
		}
		of.Rates = s.rate(source, of.Limits)
	}
	s.publish(n)
	return n, nil
}

// countOpen counts the open letters of a day. There may be a million of them, so that no look
// waits for it.
func (s *sampler) countOpen(ctx context.Context) (map[string]int64, error) {
	since := s.deps.Clock().Add(-day)
	open := map[string]int64{}
	for _, source := range s.deps.Sources {
		groups, err := s.deps.DLQ.Groups(ctx, store.DeadLetterFilter{Source: source, Since: since, Handled: store.OpenDeadLetters})
		if err != nil {
			continue
		}
		open[source] = totalOf(groups)
	}
	return open, nil
}

// rate measures what the lanes were permitted lately by what each process told of it.
func (s *sampler) rate(source string, v *limiter.View) (r rates) {
	if v == nil {
		return r
	}
	before := s.reports[source]
	s.reports[source] = map[string][]report{}
	r.Known = len(v.Processes) == 0 // who does not run calls nothing
	for _, p := range v.Processes {
		all := before[p.Process]
		last := report{p.At, p.High.Granted, p.Low.Granted}
		if n := len(all); n == 0 || all[n-1].at.Before(last.at) {
			all = append(all, last)
		}
		// As far back as the next newer one would not be far enough.
		for len(all) > 1 && (v.At.Sub(all[0].at) > rateWindow || last.at.Sub(all[1].at) >= minRateWindow) {
			all = all[1:]
		}
		s.reports[source][p.Process] = all
		d := last.at.Sub(all[0].at)
		if d < minRateWindow || last.high < all[0].high || last.low < all[0].low {
			continue
		}
		r.Known = true
		high, low := float64(last.high-all[0].high)/d.Seconds(), float64(last.low-all[0].low)/d.Seconds()
		if (high+low)*idleTime(all, v.At).Seconds() < missedCalls {
			r.High, r.Low = r.High+high, r.Low+low
		}
	}
	return r
}

// idleTime is for how long a process has made no call, as far as is known. One that makes
// calls tells of itself every second.
func idleTime(all []report, now time.Time) time.Duration {
	last := all[len(all)-1]
	since := last
	for i := len(all) - 1; i >= 0 && all[i].high == last.high && all[i].low == last.low; i-- {
		since = all[i]
	}
	if now.Sub(last.at) > maxReportGap {
		return now.Sub(since.at)
	}
	return last.at.Sub(since.at)
}

// publish keeps the points of the charts, and tells who watches.
func (s *sampler) publish(n *sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for source, of := range n.Sources {
		all := append(s.points[source], pointOf(n.At, of))
		for len(all) > 0 && n.At.Sub(time.UnixMilli(int64(all[0].T*1000))) > chartSpan {
			all = all[1:]
		}
		s.points[source] = all
	}
	for viewer := range s.viewers {
		select {
		case viewer <- n:
		default: // it is slow, and gets the next
		}
	}
}

func pointOf(at time.Time, of *sourceSample) point {
	p := point{T: float64(at.UnixMilli()) / 1000}
	if of.Rates.Known {
		p.High, p.Low = &of.Rates.High, &of.Rates.Low
	}
	if most := maxRate(of.Limits); most > 0 {
		most *= allowedFraction(of.Limits, at)
		p.Limit = &most
	}
	return p
}

// maxRate is how many calls a second the policy of the shortest window allows; 0: none does.
func maxRate(v *limiter.View) float64 {
	most, shortest := 0.0, time.Duration(0)
	if v == nil {
		return 0
	}
	for _, p := range v.Policies {
		window, err := time.ParseDuration(p.Window)
		if err != nil || window <= 0 || shortest > 0 && window >= shortest {
			continue
		}
		target := p.Target
		if target == 0 {
			target = p.Limit
		}
		shortest, most = window, float64(target)/window.Seconds()
	}
	return most
}

// history returns the points of a source's chart, oldest first.
func (s *sampler) history(source string) []point {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]point{}, s.points[source]...)
}

// watch returns where the samples come, until leave is called.
func (s *sampler) watch() (samples <-chan *sample, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	viewer := make(chan *sample, 1)
	s.viewers[viewer] = true
	if s.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		s.stop = stop
		go s.run(ctx)
	}
	return viewer, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.viewers, viewer)
		if len(s.viewers) == 0 && s.stop != nil {
			s.stop()
			s.stop = nil
		}
	}
}

func (s *sampler) run(ctx context.Context) {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	for {
		_, _, _ = s.samples.get(ctx, 0) // who watches is told of it
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
