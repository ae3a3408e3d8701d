package status

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
)

// testHistory returns the history of four samples that end at 12:04:55, 12:05:00, 12:05:05 and
// 12:05:10. The second sample is unknown.
func testHistory() History {
	at := time.Date(2026, 1, 27, 12, 4, 55, 0, time.UTC).Unix()
	unknown := float32(math.NaN())
	return History{
		Times: []int64{at, at + 5, at + 10, at + 15}, Seconds: Values{5, unknown, 10, 5},
		Calls: map[string]Values{"2xx": {2, unknown, 3, 0.2}, "429": {0, unknown, 0, 1}}, Reads: map[string]Values{"fresh": {7, unknown, 0, 0}},
		AllowedRate: Values{450, unknown, 225, 0}, States: []limiter.State{limiter.StateFlowing, "", limiter.StateRamping, limiter.StateStopped},
		High: laneHistory{Values{unknown, unknown, unknown, unknown}, Values{unknown, unknown, unknown, unknown}},
		Low:  laneHistory{Values{3, 9, unknown, 4}, Values{1, 2, unknown, 8}},
	}
}

func TestPeriods_SumCounts(t *testing.T) {
	got := testHistory().Periods(5 * time.Minute)
	if len(got) != 2 {
		t.Fatalf("periods: got %d, want 2", len(got))
	}
	for i, want := range []map[string]int64{{"2xx": 10, "429": 0}, {"2xx": 31, "429": 5}} {
		if !reflect.DeepEqual(got[i].Calls, want) {
			t.Errorf("calls of period %d: got %v, want %v", i, got[i].Calls, want)
		}
	}
}

func TestPeriods_IncludeTheirEnd(t *testing.T) {
	got := testHistory().Periods(5 * time.Minute)[0]
	if want := time.Date(2026, 1, 27, 12, 5, 0, 0, time.UTC); !got.To.Equal(want) || got.Low.Records != 9 {
		t.Errorf("first period: got the end %v and %d records, want %v and 9, as a sample at 12:05:00 covers the time before", got.To, got.Low.Records, want)
	}
}

func TestPeriods_KeepMaximaAndStates(t *testing.T) {
	got := testHistory().Periods(5 * time.Minute)[1]
	if want := (LaneBacklog{4, 8 * time.Second, true}); got.Low != want {
		t.Errorf("LOW: got %+v, want %+v", got.Low, want)
	}
	if got.High.Known {
		t.Errorf("HIGH: got %+v, want it unknown", got.High)
	}
	if got.AllowedRate != 225 {
		t.Errorf("allowed rate: got %v, want 225", got.AllowedRate)
	}
	if want := []limiter.State{limiter.StateRamping, limiter.StateStopped}; !reflect.DeepEqual(got.States, want) {
		t.Errorf("states: got %v, want %v", got.States, want)
	}
}

func TestPeriods_UnknownIsNotZero(t *testing.T) {
	of := &sourceHistory{}
	of.add(unknownSample(100))
	got := (&HistoryRecorder{bySource: map[string]*sourceHistory{"nexon": of}}).Since("nexon", 0).Periods(5 * time.Minute)[0]
	if got.Calls != nil || got.Reads != nil || got.AllowedRate >= 0 || got.Low.Known {
		t.Errorf("period without a known sample: got %+v, want all values unknown", got)
	}
}
