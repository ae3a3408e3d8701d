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
	// RateCaps limit the prefetch rate by the hour of the day. The first cap that covers an hour
	// applies. In an hour without a cap, only the quota policies limit the rate.
	RateCaps []limiter.RateCap `yaml:"rateCaps"`
	// TimeZone is the time zone of the hours; empty: UTC.
	TimeZone string `yaml:"timeZone,omitempty"`
}

// DefaultBudgetConfig returns the default rate caps (requirement adr-013): 150 calls a second from
// 19:00 to midnight, and 250 otherwise.
func DefaultBudgetConfig() BudgetConfig {
	return BudgetConfig{RateCaps: []limiter.RateCap{{From: 19, To: 24, Rate: 150}, {Rate: 250}}}
}

// unlimitedRate is the rate, in calls a second, that stands for "no rate cap".
const unlimitedRate = 1e6

// at returns the rate cap of an hour of the day (0 to 23), in calls a second. Without a cap it
// returns unlimitedRate.
func (s BudgetConfig) at(hour int) float64 {
	for _, c := range s.RateCaps {
		if c.Applies(hour) {
			return float64(c.Rate)
		}
	}
	return unlimitedRate
}

// Check returns one error that joins all mistakes in the configuration.
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
