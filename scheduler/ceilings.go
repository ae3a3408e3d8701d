package scheduler

import (
	"errors"
	"fmt"
	"time"
)

// Spending is how a source's prefetch spends. The yaml tags are its form in the
// configuration file.
type Spending struct {
	// Ceilings bound it by the hour; the first that holds the hour counts, and no
	// ceiling holds an hour that none of them names.
	Ceilings []Ceiling `yaml:"ceilings"`
	// TimeZone is where hours are read; empty: UTC.
	TimeZone string `yaml:"timeZone,omitempty"`
}

// Ceiling is the most that is fed from one full hour of the day to another, in calls a
// second; From and To both 0: at any hour.
type Ceiling struct {
	From      int     `yaml:"from,omitempty"`
	To        int     `yaml:"to,omitempty"`
	PerSecond float64 `yaml:"perSecond"`
}

// DefaultSpending returns the settings of a source that says nothing else: adr-013's.
func DefaultSpending() Spending {
	return Spending{Ceilings: []Ceiling{{From: 19, To: 24, PerSecond: 150}, {PerSecond: 250}}}
}

func (c Ceiling) holds(hour int) bool {
	switch {
	case c.From == c.To:
		return true
	case c.From < c.To:
		return c.From <= hour && hour < c.To
	}
	return hour >= c.From || hour < c.To
}

// most is what a second may be fed where no ceiling holds.
const most = 1e6

// at returns the ceiling of an hour of the day.
func (s Spending) at(hour int) float64 {
	for _, c := range s.Ceilings {
		if c.holds(hour) {
			return c.PerSecond
		}
	}
	return most
}

// Check returns all mistakes.
func (s Spending) Check() error {
	var errs []error
	for i, c := range s.Ceilings {
		if c.From < 0 || c.From > 23 || c.To < 0 || c.To > 24 {
			errs = append(errs, fmt.Errorf("ceilings[%d]: hours are 0 to 24, not %d to %d", i, c.From, c.To))
		}
		if !(c.PerSecond >= 0 && c.PerSecond <= most) {
			errs = append(errs, fmt.Errorf("ceilings[%d].perSecond: %v must be from 0 to %v", i, c.PerSecond, float64(most)))
		}
	}
	sum := 0.0
	for hour := range 24 {
		sum += s.at(hour)
	}
	if sum == 0 {
		errs = append(errs, errors.New("ceilings: they leave nothing at any hour; to prefetch nothing, set mode: off"))
	}
	if _, err := time.LoadLocation(s.TimeZone); err != nil {
		errs = append(errs, fmt.Errorf("timeZone: %q is not known; write it as in Asia/Seoul", s.TimeZone))
	}
	return errors.Join(errs...)
}
