package renewal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/freshet/freshet/store/tokens"
)

// ErrNoToken is returned if none of the call's credentials has a valid token.
var ErrNoToken = errors.New("no credential of the call has a valid token; see `freshet credentials list`")

// wait calls the function `done` at once, and again after each change of a credential's state, until
// `done` returns true. It returns an error after waitTimeout, or when ctx ends. `done` is called with
// r.mu held.
func (r *Renewer) wait(ctx context.Context, done func() bool) error {
	var timeout <-chan time.Time
	for {
		r.mu.Lock()
		ready, changed := done(), r.changed
		r.mu.Unlock()
		if ready {
			return nil
		}
		if timeout == nil { // most calls do not wait, and need no timer
			timer := time.NewTimer(waitTimeout)
			defer timer.Stop()
			timeout = timer.C
		}
		select {
		case <-changed:
		case <-timeout:
			return fmt.Errorf("%w (no renewal within %v)", ErrNoToken, waitTimeout)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// usable reports whether calls can use the credential now. The caller holds r.mu.
func (r *Renewer) usable(name string) bool {
	s := r.states[name]
	return s == nil || (!s.until.IsZero() && time.Now().Add(endMargin).Before(s.until))
}

// failed reports whether a renewal of the credential failed, or cannot be tried. The caller holds r.mu.
func (s *state) failed() bool {
	return s.reads > 0 && (s.row.State == tokens.Stopped || s.row.Failures > 0)
}

// Await returns the credentials that have a valid token. If none has one, it waits for a
// renewal, and returns ErrNoToken if the renewals fail.
func (r *Renewer) Await(ctx context.Context, names []string) (usable []string, err error) {
	var failure error
	unusable := func(name string) bool { return !r.usable(name) }
	err = r.wait(ctx, func() bool {
		if usable = names; !slices.ContainsFunc(names, unusable) {
			return true
		}
		if usable = slices.DeleteFunc(slices.Clone(names), unusable); len(usable) > 0 {
			return true
		}
		failure = r.failure(names)
		return failure != nil
	})
	return usable, errors.Join(failure, err)
}

// failure returns why none of the credentials has a valid token, or nil if a renewal can still succeed.
// The caller holds r.mu.
func (r *Renewer) failure(names []string) error {
	why := "the token has expired"
	for _, name := range slices.Backward(names) {
		s := r.states[name]
		if !s.failed() {
			return nil
		}
		if s.row.Error != "" {
			why = name + ": " + s.row.Error
		}
	}
	return fmt.Errorf("%w (%s)", ErrNoToken, why)
}

// Refused records that the upstream refused a call with the token of this generation (401). It makes
// the renewal of the token due, and waits for the next token. It reports whether the call can be
// repeated with a newer token.
func (r *Renewer) Refused(ctx context.Context, name string, generation int64) bool {
	s := r.states[name]
	if s == nil {
		return false
	}
	r.mu.Lock()
	failures, reads, first := s.row.Failures, s.reads, s.refused < generation
	young := s.row.Generation == generation && time.Since(s.since) < minRefusedAge+time.Second // a second of tolerance: the database receives the request later than this check runs
	failed := s.failed()
	if first && !young {
		s.refused = generation
	}
	r.mu.Unlock()
	if young || (first && !r.refuse(ctx, name, generation)) {
		return false
	}
	if first || failed {
		r.deps.Notifier.WakeLocal(time.Now()) // wakes this process: it renews the token, or reads a newer token whose notification was lost
	}
	newer := false
	err := r.wait(ctx, func() bool {
		newer = s.row.Generation > generation && r.usable(name)
		return newer || s.reads > reads && s.row.Generation == generation && (s.row.State == tokens.Stopped || s.row.Failures > failures || (!first && failed))
	})
	return err == nil && newer
}

// refuse makes the renewal of a token due in the database, for all processes. `generation` is the
// number of the token. It returns false if the database fails.
func (r *Renewer) refuse(ctx context.Context, name string, generation int64) bool {
	r.metrics.refused(name)
	due, err := r.deps.Store.RefuseToken(ctx, r.source, name, generation, minRefusedAge)
	if err != nil {
		r.mu.Lock()
		r.states[name].refused = generation - 1 // the next 401 requests the renewal again
		r.mu.Unlock()
		return false
	}
	if due {
		r.deps.Log.Info("credential refused by the upstream; renewal is due", "source", r.source, "credential", name, "generation", generation)
	}
	return true
}
