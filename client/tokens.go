package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// earlyRenewal is how long before it expires a token is renewed in the background. A token with a
	// shorter lifetime is renewed after half of it.
	earlyRenewal = 5 * time.Minute
	// renewTimeout limits one call of Renew.
	renewTimeout = 30 * time.Second
	// renewRetryDelay is the delay between a failed renewal and its only repetition, and the minimum
	// delay between two background renewals of the same token.
	renewRetryDelay = time.Second
	earlyRetryDelay = 30 * time.Second
)

// ErrSignedOut reports that the client has no valid token and can't get one. Every request returns
// it until SetToken is called. Options.Renew returns it, or an error that wraps it, if the issuer
// has refused the renewal. Any other error of Renew is temporary: it does not sign the client out.
var ErrSignedOut = errors.New("signed out; sign in again and call SetToken")

// ErrConfirm reports that the token of a sensitive request has expired and was renewed, and that the
// service has not handled the request. Show it to the user, and repeat the call after the user has
// confirmed it: the call then uses the new token.
var ErrConfirm = errors.New("the session was renewed and the request was not repeated; repeat it after the user has confirmed it")

// sensitiveKey is the context key of Sensitive.
type sensitiveKey struct{}

// Sensitive returns a context whose requests are not repeated after a renewal of the token. They
// return ErrConfirm instead. Use it for actions that a user must confirm again in a new session.
func Sensitive(ctx context.Context) context.Context {
	return context.WithValue(ctx, sensitiveKey{}, true)
}

// errRenewal reports that a renewal failed, and that it may be repeated.
var errRenewal = errors.New("the token could not be renewed; repeat the request later")

// Token is an API key or access token. Its value does not appear in formatted text, JSON or logs.
type Token struct {
	Value string `json:"-"`
	// Expires is when the token expires. The client uses it only to renew the token early, and never
	// rejects a token itself, so the clocks of the client and the issuer may differ. The zero time
	// disables early renewal.
	Expires time.Time
}

// Format writes a placeholder for every verb, so that no formatted text contains the token.
func (t Token) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue returns a placeholder.
func (t Token) LogValue() slog.Value { return slog.StringValue(redacted) }

const redacted = "[redacted]"

// tokens holds the current token and at most one renewal of it.
type tokens struct {
	renew       func(context.Context) (Token, error)
	onSignedOut func()
	log         *slog.Logger

	mu         sync.Mutex
	current    Token
	generation int       // number of the current token; each new token increases it by 1
	renewAt    time.Time // when a background renewal of the token starts; zero: never
	signedOut  bool
	running    *renewal // the renewal of the current token that is in progress; nil: none
}

// renewal is one renewal that several requests can wait for.
type renewal struct {
	done chan struct{}
	err  error // error of the renewal; set before `done` is closed
}

func newTokens(o Options) *tokens {
	t := &tokens{renew: o.Renew, onSignedOut: o.OnSignedOut, log: o.Log}
	t.store(o.Token)
	return t
}

func (t *tokens) set(token Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.store(token)
}

// store makes `token` the current token. A renewal that is still running belongs to an older
// generation, so its result is dropped.
func (t *tokens) store(token Token) {
	t.current, t.signedOut, t.running, t.renewAt = token, false, nil, time.Time{}
	t.generation++
	if left := time.Until(token.Expires); !token.Expires.IsZero() && left > 0 {
		t.renewAt = time.Now().Add(max(left-earlyRenewal, left/2))
	}
}

// get returns the current token and its generation. If there is none, get waits for a renewal. If
// the token expires soon, get starts a renewal in the background.
func (t *tokens) get(ctx context.Context) (value string, generation int, err error) {
	t.mu.Lock()
	if t.current.Value == "" && t.renew != nil && !t.signedOut {
		generation := t.generation
		t.mu.Unlock()
		if err := t.renewAfter(ctx, generation); err != nil {
			return "", 0, err
		}
		t.mu.Lock()
	}
	defer t.mu.Unlock()
	if t.signedOut {
		return "", 0, ErrSignedOut
	}
	if t.renew != nil && !t.renewAt.IsZero() && !time.Now().Before(t.renewAt) && t.running == nil {
		t.renewAt = time.Now().Add(earlyRetryDelay)
		t.start()
	}
	return t.current.Value, t.generation, nil
}

// renewAfter waits until the token of the generation has been replaced. It starts the renewal, or
// joins the running one. If ctx ends first, the renewal continues.
func (t *tokens) renewAfter(ctx context.Context, generation int) error {
	t.mu.Lock()
	if t.signedOut {
		t.mu.Unlock()
		return ErrSignedOut
	}
	if t.generation != generation {
		t.mu.Unlock()
		return nil
	}
	r := t.running
	if r == nil {
		r = t.start()
	}
	t.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// start starts the renewal of the current generation. The caller holds the lock.
func (t *tokens) start() *renewal {
	r := &renewal{done: make(chan struct{})}
	t.running = r
	go t.run(r, t.generation)
	return r
}

// run renews the token of the generation. It does not use the context of a request, because several
// requests wait for the renewal.
func (t *tokens) run(r *renewal, generation int) {
	token, err := t.call()
	if err != nil && !errors.Is(err, ErrSignedOut) {
		t.log.Warn("token renewal failed; it is repeated once", "err", err)
		_ = sleep(context.Background(), renewRetryDelay) // a background context, so the delay is never cut short
		token, err = t.call()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer close(r.done)
	switch replaced := t.generation != generation; {
	case replaced: // SetToken was called during the renewal, so the result of the renewal is dropped
	case errors.Is(err, ErrSignedOut):
		r.err = err
		t.signOut()
	case err != nil:
		t.log.Warn("token renewal failed", "err", err)
		t.running = nil
		r.err = fmt.Errorf("%w: %w", errRenewal, err)
	default:
		t.store(token)
	}
}

// call calls Renew once. It returns a panic of Renew as an error: otherwise the panic would end the
// process, because no caller of the client can recover a panic of this goroutine. The value of the
// panic can contain the token, so the error and the log have only the value's type.
func (t *tokens) call() (token Token, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("panic of type %T in Renew", value)
			t.log.Error("token renewal panicked", "type", fmt.Sprintf("%T", value), "stack", string(debug.Stack()))
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), renewTimeout)
	defer cancel()
	if token, err = t.renew(ctx); err == nil && token.Value == "" {
		err = errors.New("the function Renew returned an empty token; return the renewed token or an error")
	}
	return token, err
}

// reject handles the rejection of a token that was renewed just before. It signs the client out,
// unless another request has replaced the token in the meantime; then it returns the error
// `instead`.
func (t *tokens) reject(generation int, instead error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.signedOut: // another request got the same rejection earlier and has signed the client out
	case t.generation != generation:
		return instead
	default:
		t.signOut()
	}
	return fmt.Errorf("%w: the service rejected the renewed token: %w", ErrSignedOut, instead)
}

// signOut ends the use of the current token. The caller holds the lock.
func (t *tokens) signOut() {
	if t.signedOut {
		return
	}
	t.signedOut, t.current, t.running = true, Token{}, nil
	t.generation++
	t.log.Warn("client signed out")
	if t.onSignedOut != nil {
		go t.onSignedOut()
	}
}
