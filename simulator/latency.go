package simulator

import (
	"errors"
	"math"
	"math/rand/v2"
	"time"
)

func (r Range) check() error {
	if r.Min < 0 || r.Max < r.Min {
		return errors.New("latency: needs 0 <= min <= max, for example 30ms and 1.7s")
	}
	return nil
}

// draw returns a random latency. The distribution is log-normal: the median is three times Min, and
// Max is three and a half standard deviations above the median. A value outside of the range is
// drawn again.
func (r Range) draw() time.Duration {
	if r.Max == 0 {
		return 0
	}
	median := 3 * float64(r.Min)
	if median == 0 || median >= float64(r.Max) {
		return r.Min + rand.N(r.Max-r.Min+1)
	}
	sigma := math.Log(float64(r.Max)/median) / 3.5
	for range 16 {
		d := time.Duration(median * math.Exp(sigma*rand.NormFloat64()))
		if d >= r.Min && d <= r.Max {
			return d
		}
	}
	return time.Duration(median)
}
