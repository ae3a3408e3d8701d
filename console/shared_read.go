package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// sharedRead runs a read for all callers, one at a time. A read does not end when its caller
// leaves. A caller whose context ends first gets the previous result.
type sharedRead[T any] struct {
	read    func(ctx context.Context) (T, error)
	timeout time.Duration // of one read
	clock   func() time.Time
	log     *slog.Logger

	mu          sync.Mutex
	latest      T
	at          time.Time     // of the latest successful read; zero: none
	attemptedAt time.Time     // end of the last read
	err         error         // of the last read
	running     chan struct{} // closed when the current read ends; nil: no read is running
}

// get returns the result of a read that is at most life old, or waits for a new read. If that
// fails, or ctx ends first, it returns the previous result and an error. at is the time of the
// result; zero: no read has succeeded yet.
func (s *sharedRead[T]) get(ctx context.Context, life time.Duration) (result T, at time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.attemptedAt.IsZero() && s.clock().Sub(s.attemptedAt) < life {
		return s.latest, s.at, s.err
	}
	ended := s.start()
	s.mu.Unlock()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	s.mu.Lock()
	select {
	case <-ended:
		return s.latest, s.at, s.err
	default:
		return s.latest, s.at, ctx.Err()
	}
}

// start starts a read unless one is running, and returns the channel that is closed at its end. mu
// must be held.
func (s *sharedRead[T]) start() <-chan struct{} {
	if s.running == nil {
		s.running = make(chan struct{})
		go s.run()
	}
	return s.running
}

func (s *sharedRead[T]) run() {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	var result T
	err := errPanic
	recoverPanic(s.log, func() { result, err = s.read(ctx) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attemptedAt, s.err = s.clock(), err
	if err == nil {
		s.latest, s.at = result, s.attemptedAt
	}
	close(s.running)
	s.running = nil
}

var errPanic = errors.New("internal error: panic; see the log")

// recoverPanic calls f and logs a panic. f runs in its own goroutine, where a panic would end the
// process.
func recoverPanic(log *slog.Logger, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("console goroutine panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	f()
}
