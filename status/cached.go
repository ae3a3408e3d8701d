package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// Cached is the cached result of a slow read. Its callers share the reads: at most one runs at a
// time, and it continues when the context of a caller ends. The methods may be called concurrently.
// The fields must be set before the first call. A Cached must not be copied.
type Cached[T any] struct {
	Read    func(ctx context.Context) (T, error)
	Timeout time.Duration // maximum duration of each read
	// MaxStale is how long after its TTL a result is still returned at once, while the next read
	// runs or after it has failed. 0: callers wait for the next read.
	MaxStale time.Duration
	Clock    func() time.Time
	Log      *slog.Logger // log for panics of the function Read

	mu          sync.Mutex
	latest      T
	at          time.Time     // end of the last successful read; zero: no read has succeeded
	attemptedAt time.Time     // end of the last read, whether or not it succeeded
	err         error         // error of the last read; nil: the last read succeeded
	running     chan struct{} // closed when the current read ends; nil: no read is running
}

// Get returns the result of the last read if that read is younger than ttl. Otherwise it starts a
// read, or joins the running read, and waits for its result, unless MaxStale permits the previous
// result. If the read fails, Get returns the previous result and the error; if ctx ends first,
// the error is errNotReadYet. `at` is the time of the returned result; zero: no read has succeeded.
func (c *Cached[T]) Get(ctx context.Context, ttl time.Duration) (result T, at time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Clock()
	usable := c.MaxStale > 0 && !c.at.IsZero() && now.Sub(c.at) <= ttl+c.MaxStale
	if c.attemptedAt.IsZero() || now.Sub(c.attemptedAt) >= ttl {
		ended := c.start()
		if !usable {
			c.mu.Unlock()
			select {
			case <-ended:
			case <-ctx.Done():
			}
			c.mu.Lock()
			select {
			case <-ended:
			default:
				return c.latest, c.at, errNotReadYet
			}
		}
	}
	if usable {
		return c.latest, c.at, nil
	}
	return c.latest, c.at, c.err
}

// start starts a read unless one is running. It returns the channel that is closed when the read
// ends. The caller must hold mu.
func (c *Cached[T]) start() <-chan struct{} {
	if c.running == nil {
		c.running = make(chan struct{})
		go c.run()
	}
	return c.running
}

func (c *Cached[T]) run() {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	var result T
	err := ErrPanic
	CatchPanic(c.Log, func() { result, err = c.Read(ctx) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attemptedAt, c.err = c.Clock(), err
	if err == nil {
		c.latest, c.at = result, c.attemptedAt
	}
	close(c.running)
	c.running = nil
}

// errNotReadYet is the error of a read that is still running.
var errNotReadYet = errors.New("the value is being read; try again in a few seconds")

// ErrPanic is the error of a read that panicked.
var ErrPanic = errors.New("internal error: panic; see the log")

// CatchPanic calls f. If f panics, it logs the panic. The HTTP server recovers panics only in its
// own goroutines, so a panic in another goroutine would end the process.
func CatchPanic(log *slog.Logger, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic while a value for the console or the health check was read", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	f()
}
