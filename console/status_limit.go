package console

import (
	"math"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

// laneLimit is how many calls a second a lane may make now: by its share, what is kept for the
// other lane, the hour's rate cap and the day.
func laneLimit(v *limiter.View, lane schemas.Lane) statusItem {
	if v == nil {
		return statusItem{Text: "not known"}
	}
	share := v.Low
	if lane == schemas.High {
		share = v.High
	}
	return statusItem{Text: formatLimit(share.PerSecond)}
}

// formatLimit is a rate that there may be no bound of.
func formatLimit(n float64) string {
	if math.IsInf(n, 1) {
		return "no bound"
	}
	return formatRate(n)
}
