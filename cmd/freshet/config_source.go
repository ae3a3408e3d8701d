package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// SourceConfig is one upstream with its quota and its workers.
type SourceConfig struct {
	source.Config `yaml:",inline"`
	Quota         limiter.Config `yaml:"quota"`
	Workers       WorkersConfig  `yaml:"workers"`
	Prefetch      PrefetchConfig `yaml:"prefetch,omitempty"`
}

// PrefetchConfig is how a source's entities are refreshed before anybody asks: how much
// may be spent on it, in the time zone of the quota's day if it names none, and how each
// facet is; one that is not named is not.
type PrefetchConfig struct {
	scheduler.Spending `yaml:",inline"`
	Facets             map[string]scheduler.Config `yaml:"facets,omitempty"`
}

// WorkersConfig bounds the workers of one process.
type WorkersConfig struct {
	High  LaneConfig   `yaml:"high"`
	Low   LaneConfig   `yaml:"low"`
	Bytes source.Bytes `yaml:"bytes"` // of bodies in memory, for each lane
}

// LaneConfig bounds one lane's worker.
type LaneConfig struct {
	InFlight int `yaml:"inFlight"`
}

// UnmarshalYAML lets a source that leaves settings out have the default ones.
func (s *SourceConfig) UnmarshalYAML(unmarshal func(any) error) error {
	type plain SourceConfig
	p := plain{
		Config:   source.DefaultConfig(),
		Quota:    limiter.DefaultConfig(),
		Workers:  WorkersConfig{High: LaneConfig{512}, Low: LaneConfig{1024}, Bytes: 128 << 20},
		Prefetch: PrefetchConfig{Spending: scheduler.DefaultSpending()},
	}
	err := unmarshal(&p)
	*s = SourceConfig(p)
	return err
}

func (s SourceConfig) check(name string) error {
	errs := []error{schemas.CheckName("source", name)}
	if s.Workers.High.InFlight < 1 || s.Workers.Low.InFlight < 1 {
		errs = append(errs, fmt.Errorf("workers: high.inFlight and low.inFlight are %d and %d; they must be at least 1", s.Workers.High.InFlight, s.Workers.Low.InFlight))
	}
	if s.Workers.Bytes < s.MaxBody {
		errs = append(errs, fmt.Errorf("workers.bytes: %d must be at least maxBody (%d), or a large answer could never be taken", s.Workers.Bytes, s.MaxBody))
	}
	for facet := range s.Facets {
		if err := schemas.CheckName("facet", facet); err != nil {
			errs = append(errs, fmt.Errorf("facets: %w", err))
		}
	}
	if _, err := limiter.NewQuota(s.Quota); err != nil {
		errs = append(errs, fmt.Errorf("quota.%w", err))
	}
	if _, err := s.schedule(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			errs = append(errs, fmt.Errorf("prefetch.%s", line))
		}
	}
	src, err := source.New(name, s.Config, "", s.connections())
	if err != nil {
		errs = append(errs, err)
	} else {
		src.Close()
	}
	return errors.Join(errs...)
}

// schedule returns when the source's entities are prefetched, or all mistakes in that.
func (s SourceConfig) schedule() (*scheduler.Schedule, error) {
	var errs []error
	facets := map[string]scheduler.Facet{}
	for name, f := range s.Facets {
		facets[name] = scheduler.Facet{Config: scheduler.DefaultConfig(), Cost: len(f.Documents)}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Prefetch.Facets)) {
		f, known := facets[name]
		if !known {
			errs = append(errs, fmt.Errorf("facets.%s: there is no such facet; there are %s", name, strings.Join(slices.Sorted(maps.Keys(s.Facets)), ", ")))
			continue
		}
		f.Config = s.Prefetch.Facets[name]
		facets[name] = f
	}
	spending := s.Prefetch.Spending
	for _, p := range s.Quota.Policies {
		if spending.TimeZone == "" && p.Window == limiter.Day {
			spending.TimeZone = p.TimeZone
		}
	}
	schedule, err := scheduler.NewSchedule(spending, facets)
	return schedule, errors.Join(append(errs, err)...)
}

// connections is how many calls may be under way at once.
func (s SourceConfig) connections() int {
	documents := 1
	for _, f := range s.Facets {
		documents = max(documents, len(f.Documents))
	}
	return (s.Workers.High.InFlight + s.Workers.Low.InFlight) * documents
}
