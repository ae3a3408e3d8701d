package access

import (
	"math/rand/v2"
	"testing"
	"time"
)

// The times of the calls are in any order. A bucket must not give more tokens than the sum of two
// numbers: its capacity, and the tokens for the time between the earliest and the latest of these
// times. After the wait that Take has returned, enough tokens must be there.
func TestBucket_NeverExceedsItsRate(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	start := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for round := range 300 {
		r := CallRate{1 + random.IntN(20), time.Duration(1+random.IntN(60)) * time.Second}
		perToken := r.window / time.Duration(r.calls)
		b, latest, taken := &Bucket{}, start, 0
		b.Take(r, 0, start)
		for call := range 500 {
			if random.IntN(3) > 0 {
				latest = latest.Add(time.Duration(random.Int64N(int64(2 * perToken))))
			}
			now := latest
			if random.IntN(2) == 0 { // a caller that has read the clock before the previous call
				now = latest.Add(-time.Duration(random.Int64N(int64(r.window))))
			}
			n := 1 + random.IntN(min(3, r.calls))
			wait := b.Take(r, n, now)
			most := float64(r.calls) + float64(r.calls)*float64(latest.Sub(start))/float64(r.window)
			if wait == 0 {
				taken += n
			} else if wait > r.window+time.Millisecond {
				t.Fatalf("seed %d, round %d, call %d: got a wait of %v, want at most the window %v", seed, round, call, wait, r.window)
			}
			if float64(taken) > most+1e-6*most {
				t.Fatalf("seed %d, round %d, call %d: %d tokens in %v, want at most %.3f at %v", seed, round, call, taken, latest.Sub(start), most, r)
			}
			if wait > 0 && now.Equal(latest) { // after the wait there are enough tokens
				latest = latest.Add(wait)
				if again := b.Take(r, n, latest); again > time.Microsecond {
					t.Fatalf("seed %d, round %d, call %d: got another wait of %v after %v", seed, round, call, again, wait)
				} else if again == 0 {
					taken += n
				}
			}
		}
	}
}

func TestBucket_SpendCanGoBelowZero(t *testing.T) {
	r, now := CallRate{10, 10 * time.Second}, time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	var b Bucket
	if wait := b.Spend(r, 15, now); wait != 6*time.Second {
		t.Errorf("wait after 15 of 10 tokens: got %v, want 6s", wait)
	}
	if wait := b.Take(r, 1, now.Add(5*time.Second)); wait != time.Second {
		t.Errorf("wait 5 s later: got %v, want 1s", wait)
	}
}
