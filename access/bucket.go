package access

import (
	"fmt"
	"time"
)

// CallRate is a number of calls per window; 0 calls: no limit.
type CallRate struct {
	calls  int
	window time.Duration
}

// CallRate returns the rate. It has no limit for AutoRate and for an invalid text.
func (r Rate) CallRate() CallRate {
	calls, window := r.Parse()
	return CallRate{calls, window}
}

// Unlimited reports whether the rate has no limit.
func (r CallRate) Unlimited() bool { return r.calls == 0 }

func (r CallRate) String() string { return fmt.Sprintf("%d per %v", r.calls, r.window) }

// Bucket is a token bucket. It has as many tokens as its rate has calls in a window, and gets as many in each
// window. The zero value is full. The rate must have a limit, and must be the same in each call. The caller
// must serialise the calls.
//
// Concurrent callers can read the clock in another order than they call the methods. An earlier time than the
// latest one adds no tokens.
type Bucket struct {
	left float64   // negative after a call that needed more tokens than there were
	at   time.Time // the latest time of a call
}

// Take takes n tokens and returns 0. If there are fewer than n tokens, it takes none and returns the time until
// there are enough. If n exceeds the capacity, the tokens are taken when the bucket is full.
func (b *Bucket) Take(r CallRate, n int, now time.Time) (wait time.Duration) {
	capacity := float64(r.calls)
	if b.at.IsZero() {
		b.left, b.at = capacity, now
	}
	if elapsed := now.Sub(b.at); elapsed > 0 {
		b.left, b.at = min(capacity, b.left+capacity*float64(elapsed)/float64(r.window)), now
	}
	if need := min(float64(n), capacity); b.left < need {
		return max(1, time.Duration((need-b.left)/capacity*float64(r.window)))
	}
	b.left -= float64(n)
	return 0
}

// Spend takes n tokens even if there are fewer. It returns the time until there is at least one token.
func (b *Bucket) Spend(r CallRate, n int, now time.Time) (wait time.Duration) {
	b.Take(r, 0, now) // takes no token: it only adds the tokens for the time since the last call
	b.left -= float64(n)
	if b.left >= 1 {
		return 0
	}
	return max(1, time.Duration((1-b.left)/float64(r.calls)*float64(r.window)))
}
