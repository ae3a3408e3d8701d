package console

import (
	"context"
	"sync"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/store"
)

const (
	sampleEvery = time.Second
	// samplePatience bounds one look.
	samplePatience = 2 * time.Second
	// ratesOver is how far back the counts of permits lie by which a rate is measured; an
	// idle process tells its own every 15 s only. ratesLeast is the shortest time that tells.
	ratesOver, ratesLeast = 40 * time.Second, 2 * time.Second
	// shownBack is how far back the charts go.
	shownBack = 5 * time.Minute
	// diedEvery is how often the dead letters of a day are counted.
	// One look waits for that no longer than diedPatience.
	diedEvery, diedPatience = 30 * time.Second, 300 * time.Millisecond
)

// sample is what is known at one moment.
type sample struct {
	At      time.Time
	Sources map[string]*seen
	Reads   []Reads
	Depends []Dependency
	Weather string
}

// seen is what is known of one source at one moment.
type seen struct {
	Limits *limiter.View // nil: it could not be read
	Lanes  []Lane
	Rates  rates
	// Died are the letters of the last 24 h that are open; -1: not known.
	Died int64
}

// point is one of a chart.
type point struct {
	T    float64  `json:"t"` // seconds since 1970
	High *float64 `json:"high"`
	Low  *float64 `json:"low"`
	Most *float64 `json:"most"` // what may be called
}

// report is how many permits a process had been granted at a time.
type report struct {
	at        time.Time
	high, low int64
}

// sampler looks for all who watch, once a second while somebody does.
type sampler struct {
	needs Needs

	looking sync.Mutex // one look at a time; it guards the two below
	reports map[string]map[string][]report
	diedAt  time.Time

	mu      sync.Mutex
	died    map[string]int64
	latest  *sample
	points  map[string][]point
	viewers map[chan *sample]bool
	stop    context.CancelFunc // of the loop; nil: nobody watches
}

func newSampler(needs Needs) *sampler {
	return &sampler{needs: needs, reports: map[string]map[string][]report{}, died: map[string]int64{}, points: map[string][]point{}, viewers: map[chan *sample]bool{}}
}

// now looks, unless the loop has within a second.
func (s *sampler) now(ctx context.Context) *sample {
	s.mu.Lock()
	latest, watched := s.latest, len(s.viewers) > 0
	s.mu.Unlock()
	if watched && latest != nil && s.needs.Clock().Sub(latest.At) <= sampleEvery {
		return latest
	}
	return s.look(ctx)
}

// look asks everything once. What does not answer is not known.
func (s *sampler) look(ctx context.Context) *sample {
	s.looking.Lock()
	defer s.looking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, samplePatience)
	defer cancel()
	n := &sample{At: s.needs.Clock(), Sources: map[string]*seen{}, Reads: s.needs.Now.Reads()}
	if s.needs.Weather != nil {
		n.Weather = s.needs.Weather.Now()
	}
	var asked sync.WaitGroup
	asked.Go(func() { n.Depends = s.needs.Now.Dependencies(ctx) })
	for _, source := range s.needs.Sources {
		of := &seen{Lanes: s.needs.Now.Lanes(source)}
		n.Sources[source] = of
		asked.Go(func() {
			if v, err := s.needs.Limits.View(ctx, source); err == nil {
				of.Limits = &v
			}
		})
	}
	counted := s.countDied(n.At)
	asked.Wait()
	select {
	case <-counted:
	case <-time.After(diedPatience): // a look to come has it
	}
	for source, of := range n.Sources {
		of.Died = s.diedOf(source)
		of.Rates = s.rate(source, of.Limits, n.At)
	}
	s.keep(n)
	return n
}

// countDied counts the open letters of a day, not more often than is of use. There may be a
// million of them, so that nobody waits for it; the channel is closed when it is done.
func (s *sampler) countDied(now time.Time) (done chan struct{}) {
	done = make(chan struct{})
	if !s.diedAt.IsZero() && now.Sub(s.diedAt) < diedEvery {
		close(done)
		return done
	}
	s.diedAt = now
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), diedEvery)
		defer cancel()
		for _, source := range s.needs.Sources {
			groups, err := s.needs.Letters.Groups(ctx, store.LetterFilter{Source: source, Since: now.Add(-day), Handled: store.OpenLetters})
			total := int64(0)
			for _, g := range groups {
				total += g.Count
			}
			if err != nil {
				total = -1
			}
			s.mu.Lock()
			s.died[source] = total
			s.mu.Unlock()
		}
	}()
	return done
}

// diedOf is how many open letters of a day there are; -1: not known.
func (s *sampler) diedOf(source string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if total, counted := s.died[source]; counted {
		return total
	}
	return -1
}

// rate measures what the lanes were permitted lately by what each process told of it.
func (s *sampler) rate(source string, v *limiter.View, now time.Time) (r rates) {
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
		for len(all) > 1 && (v.At.Sub(all[0].at) > ratesOver || last.at.Sub(all[1].at) >= ratesLeast) {
			all = all[1:]
		}
		s.reports[source][p.Process] = all
		d := last.at.Sub(all[0].at)
		if d < ratesLeast || last.high < all[0].high || last.low < all[0].low {
			continue
		}
		r.Known = true
		r.High += float64(last.high-all[0].high) / d.Seconds()
		r.Low += float64(last.low-all[0].low) / d.Seconds()
	}
	return r
}

// keep has the sample be the latest, and tells who watches.
func (s *sampler) keep(n *sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = n
	for source, of := range n.Sources {
		all := append(s.points[source], pointOf(n.At, of))
		for len(all) > 0 && n.At.Sub(time.UnixMilli(int64(all[0].T*1000))) > shownBack {
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

func pointOf(at time.Time, of *seen) point {
	p := point{T: float64(at.UnixMilli()) / 1000}
	if of.Rates.Known {
		p.High, p.Low = &of.Rates.High, &of.Rates.Low
	}
	if most := mostOf(of.Limits); most > 0 {
		most *= allowed(of.Limits, at)
		p.Most = &most
	}
	return p
}

// mostOf is how many calls a second the policy of the shortest window allows; 0: none does.
func mostOf(v *limiter.View) float64 {
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
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		s.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
