package console

import (
	"math"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
)

func TestRate_FallsToZeroWithoutCalls(t *testing.T) {
	const s = time.Second
	type step struct {
		at, reported time.Duration // time of the sample, and time of the latest report of the process
		granted      int64
		want         float64
	}
	for name, steps := range map[string][]step{
		"a report after the last call": {
			{0, 0, 0, -1}, {1 * s, 1 * s, 100, -1}, {2 * s, 2 * s, 200, 100}, {3 * s, 3 * s, 230, 65}, {4 * s, 4 * s, 230, 0}, {9 * s, 4 * s, 230, 0},
		},
		"no further reports": {
			{0, 0, 0, -1}, {2 * s, 2 * s, 200, 100}, {4*s + 900*time.Millisecond, 2 * s, 200, 100}, {5*s + time.Millisecond, 2 * s, 200, 0},
		},
		"a rare call": {
			{0, 0, 0, -1}, {5 * s, 5 * s, 1, 0.2}, {6 * s, 6 * s, 1, 1.0 / 6}, {9 * s, 6 * s, 1, 1.0 / 6}, {10 * s, 10 * s, 2, 0.25}, {11 * s, 11 * s, 2, 0.2}, {26 * s, 26 * s, 2, 0},
		},
		"calls resume": {
			{0, 0, 0, -1}, {2 * s, 2 * s, 200, 100}, {10 * s, 2 * s, 200, 0}, {17 * s, 17 * s, 200, 0}, {18 * s, 18 * s, 300, 100.0 / 16}, {20 * s, 20 * s, 500, 100},
		},
	} {
		r := newRig(t)
		for i, st := range steps {
			p := limiter.ProcessView{Process: "a", At: testNow.Add(st.reported), Low: limiter.LaneView{Granted: st.granted}}
			got := r.sampler.rate("nexon", &limiter.View{State: limiter.StateFlowing, At: testNow.Add(st.at), Processes: []limiter.ProcessView{p}})
			if got.Known != (st.want >= 0) || got.Known && math.Abs(got.Low-st.want) > 0.01 {
				t.Errorf("%s, %d: %+v, want %v", name, i, got, st.want)
			}
		}
	}
}
