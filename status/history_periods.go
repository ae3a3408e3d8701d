package status

import (
	"math"
	"slices"
	"time"

	"github.com/freshet/freshet/limiter"
)

// HistoryPeriod sums the samples of a period.
type HistoryPeriod struct {
	From, To time.Time
	// Calls and Reads are nil if they are unknown in the whole period. The numbers of the lanes and
	// AllowedRate are the maxima of the period. A negative AllowedRate is unknown.
	Calls, Reads map[string]int64
	AllowedRate  float64
	High, Low    LaneBacklog
	States       []limiter.State // all states, in the order of their first sample
}

// Periods divides the history into periods that begin at multiples of the length, the oldest first.
func (f History) Periods(length time.Duration) []HistoryPeriod {
	var all []HistoryPeriod
	for i, at := range f.Times {
		from := time.Unix(at, 0).UTC().Add(-historyInterval).Truncate(length)
		if len(all) == 0 || !all[len(all)-1].From.Equal(from) {
			all = append(all, HistoryPeriod{From: from, To: from.Add(length), AllowedRate: -1})
		}
		p := &all[len(all)-1]
		p.Calls, p.Reads = addRates(p.Calls, f.Calls, f.Seconds, i), addRates(p.Reads, f.Reads, f.Seconds, i)
		if rate := float64(f.AllowedRate[i]); rate > p.AllowedRate { // false if the rate is unknown
			p.AllowedRate = rate
		}
		p.High, p.Low = p.High.max(f.High, i), p.Low.max(f.Low, i)
		if state := f.States[i]; state != "" && !slices.Contains(p.States, state) {
			p.States = append(p.States, state)
		}
	}
	return all
}

// addRates adds the counts of one sample, which are its rates times its seconds. The sum stays nil
// while all samples are unknown.
func addRates(sum map[string]int64, rates map[string]Values, seconds Values, sample int) map[string]int64 {
	for kind, all := range rates {
		n := float64(all[sample]) * float64(seconds[sample])
		if math.IsNaN(n) {
			return sum
		}
		if sum == nil {
			sum = map[string]int64{}
		}
		sum[kind] += int64(math.Round(n))
	}
	return sum
}

// max returns the higher number of records and the higher delay of a backlog and one sample of the
// lane.
func (b LaneBacklog) max(lane laneHistory, sample int) LaneBacklog {
	records, delay := float64(lane.Records[sample]), float64(lane.DelaySeconds[sample])
	if math.IsNaN(records) || math.IsNaN(delay) {
		return b
	}
	return LaneBacklog{max(b.Records, int64(records)), max(b.Delay, time.Duration(delay*float64(time.Second))), true}
}
