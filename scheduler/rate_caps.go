package scheduler

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/freshet/freshet/limiter"
)

// BudgetConfig bounds the prefetch rate of a source. The yaml tags are the keys of the
// configuration file.
type BudgetConfig struct {
	// RateCaps limit the prefetch rate by the hour of the day. The first cap that covers an hour
	// applies. In an hour without a cap, only the quota limits the rate.
	RateCaps []RateCap `yaml:"rateCaps"`
	// TimeZone is the time zone of the hours, such as Asia/Seoul. If it is empty, the time zone of
	// the quota's day policy applies, or UTC if the quota has no day policy.
	TimeZone string `yaml:"timeZone,omitempty"`
}

// RateCap is the maximum prefetch rate from one full hour of the day to another.
type RateCap struct {
	// From is the hour of the day at which the cap begins, from 0 to 23. A cap from 22 to 3 spans
	// midnight.
	From int `yaml:"from,omitempty"`
	// To is the hour of the day at which the cap ends, from 0 to 24. A cap without From and To
	// applies to every hour.
	To int `yaml:"to,omitempty"`
	// Rate is the maximum number of calls in a time, as in 150/s, 90/m or 5000/h. It is required.
	Rate limiter.Rate `yaml:"rate"`
}

// UnmarshalYAML reads a rate cap. A missing rate becomes NaN, which BudgetConfig.Check rejects. If
// it became 0, the rate cap would stop prefetching.
func (c *RateCap) UnmarshalYAML(unmarshal func(any) error) error {
	var given struct {
		From int           `yaml:"from"`
		To   int           `yaml:"to"`
		Rate *limiter.Rate `yaml:"rate"`
	}
	err := unmarshal(&given)
	*c = RateCap{From: given.From, To: given.To, Rate: limiter.Rate(math.NaN())}
	if given.Rate != nil {
		c.Rate = *given.Rate
	}
	return err
}

// applies reports whether the rate cap includes the given hour of the day. A cap from 22 to 3 spans
// midnight.
func (c RateCap) applies(hour int) bool {
	switch {
	case c.From == c.To:
		return true
	case c.From < c.To:
		return c.From <= hour && hour < c.To
	}
	return hour >= c.From || hour < c.To
}

// checkRateCaps returns the first mistake in a list of rate caps. The error begins with the index;
// the caller prepends the name of the list.
func checkRateCaps(all []RateCap) error {
	var covered [24]bool
	for i, c := range all {
		switch {
		case c.From < 0 || c.From > 23 || c.To < 0 || c.To > 24:
			return fmt.Errorf("[%d]: hours are 0 to 24, not %d to %d", i, c.From, c.To)
		case math.IsNaN(float64(c.Rate)):
			return fmt.Errorf("[%d] has no rate; write one as in {from: 19, to: 23, rate: 150/s}", i)
		case c.Rate != 0 && c.Rate < 1e-4:
			return fmt.Errorf("[%d]: rate: %v must be 0, or at least one call in three hours", i, c.Rate)
		}
		used := false
		for hour := range covered {
			if !covered[hour] && c.applies(hour) {
				covered[hour], used = true, true
			}
		}
		if !used {
			return fmt.Errorf("[%d] never applies, because the caps before it include all its hours; remove it, or move it before them", i)
		}
	}
	return nil
}

// unlimitedRate is a rate, in calls a second, that means: there is no rate cap.
const unlimitedRate = 1e6

// at returns the rate cap of an hour of the day (0 to 23), in calls a second. Without a cap it
// returns unlimitedRate.
func (s BudgetConfig) at(hour int) float64 {
	for _, c := range s.RateCaps {
		if c.applies(hour) {
			return float64(c.Rate)
		}
	}
	return unlimitedRate
}

// Check returns one error that joins all mistakes in the configuration.
func (s BudgetConfig) Check() error {
	var errs []error
	if err := checkRateCaps(s.RateCaps); err != nil {
		errs = append(errs, fmt.Errorf("rateCaps%w", err))
	}
	sum := 0.0
	for hour := range 24 {
		sum += s.at(hour)
	}
	if sum == 0 {
		errs = append(errs, errors.New("rateCaps: they allow no call at any hour; to prefetch nothing, set `mode: off`"))
	}
	if _, err := time.LoadLocation(s.TimeZone); err != nil {
		errs = append(errs, fmt.Errorf("timeZone: %q is unknown; use a name such as Asia/Seoul", s.TimeZone))
	}
	return errors.Join(errs...)
}
