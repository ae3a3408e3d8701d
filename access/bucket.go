package access

import (
	"fmt"
	"time"
)

// CallRate is a maximum number of calls per window; 0 calls: there is no limit.
type CallRate struct {
	calls  int
	window time.Duration
}

// CallRate returns the rate as a CallRate. AutoRate and an invalid text give a CallRate without a
// limit.
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
	left float64   // tokens that are left; negative after Take or Spend has taken more tokens than there were
	at   time.Time // the latest time that a call was given
}

// Take takes n tokens and returns 0. If fewer than n tokens are left, it takes none, and returns the
// time until n tokens are there. If n is greater than the capacity, it takes the tokens as soon as the
// bucket is full.
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

// Spend takes n tokens even if fewer are left. It returns the time until at least one token is left
// again.
func (b *Bucket) Spend(r CallRate, n int, now time.Time) (wait time.Duration) {
	b.Take(r, 0, now) // taking 0 tokens adds the tokens for the time since the last call
	b.left -= float64(n)
	if b.left >= 1 {
		return 0
	}
	return max(1, time.Duration((1-b.left)/float64(r.calls)*float64(r.window)))
}
