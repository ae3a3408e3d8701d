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

// sharedRead lets several callers share the result of one read, so that at most one read runs at a
// time. A read continues when the context of a caller ends. That caller gets the previous result.
type sharedRead[T any] struct {
	read    func(ctx context.Context) (T, error)
	timeout time.Duration // maximum duration of each read
	clock   func() time.Time
	log     *slog.Logger

	mu          sync.Mutex
	latest      T
	at          time.Time     // end of the last successful read; zero: no read has succeeded
	attemptedAt time.Time     // end of the last read, successful or not
	err         error         // error of the last read; nil: it succeeded
	running     chan struct{} // closed when the current read ends; nil: no read is running
}

// get returns the last result if it is younger than "life". Otherwise it starts a read, or joins
// the running read, and waits for its result. If the read fails, or ctx ends first, get returns the
// previous result and an error. at is the time of the returned result; zero: no read has succeeded
// yet.
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

// start starts a read unless one is running. It returns the channel that is closed when the read
// ends. The caller must hold mu.
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

// recoverPanic calls f. If f panics, it logs the panic. It is used in goroutines of the console,
// where a panic would otherwise end the process.
func recoverPanic(log *slog.Logger, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("console goroutine panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	f()
}
