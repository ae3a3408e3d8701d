package limiter

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

// smallLimit is a quota of 20 calls per second with 5 reserved for HIGH and 4 for LOW.
func smallLimit() Config {
	return scopedConfig(Policy{Name: "second", Limit: 20, Window: Window(time.Second), HighReserve: Reserve{Calls: 5}, LowReserve: 4})
}

// today sets Redis' clock forward to a time after 2001, because the sliding-window logs of the script
// need times in µs with 16 digits.
func (f *callers) today() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ahead = 9000 * 24 * time.Hour
}

// sentIn returns the calls of each lane since `from`, and the maximum number of calls of both
// lanes within one second.
func sentIn(f *callers, from time.Time) (high, low []time.Time, most int) {
	all, _ := f.since(from)
	var times []time.Time
	for _, c := range all {
		times = append(times, c.at)
		if c.lane == schemas.High {
			high = append(high, c.at)
		} else {
			low = append(low, c.at)
		}
	}
	return high, low, mostWithin(times, time.Second)
}

// LOW gets its reserve while HIGH saturates a small limit; HIGH gets the rest.
func TestLowReserve_HoldsForSmallLimits(t *testing.T) {
	const seconds = 20
	inCallers(t, 1, 2, smallLimit(), healthyAfter(5*ms), func(f *callers) {
		f.today()
		for _, m := range f.members {
			f.wait(m, 20, schemas.High, Call{Endpoint: "f/d", Key: "k"})
			f.wait(m, 5, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
		}
		f.passed(3 * time.Second)
		from := time.Now()
		f.passed(seconds * time.Second)
		high, low, most := sentIn(f, from)
		if got := len(low); got < 4*seconds*90/100 {
			t.Errorf("got %d calls of LOW in %d s, want 4 a second", got, seconds)
		}
		if got := len(high); got < 5*seconds*90/100 || mostWithin(high, time.Second) > 16 {
			t.Errorf("got %d calls of HIGH in %d s, at most %d in one; want 5 to 16 a second", got, seconds, mostWithin(high, time.Second))
		}
		if most > 20 || len(high)+len(low) < 20*seconds*90/100 {
			t.Errorf("got %d calls, at most %d in a second, want 20", len(high)+len(low), most)
		}
	})
}

// HIGH gets its reserve at once, even if LOW saturates a limit that also has a reserve for LOW.
func TestLowReserve_LeavesHighItsReserve(t *testing.T) {
	inCallers(t, 1, 2, smallLimit(), healthyAfter(5*ms), func(f *callers) {
		f.today()
		f.wait(f.members[0], 20, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
		f.passed(5 * time.Second)
		_, low, _ := sentIn(f, time.Time{})
		if got := mostWithin(low, time.Second); got != 15 {
			t.Errorf("got %d calls of LOW alone in a second, want 15", got)
		}
		for range 5 {
			start := time.Now()
			f.one(f.members[1], schemas.High, Call{Endpoint: "f/d", Key: "k"})
			if got := time.Since(start); got > 300*ms {
				t.Errorf("got HIGH's permit after %v, want it from the reserve at once", got)
			}
		}
	})
}

// A change of LowReserve allows no second burst.
func TestLowReserve_ChangesWithoutABurst(t *testing.T) {
	inCallers(t, 1, 2, smallLimit(), healthyAfter(5*ms), func(f *callers) {
		f.today()
		for _, m := range f.members {
			f.wait(m, 20, schemas.High, Call{Endpoint: "f/d", Key: "k"})
			f.wait(m, 20, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
		}
		for i := range 12 {
			f.passed(1300 * ms)
			changed := smallLimit()
			changed.Policies[0].LowReserve = []int{0, 4, 9}[i%3]
			f.put(changed, int64(i+1), false)
		}
		f.passed(3 * time.Second)
		if _, _, most := sentIn(f, time.Time{}); most > 20 {
			t.Errorf("got %d calls in a second, want at most 20", most)
		}
	})
}

// Redis keeps three logs for a policy with a reserve for LOW. The view shows them as one policy,
// with the remaining calls of LOW.
func TestLowReserve_IsOnePolicyInTheView(t *testing.T) {
	quota, err := NewQuota(smallLimit())
	if err != nil {
		t.Fatal(err)
	}
	var v View
	if err := v.policies([]int64{2, 1_050_001, 20, 20, 9, 2, 1_050_002, 16, 0, 2, 2, 1_050_003, 0, 15, 7}, quota); err != nil {
		t.Fatal(err)
	}
	if len(v.Policies) != 1 || v.Policies[0].Remaining != 11 || v.Policies[0].RemainingForLow != 8 {
		t.Errorf("got %+v, want one policy with 11 calls left, 8 of them for LOW", v.Policies)
	}
	if got := quota.MaxCalls(schemas.High, time.Second); got != 16 {
		t.Errorf("got %.0f calls of HIGH at most, want 16", got)
	}
}
