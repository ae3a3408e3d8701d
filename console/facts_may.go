package console

import (
	"math"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

// mayOf is how many calls a second a lane may make now: by its share, what is kept for the
// other lane, the hour's rate cap and the day.
func mayOf(v *limiter.View, lane schemas.Lane) fact {
	if v == nil {
		return fact{Text: "not known"}
	}
	share := v.Low
	if lane == schemas.High {
		share = v.High
	}
	return fact{Text: perSecond(share.PerSecond)}
}

// perSecond is a rate that there may be no bound of.
func perSecond(n float64) string {
	if math.IsInf(n, 1) {
		return "no bound"
	}
	return rated(n)
}
