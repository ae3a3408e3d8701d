package scheduler

import (
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/limiter"
)

// BudgetConfig bounds the prefetch rate of a source. The yaml tags are the keys of the
// configuration file.
type BudgetConfig struct {
	// RateCaps bound the prefetch rate by the hour of the day. The first one that covers the hour
	// applies; an hour that none covers has no cap. The quota may bound LOW further, for all LOW
	// requests.
	RateCaps []limiter.RateCap `yaml:"rateCaps"`
	// TimeZone is the time zone of the hours; empty: UTC.
	TimeZone string `yaml:"timeZone,omitempty"`
}

// DefaultBudgetConfig returns the defaults of adr-013.
func DefaultBudgetConfig() BudgetConfig {
	return BudgetConfig{RateCaps: []limiter.RateCap{{From: 19, To: 24, Rate: 150}, {Rate: 250}}}
}

// unlimitedRate is the rate without a cap, in calls a second.
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

// Check returns all mistakes, joined.
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
