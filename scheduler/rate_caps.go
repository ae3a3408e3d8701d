package scheduler

import (
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/limiter"
)

// BudgetConfig is how a source's prefetch spends. The yaml tags are its form in the
// configuration file.
type BudgetConfig struct {
	// RateCaps bound what is fed by the hour; the first that holds the hour counts, and
	// no rate cap holds an hour that none of them names. LOW may be bound more tightly by
	// the quota, for whatever it does.
	RateCaps []limiter.RateCap `yaml:"rateCaps"`
	// TimeZone is where hours are read; empty: UTC.
	TimeZone string `yaml:"timeZone,omitempty"`
}

// DefaultBudgetConfig returns the settings of a source that says nothing else: adr-013's.
func DefaultBudgetConfig() BudgetConfig {
	return BudgetConfig{RateCaps: []limiter.RateCap{{From: 19, To: 24, Rate: 150}, {Rate: 250}}}
}

// unlimitedRate is what a second may be fed where no rate cap holds.
const unlimitedRate = 1e6

// at returns the rate cap of an hour of the day, in calls a second.
func (s BudgetConfig) at(hour int) float64 {
	for _, c := range s.RateCaps {
		if c.Applies(hour) {
			return float64(c.Rate)
		}
	}
	return unlimitedRate
}

// Check returns all mistakes.
func (s BudgetConfig) Check() error {
	var errs []error
	if err := limiter.CheckRateCaps(s.RateCaps); err != nil {
		errs = append(errs, fmt.Errorf("rateCaps%w", err))
	}
	sum := 0.0
	for hour := range 24 {
		sum += s.at(hour)
	}
	if sum == 0 {
		errs = append(errs, errors.New("rateCaps: they leave nothing at any hour; to prefetch nothing, set mode: off"))
	}
	if _, err := time.LoadLocation(s.TimeZone); err != nil {
		errs = append(errs, fmt.Errorf("timeZone: %q is not known; write it as in Asia/Seoul", s.TimeZone))
	}
	return errors.Join(errs...)
}
