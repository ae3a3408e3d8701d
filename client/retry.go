package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/freshet/freshet/problem"
)

const (
	// maxRetryDelay is the maximum delay before a request is sent. If the service requests a longer
	// delay, the caller gets the problem at once.
	maxRetryDelay = 10 * time.Second
	// baseRetryDelay is the maximum delay before the first retry. It doubles with each retry.
	baseRetryDelay = 200 * time.Millisecond
	// maxRetryBudget is the maximum number of retries after a time without failures.
	maxRetryBudget = 10
	// retryRatio is the number of retries for each request: at most one of ten requests is repeated
	// while the service is down.
	retryRatio = 0.1
)

// retryBudget limits the retries of all requests of a client, so that retries do not multiply the
// load of a service that is down.
type retryBudget struct {
	mu   sync.Mutex
	left float64
}

func (b *retryBudget) deposit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = min(maxRetryBudget, b.left+retryRatio)
}

// withdraw reports whether a retry is allowed.
func (b *retryBudget) withdraw() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// retryDelay returns the delay before the request is repeated. The result `again` is false if it
// must not be repeated. A request that is not safe is repeated only if the service has rejected it
// before it was handled. A refresh during a cool-down is not repeated, because the entity was
// refreshed recently.
func (r *request) retryDelay(answer Response, err error, retries int) (delay time.Duration, again bool) {
	random := rand.N(baseRetryDelay << min(retries, 5)) //nolint:gosec // spreads retries; not a secret
	if err != nil {
		_, failed := errors.AsType[*ConnectionError](err)
		return random, failed && r.safe
	}
	switch answer.Code {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		code := answer.code()
		again = r.safe && code != problem.Cooldown || code == problem.TooManyRequests || code == problem.KeysUnavailable
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		again = r.safe
	}
	delay = retryAfter(answer.Header)
	return delay + random, again && delay <= maxRetryDelay
}

// fits reports whether ctx ends later than the delay.
func fits(ctx context.Context, delay time.Duration) bool {
	deadline, limited := ctx.Deadline()
	return !limited || time.Until(deadline) > delay
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pause delays the requests of a client that has reached its request limit.
type pause struct {
	mu     sync.Mutex
	until  time.Time
	reason *Problem
}

// observe starts a pause if a response has a RateLimit header for the policy "requests". The other
// policies limit only some of the requests.
func (p *pause) observe(answer Response) {
	if answer.Code != http.StatusTooManyRequests || !strings.HasPrefix(answer.Header.Get("RateLimit"), `"requests";r=0;`) {
		return
	}
	reason, ok := errors.AsType[*Problem](answer.Problem())
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := time.Now().Add(reason.After); until.After(p.until) {
		p.until, p.reason = until, reason
	}
}

// wait returns when the pause has ended. If that is later than maxRetryDelay or the end of ctx, wait
// returns the problem that has started the pause at once, with the remaining time in After.
func (p *pause) wait(ctx context.Context) error {
	p.mu.Lock()
	until, reason := p.until, p.reason
	p.mu.Unlock()
	if reason == nil {
		return nil
	}
	left := time.Until(until)
	if left <= 0 {
		return nil
	}
	if left > maxRetryDelay || !fits(ctx, left) {
		remaining := *reason
		remaining.After = left
		return &remaining
	}
	return sleep(ctx, left)
}
