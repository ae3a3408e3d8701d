package harness

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Timeout bounds the wait for something that must happen.
const Timeout = 30 * time.Second

// Poll calls ask twice a second until it returns true or an error, or the limit is over.
func Poll(ctx context.Context, limit time.Duration, ask func() (bool, error)) error {
	_, err := poll(ctx, 500*time.Millisecond, limit, ask)
	return err
}

func poll(ctx context.Context, interval, limit time.Duration, ask func() (bool, error)) (done bool, err error) {
	for began := time.Now(); ; {
		if done, err = ask(); err != nil || done || time.Since(began) > limit {
			return done, err
		}
		if err := Pause(ctx, interval); err != nil {
			return false, err
		}
	}
}

// Pause returns after a time, or with the error of ctx.
func Pause(ctx context.Context, length time.Duration) error {
	select {
	case <-time.After(length):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Until calls ask ten times a second until it returns true. It is an error if that does
// not happen within the limit; what names it.
func Until(ctx context.Context, limit time.Duration, what string, ask func() (bool, error)) error {
	done, err := poll(ctx, 100*time.Millisecond, limit, ask)
	if err == nil && !done {
		err = fmt.Errorf("did not happen within %v: %s", limit, what)
	}
	return err
}

// AtRate calls do rate times a second for a time, each call in a goroutine of its own, so
// that a slow one delays no other. It returns when all calls have.
func AtRate(ctx context.Context, rate int, length time.Duration, do func(n int)) error {
	var under sync.WaitGroup
	defer under.Wait()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for next := 0; ; {
		passed := min(time.Since(began), length)
		for due := int(passed.Seconds() * float64(rate)); next < due; next++ {
			n := next
			under.Go(func() { do(n) })
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
