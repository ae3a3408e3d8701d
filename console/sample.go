package console

import (
	"context"
	"sync"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/webhooks"
)

const (
	sampleInterval = time.Second
	// sampleTimeout is the maximum time that the reads of one sample may take.
	sampleTimeout = 2 * time.Second
	// rateWindow is the period over which rates are measured. It is longer than the 15 s between
	// two reports of an idle process. minRateWindow is the minimum time between two reports for a
	// rate; a rate over a shorter time would be inexact.
	rateWindow, minRateWindow = 40 * time.Second, 2 * time.Second
	// maxReportGap is the maximum time between two reports of a process that makes calls. A process
	// counts as idle after the time in which it makes missedCalls calls at its last rate, if it has
	// made no call in that time. Example: a process that made 1 call a second counts as idle after 3
	// s without a call.
	maxReportGap, missedCalls = 3 * time.Second, 3
	// countInterval is the time between two counts of the dead letters of the last 24 h, and the
	// timeout of one count. A sample waits for a count for at most countTimeout. If the count takes
	// longer, a later sample gets the result.
	countInterval, countTimeout = 30 * time.Second, 300 * time.Millisecond
	// credentialsInterval is the time between two reads of the credentials that renew themselves.
	// hooksInterval is the time between two reads of the deliveries of webhooks. Each process writes
	// these deliveries every 5 s.
	credentialsInterval, hooksInterval = 5 * time.Second, 5 * time.Second
)

// sample is the state of all sources at one moment.
type sample struct {
	At            time.Time
	Sources       map[string]*sourceSample
	Reads         []status.ReadStats
	Processes     status.Processes // empty if they could not be read
	Dependencies  []Dependency
	Credentials   []status.Credential   // the states of the credentials at the last read
	Hooks         []webhooks.Deliveries // the deliveries at the last read
	FaultScenario string
}

// sourceSample is the state of one source at one moment.
type sourceSample struct {
	Limits   *limiter.View // nil: the limiter could not be read
	Lanes    []LaneLag
	Rates    rates
	Schedule status.Schedule
	Settings *settings.State // nil: the settings could not be read
	// OpenDeadLetters is the number of dead letters of the last 24 h that were neither replayed nor
	// purged; -1: unknown.
	OpenDeadLetters int64
}

// report contains the numbers of permits that a process had received, by lane, up to the time in
// the field `at`.
type report struct {
	at        time.Time
	high, low int64
}

// sampler takes a sample of all sources once a second while live streams (viewers) are open, and
// sends each sample to all viewers.
type sampler struct {
	deps    Deps
	samples status.Cached[*sample]
	// openDeadLetters contains the number of open dead letters of the last 24 h by source. A source
	// whose count failed is missing.
	openDeadLetters status.Cached[map[string]int64]
	credentials     status.Cached[[]status.Credential]
	hooks           status.Cached[[]webhooks.Deliveries]
	// reports has the reports by source and process. It needs no lock: only takeSample uses it, and
	// only one takeSample runs at a time.
	reports map[string]map[string][]report

	mu      sync.Mutex
	viewers map[chan *sample]bool
	stop    context.CancelFunc // ends the goroutine that takes the samples; nil: there are no viewers
}

func newSampler(deps Deps) *sampler {
	s := &sampler{deps: deps, reports: map[string]map[string][]report{}, viewers: map[chan *sample]bool{}}
	s.samples.Read, s.samples.Timeout, s.samples.Clock, s.samples.Log = s.takeSample, sampleTimeout, deps.Clock, deps.Log
	s.openDeadLetters.Read, s.openDeadLetters.Timeout, s.openDeadLetters.Clock, s.openDeadLetters.Log = s.countOpen, countInterval, deps.Clock, deps.Log
	s.credentials.Read, s.credentials.Timeout, s.credentials.Clock, s.credentials.Log = deps.Cluster.Credentials, sampleTimeout, deps.Clock, deps.Log
	s.hooks.Read, s.hooks.Timeout, s.hooks.Clock, s.hooks.Log = deps.Cluster.Hooks, sampleTimeout, deps.Clock, deps.Log
	return s
}

// latest returns a new sample. While there are viewers, it returns the sample of the last second
// instead. If ctx ends before a new sample is complete, it returns the previous sample.
func (s *sampler) latest(ctx context.Context) *sample {
	s.mu.Lock()
	life := time.Duration(0)
	if len(s.viewers) > 0 {
		life = sampleInterval
	}
	s.mu.Unlock()
	if n, _, _ := s.samples.Get(ctx, life); n != nil {
		return n
	}
	n := &sample{At: s.deps.Clock(), Sources: map[string]*sourceSample{}}
	for _, source := range s.deps.Sources {
		n.Sources[source] = &sourceSample{OpenDeadLetters: -1}
	}
	return n
}

// takeSample reads all values of a sample in parallel. If a read fails, its value is unknown. The
// time of the sample, At, is the time when the reads from other services have ended. Values in the
// memory of this process, such as the lags of the lanes, are read after that.
func (s *sampler) takeSample(ctx context.Context) (*sample, error) {
	n := &sample{Sources: map[string]*sourceSample{}}
	var open map[string]int64
	var reads sync.WaitGroup
	read := func(f func()) { reads.Go(func() { status.CatchPanic(s.deps.Log, f) }) }
	read(func() { n.Processes, _ = s.deps.Cluster.Processes(ctx) }) // without Redis, the problems say so
	read(func() { n.Dependencies = s.deps.Overview.Dependencies(ctx) })
	read(func() {
		ctx, cancel := context.WithTimeout(ctx, countTimeout)
		defer cancel()
		open, _, _ = s.openDeadLetters.Get(ctx, countInterval) // if the count takes too long, a later sample gets its result
	})
	read(func() { n.Credentials, _, _ = s.credentials.Get(ctx, credentialsInterval) })
	read(func() { n.Hooks, _, _ = s.hooks.Get(ctx, hooksInterval) })
	for _, source := range s.deps.Sources {
		of := &sourceSample{OpenDeadLetters: -1}
		n.Sources[source] = of
		read(func() { of.Schedule = s.deps.Schedule.Schedule(ctx, source) })
		read(func() {
			if set, err := s.deps.Limits.Get(ctx, source); err == nil {
				of.Settings = &set
			}
		})
		read(func() {
			if v, err := s.deps.Limits.View(ctx, source); err == nil {
				of.Limits = &v
			}
		})
	}
	reads.Wait()
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

// countOpen counts the open dead letters of the last 24 h by source. There may be a million dead
// letters, so a sample waits for the count for at most countTimeout.
func (s *sampler) countOpen(ctx context.Context) (map[string]int64, error) {
	since := s.deps.Clock().Add(-day)
	open := map[string]int64{}
	for _, source := range s.deps.Sources {
		groups, err := s.deps.DLQ.Groups(ctx, deadletters.Filter{Source: source, Since: since, Handled: deadletters.Open})
		if err != nil {
			continue
		}
		open[source] = totalOf(groups)
	}
	return open, nil
}

// rate computes the permitted calls a second of each lane from the reports of all processes.
func (s *sampler) rate(source string, v *limiter.View) (r rates) {
	if v == nil {
		return r
	}
	before := s.reports[source]
	s.reports[source] = map[string][]report{}
	r.Known = len(v.Processes) == 0 // without processes the rate is known: it is 0
	for _, p := range v.Processes {
		all := before[p.Process]
		last := report{p.At, p.High.Granted, p.Low.Granted}
		if n := len(all); n == 0 || all[n-1].at.Before(last.at) {
			all = append(all, last)
		}
		// The rate is measured from all[0] to the last report. This loop removes old reports, until
		// all[0] is the newest report that is at least minRateWindow older than the last report. It
		// also removes each report that is older than rateWindow, except the last report.
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

// idleTime returns how long a process has made no call. A process that makes calls sends a report
// every second. If the last report is older than maxReportGap, the time since that report counts as
// idle too.
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

// publish sends a sample to all viewers.
func (s *sampler) publish(n *sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for viewer := range s.viewers {
		select {
		case viewer <- n:
		default: // a viewer that has not received an earlier sample yet does not get this sample
		}
	}
}

// watch adds a viewer. The channel receives each new sample until the viewer calls leave.
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
	// The result is not needed here: takeSample publishes the sample to the viewers.
	sample := func(ctx context.Context) { _, _, _ = s.samples.Get(ctx, 0) }
	sample(ctx)
	poll.Every(ctx, sampleInterval, sample)
}
