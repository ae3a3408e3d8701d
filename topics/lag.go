package topics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
)

// Lag is the backlog of one lane of a source.
type Lag struct {
	Source string       `json:"source"`
	Lane   schemas.Lane `json:"lane"`
	Topic  string       `json:"topic"`
	Group  string       `json:"group"`
	// Records is the number of uncommitted records. Committed is the number of records that were
	// committed or deleted since the topic was created.
	Records   int64 `json:"records"`
	Committed int64 `json:"committed"`
}

// Backlog is the content of a source's topics.
type Backlog struct {
	Lags        []Lag // the lags of HIGH and LOW; nil: unknown, see LagErr
	LagErr      error
	DeadLetters int64 // number of records on the dead-letter topic; 0 with an error in DeadLettersErr
	// DeadLettersErr says why the dead letters can't be counted.
	DeadLettersErr error
}

// Measure returns the backlog of each source. The number of requests to Kafka does not depend on the
// number of sources. If one source can't be measured, the others are measured nevertheless.
func Measure(ctx context.Context, admin *kadm.Client, sources ...string) map[string]Backlog {
	var names, groups []string
	for _, source := range sources {
		for _, lane := range lanes {
			names, groups = append(names, schemas.RequestTopic(source, lane)), append(groups, schemas.Group(source, lane))
		}
		names = append(names, schemas.DeadLetterTopic(source))
	}
	var of offsets
	var err error
	if of.starts, of.ends, err = listBounds(ctx, admin, names); err == nil {
		of.committed = admin.FetchManyOffsets(ctx, groups...)
	} else {
		err = fmt.Errorf("list offsets of the request and dead-letter topics: %w", err)
	}
	all := map[string]Backlog{}
	for _, source := range sources {
		b := Backlog{LagErr: err, DeadLettersErr: err}
		if err == nil {
			b.Lags, b.LagErr = of.lags(source)
			b.DeadLetters, b.DeadLettersErr = of.deadLetters(source)
		}
		all[source] = b
	}
	return all
}

var lanes = [...]schemas.Lane{schemas.High, schemas.Low}

// offsets are the offsets of the topics of all sources.
type offsets struct {
	starts, ends kadm.ListedOffsets
	committed    kadm.FetchOffsetsResponses // by group
}

func (o offsets) lags(source string) ([]Lag, error) {
	var lags []Lag
	for _, lane := range lanes {
		l := Lag{Source: source, Lane: lane, Topic: schemas.RequestTopic(source, lane), Group: schemas.Group(source, lane)}
		if err := checkBounds(o.starts, o.ends, l.Topic); err != nil {
			return nil, err
		}
		group := o.committed[l.Group]
		if group.Err != nil && !errors.Is(group.Err, kerr.GroupIDNotFound) { // the group does not exist until a worker joins it
			return nil, fmt.Errorf("fetch offsets of group %s: %w", l.Group, group.Err)
		}
		for _, end := range o.ends[l.Topic] {
			start, _ := o.starts.Lookup(end.Topic, end.Partition)
			at := start.Offset
			if c, found := group.Fetched.Lookup(end.Topic, end.Partition); found && c.Err == nil {
				at = max(at, c.At)
			}
			l.Records += end.Offset - at
			l.Committed += at
		}
		lags = append(lags, l)
	}
	return lags, nil
}

func (o offsets) deadLetters(source string) (n int64, err error) {
	topic := schemas.DeadLetterTopic(source)
	if err := checkBounds(o.starts, o.ends, topic); err != nil {
		return 0, err
	}
	for _, end := range o.ends[topic] {
		start, _ := o.starts.Lookup(end.Topic, end.Partition)
		n += end.Offset - start.Offset
	}
	return n, nil
}

// Bounds returns the start and end offsets of the partitions of a topic.
func Bounds(ctx context.Context, admin *kadm.Client, topic string) (starts, ends kadm.ListedOffsets, err error) {
	if starts, ends, err = listBounds(ctx, admin, []string{topic}); err != nil {
		return nil, nil, fmt.Errorf("list offsets of the topic %s: %w", topic, err)
	}
	if err := checkBounds(starts, ends, topic); err != nil {
		return nil, nil, err
	}
	return starts, ends, nil
}

// listBounds returns the start and end offsets of topics. The results contain the errors of single
// topics.
func listBounds(ctx context.Context, admin *kadm.Client, topics []string) (starts, ends kadm.ListedOffsets, err error) {
	if starts, err = admin.ListStartOffsets(ctx, topics...); err == nil {
		ends, err = admin.ListEndOffsets(ctx, topics...)
	}
	return starts, ends, err
}

// checkBounds returns an error of a topic's partitions.
func checkBounds(starts, ends kadm.ListedOffsets, topic string) error {
	for _, listed := range []kadm.ListedOffsets{starts, ends} {
		if err := (kadm.ListedOffsets{topic: listed[topic]}).Error(); err != nil {
			return fmt.Errorf("list offsets of the topic %s: %w", topic, hint(err))
		}
	}
	return nil
}

// hint adds to the error of a missing topic how to create the topic.
func hint(err error) error {
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("%w; create it with `freshet topics ensure`", err)
	}
	return err
}

const (
	sampleInterval = 5 * time.Second
	// sampleWindow is the period over which throughput is measured.
	sampleWindow = time.Minute
	// sampleTTL is how long the last sample is valid if no new sample can be taken.
	sampleTTL = 30 * time.Second
)

// Sampler measures the lag of sources in the background, so that reads never query Kafka.
type Sampler struct {
	measure     func(ctx context.Context, sources ...string) map[string]Backlog
	sources     []string
	log         *slog.Logger
	lag         *prometheus.GaugeVec
	deadLetters *prometheus.GaugeVec

	// The following fields are used only by Run: whether the last measurements failed, and when the
	// dead letters of each source were last counted.
	conditions observe.Conditions
	counted    map[string]time.Time

	mu      sync.Mutex
	samples map[lane][]sample // the samples of each lane, oldest first
}

type lane struct {
	source string
	lane   schemas.Lane
}

type sample struct {
	at                 time.Time
	records, committed int64
}

// NewSampler returns a sampler of the sources' lags.
func NewSampler(admin *kadm.Client, sources []string, log *slog.Logger, reg prometheus.Registerer) *Sampler {
	s := &Sampler{
		measure: func(ctx context.Context, sources ...string) map[string]Backlog {
			return Measure(ctx, admin, sources...)
		},
		sources: sources, log: log, samples: map[lane][]sample{}, counted: map[string]time.Time{},
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kafka_consumer_lag", Help: "Uncommitted records.",
		}, []string{"topic", "group"}),
		deadLetters: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "dlq_message_count", Help: "Records on the dead-letter topic.",
		}, []string{"topic"}),
	}
	reg.MustRegister(s.lag, s.deadLetters)
	return s
}

// Run measures every 5 s until ctx ends. If a measurement fails, the last successful measurement
// stays valid for 30 s.
func (s *Sampler) Run(ctx context.Context) error {
	s.sample(ctx)
	poll.Every(ctx, sampleInterval, s.sample)
	return nil
}

func (s *Sampler) sample(ctx context.Context) {
	limit, cancel := context.WithTimeout(ctx, sampleInterval)
	defer cancel()
	var lagErrs, letterErrs []error
	for source, b := range s.measure(limit, s.sources...) {
		if b.LagErr == nil {
			s.Record(time.Now(), b.Lags)
		} else {
			s.expireLag(time.Now(), source)
		}
		s.setDeadLetters(time.Now(), source, b.DeadLetters, b.DeadLettersErr)
		if !slices.Contains(lagErrs, b.LagErr) { // an error of a whole request is the same for all sources
			lagErrs = append(lagErrs, b.LagErr)
		}
		if !slices.Contains(letterErrs, b.DeadLettersErr) {
			letterErrs = append(letterErrs, b.DeadLettersErr)
		}
	}
	if ctx.Err() == nil {
		s.conditions.Record(s.log, lagUnmeasured, errors.Join(lagErrs...))
		s.conditions.Record(s.log, deadLettersUncounted, errors.Join(letterErrs...))
	}
}

// The log conditions of a Sampler.
var (
	lagUnmeasured        = observe.Condition{Event: "lag_unmeasured", Failing: "lag can't be measured; estimated waits are unknown", Recovered: "measuring the lag works again"}
	deadLettersUncounted = observe.Condition{Event: "dead_letters_uncounted", Failing: "dead letters can't be counted", Recovered: "counting dead letters works again"}
)

// setDeadLetters sets the gauge of a source's dead letters, and removes it if the last count is
// older than sampleTTL.
func (s *Sampler) setDeadLetters(now time.Time, source string, n int64, err error) {
	topic := schemas.DeadLetterTopic(source)
	if err == nil {
		s.counted[source] = now
		s.deadLetters.WithLabelValues(topic).Set(float64(n))
	} else if now.Sub(s.counted[source]) > sampleTTL {
		s.deadLetters.DeleteLabelValues(topic)
	}
}

// expireLag removes the gauges of a source's lag if the last sample is older than sampleTTL.
func (s *Sampler) expireLag(now time.Time, source string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range []schemas.Lane{schemas.High, schemas.Low} {
		all := s.samples[lane{source, l}]
		if len(all) > 0 && now.Sub(all[len(all)-1].at) > sampleTTL {
			s.lag.DeleteLabelValues(schemas.RequestTopic(source, l), schemas.Group(source, l))
		}
	}
}

// Record adds the lags that were measured now. Run calls it after each measurement.
func (s *Sampler) Record(now time.Time, lags []Lag) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range lags {
		s.lag.WithLabelValues(l.Topic, l.Group).Set(float64(l.Records))
		k := lane{l.Source, l.Lane}
		all := append(s.samples[k], sample{now, l.Records, l.Committed})
		for len(all) > 2 && now.Sub(all[1].at) >= sampleWindow {
			all = all[1:]
		}
		s.samples[k] = all
	}
}

// Records returns how many records of a lane are not committed. known is false if the last sample
// is too old.
func (s *Sampler) Records(source string, l schemas.Lane) (n int64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.samples[lane{source, l}]
	if len(all) == 0 || time.Since(all[len(all)-1].at) > sampleTTL {
		return 0, false
	}
	return all[len(all)-1].records, true
}

// Latest returns the last sample of a lane and its time. Only the fields Records and Committed of
// the lag are set. known is false if the last sample is older than sampleTTL.
func (s *Sampler) Latest(source string, l schemas.Lane) (lag Lag, at time.Time, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.samples[lane{source, l}]
	if len(all) == 0 || time.Since(all[len(all)-1].at) > sampleTTL {
		return Lag{}, time.Time{}, false
	}
	last := all[len(all)-1]
	return Lag{Records: last.records, Committed: last.committed}, last.at, true
}

// enoughCommits is the number of committed records that Throughput needs for an exact result. If a
// lane has committed fewer records in the last minute, Throughput uses all samples of that minute.
const enoughCommits = 20

// Throughput returns how many records of a lane were committed per second. It reads the samples
// from the latest backwards, until they contain enoughCommits committed records. It ignores samples
// from before `since`. It counts only the time between two samples with a backlog, so that idle
// time does not count. busy is the length of the counted time; 0: unknown.
func (s *Sampler) Throughput(source string, l schemas.Lane, since time.Time) (perSecond float64, busy time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return throughput(s.samples[lane{source, l}], since, enoughCommits)
}

func throughput(samples []sample, since time.Time, enough int64) (perSecond float64, busy time.Duration) {
	worked := int64(0)
	for i := len(samples) - 1; i > 0 && worked < enough; i-- {
		from, to := samples[i-1], samples[i]
		if from.records > 0 && to.records > 0 && !from.at.Before(since) {
			worked, busy = worked+to.committed-from.committed, busy+to.at.Sub(from.at)
		}
	}
	if busy <= 0 {
		return 0, 0
	}
	return max(0, float64(worked)/busy.Seconds()), busy
}

// EstimateWait estimates how long a record that is published now waits behind the lane's backlog: the
// lag divided by the throughput of the last minute without its idle time. known is false without a
// backlog or a throughput, or if the last sample is too old.
func (s *Sampler) EstimateWait(source string, l schemas.Lane) (wait time.Duration, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.samples[lane{source, l}]
	perSecond, _ := throughput(all, time.Time{}, math.MaxInt64)
	if perSecond <= 0 {
		return 0, false
	}
	last := all[len(all)-1]
	if time.Since(last.at) > sampleTTL || last.records <= 0 {
		return 0, false
	}
	wait = time.Duration(min(float64(last.records)/perSecond, math.MaxInt32) * float64(time.Second))
	return max(0, wait-time.Since(last.at)), true
}

// StalledFor returns for how long records of a lane have waited while no offset was committed. The
// result is at most a little more than a minute, the age of the oldest sample. It returns 0 if no
// record waits, if records were committed between the last two samples, or if the last sample is
// too old.
func (s *Sampler) StalledFor(source string, l schemas.Lane) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.samples[lane{source, l}]
	if len(all) == 0 {
		return 0
	}
	last := all[len(all)-1]
	if last.records <= 0 || time.Since(last.at) > sampleTTL {
		return 0
	}
	since := last.at
	for _, before := range slices.Backward(all) {
		if before.records <= 0 || before.committed != last.committed {
			break
		}
		since = before.at
	}
	return time.Since(since)
}
