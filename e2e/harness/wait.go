package harness

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Timeout bounds each wait for an expected event.
const Timeout = 30 * time.Second

// Poll calls the function `condition` twice a second until it returns true or an error. If the
// limit passes first, Poll returns nil.
func Poll(ctx context.Context, limit time.Duration, condition func() (bool, error)) error {
	_, err := poll(ctx, 500*time.Millisecond, limit, condition)
	return err
}

func poll(ctx context.Context, interval, limit time.Duration, condition func() (bool, error)) (done bool, err error) {
	for began := time.Now(); ; {
		if done, err = condition(); err != nil || done || time.Since(began) > limit {
			return done, err
		}
		if err := Pause(ctx, interval); err != nil {
			return false, err
		}
	}
}

// Pause waits for a time. It returns the error of ctx if ctx ends first.
func Pause(ctx context.Context, length time.Duration) error {
	select {
	case <-time.After(length):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Until calls the function `condition` ten times a second until it returns true or an error. If the
// limit passes first, Until returns an error that contains the text `what`.
func Until(ctx context.Context, limit time.Duration, what string, condition func() (bool, error)) error {
	done, err := poll(ctx, 100*time.Millisecond, limit, condition)
	if err == nil && !done {
		err = fmt.Errorf("timed out after %v waiting for %s", limit, what)
	}
	return err
}

// AtRate calls do(0), do(1) and so on for the given time. `rate` is the number of calls per second.
// Each call has its own goroutine, so that a slow call delays no other call. AtRate returns after
// all calls have returned.
func AtRate(ctx context.Context, rate int, length time.Duration, do func(n int)) error {
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for next := 0; ; {
		passed := min(time.Since(began), length)
		for due := int(passed.Seconds() * float64(rate)); next < due; next++ {
			n := next
			running.Go(func() { do(n) })
		}
		if passed == length {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
