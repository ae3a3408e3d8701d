package console

import (
	"math"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

// laneLimit returns how many calls a second a lane may make now. The reserve of the other lane and
// the daily quota are taken into account.
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

// formatLimit formats a rate in calls a second. The text of an infinite rate is "unlimited".
func formatLimit(n float64) string {
	if math.IsInf(n, 1) {
		return "unlimited"
	}
	return formatRate(n)
}
