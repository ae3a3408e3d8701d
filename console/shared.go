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

// shared looks at something for all who ask, one look at a time. A look is nobody's: who
// leaves does not end it, and who can't wait for it any longer gets what was seen before.
type shared[T any] struct {
	see      func(ctx context.Context) (T, error)
	patience time.Duration // of one look
	clock    func() time.Time
	log      *slog.Logger

	mu     sync.Mutex
	latest T
	at     time.Time     // when that was seen; zero: nothing was, so far
	tried  time.Time     // when the last look ended
	err    error         // of that
	under  chan struct{} // closed when the look that is under way ends; nil: there is none
}

// get returns what was seen by a look that is not older than life, or else by one that ends
// now; or, if that fails or ctx ends first, what was seen before, and why it is nothing newer.
// at is when it was seen; zero: nothing is known.
func (s *shared[T]) get(ctx context.Context, life time.Duration) (seen T, at time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tried.IsZero() && s.clock().Sub(s.tried) < life {
		return s.latest, s.at, s.err
	}
	ended := s.begin()
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

// begin has a look begun unless one is under way; mu is held. It returns what is closed when
// that has ended.
func (s *shared[T]) begin() <-chan struct{} {
	if s.under == nil {
		s.under = make(chan struct{})
		go s.look()
	}
	return s.under
}

func (s *shared[T]) look() {
	ctx, cancel := context.WithTimeout(context.Background(), s.patience)
	defer cancel()
	var seen T
	err := errPanic
	surviving(s.log, func() { seen, err = s.see(ctx) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried, s.err = s.clock(), err
	if err == nil {
		s.latest, s.at = seen, s.tried
	}
	close(s.under)
	s.under = nil
}

var errPanic = errors.New("it ended in a panic, of which the log tells")

// surviving calls f, which runs behind no request: a bug of one page must not end the process,
// which serves readers.
func surviving(log *slog.Logger, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("the console has a bug", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	f()
}
