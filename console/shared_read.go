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

// sharedRead looks at something for all who ask, one look at a time. A look is nobody's: who
// leaves does not end it, and who can't wait for it any longer gets what was seen before.
type sharedRead[T any] struct {
	read    func(ctx context.Context) (T, error)
	timeout time.Duration // of one look
	clock   func() time.Time
	log     *slog.Logger

	mu          sync.Mutex
	latest      T
	at          time.Time     // when that was seen; zero: nothing was, so far
	attemptedAt time.Time     // when the last look ended
	err         error         // of that
	running     chan struct{} // closed when the look that is under way ends; nil: there is none
}

// get returns what was seen by a look that is not older than life, or else by one that ends
// now; or, if that fails or ctx ends first, what was seen before, and why it is nothing newer.
// at is when it was seen; zero: nothing is known.
func (s *sharedRead[T]) get(ctx context.Context, life time.Duration) (seen T, at time.Time, err error) {
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

// start has a look begun unless one is under way; mu is held. It returns what is closed when
// that has ended.
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
	var seen T
	err := errPanic
	recoverPanic(s.log, func() { seen, err = s.read(ctx) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attemptedAt, s.err = s.clock(), err
	if err == nil {
		s.latest, s.at = seen, s.attemptedAt
	}
	close(s.running)
	s.running = nil
}

var errPanic = errors.New("it ended in a panic, of which the log tells")

// recoverPanic calls f, which runs behind no request: a bug of one page must not end the process,
// which serves readers.
func recoverPanic(log *slog.Logger, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("the console has a bug", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	f()
}
