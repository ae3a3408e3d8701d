package renewal

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/source/token"
	"github.com/freshet/freshet/store/tokens"
)

// begin starts a renewal of the token in the row, unless this process is renewing this token already.
func (r *Renewer) begin(ctx context.Context, row tokens.Token) {
	s := r.states[row.Credential]
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.renewing || s.row.Generation != row.Generation {
		return
	}
	s.renewing = true
	r.tasks.Go(func() {
		r.renew(ctx, row)
		r.mu.Lock()
		s.renewing = false
		r.mu.Unlock()
		r.deps.Notifier.WakeLocal(time.Now())
	})
}

// renew claims the renewal of a token, calls the token endpoint, and stores the next token or the
// failure. The claim ends with the stored result.
func (r *Renewer) renew(ctx context.Context, row tokens.Token) {
	claimed, err := r.deps.Store.ClaimToken(ctx, r.source, row.Credential, row.Generation, r.deps.Process, claimLease)
	if err != nil || !claimed {
		// The next call of work reads the claim of the other process. Without this pause, work would
		// be called in a loop while the database refuses claims.
		poll.Pause(ctx, time.Second)
		return
	}
	next, lifetime, err := r.request(ctx, row)
	hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err != nil {
		r.storeFailure(hard, row, err)
	} else {
		r.commit(hard, next, lifetime)
	}
	r.deps.Notifier.WakeAt(hard, time.Now())
}

// request calls the token endpoint and returns the next token, encrypted. lifetime is the time from
// the return of request until that token expires.
func (r *Renewer) request(ctx context.Context, row tokens.Token) (next tokens.Token, lifetime time.Duration, err error) {
	config := r.credentials[row.Credential].Token
	old, err := r.deps.Keys.Open(row)
	if err != nil {
		return next, 0, err
	}
	secrets, err := ReadSecrets(config, r.deps.Secret) // read again for each renewal, so that a changed file is used
	if err != nil {
		return next, 0, err
	}
	sent := time.Now()
	answer, err := r.call(ctx, row.Credential, config, secrets, old.Refresh)
	if err != nil {
		return next, 0, err
	}
	if answer.Assumed != "" {
		r.deps.Log.Warn("token lifetime missing or out of range; another lifetime is used", "source", r.source, "credential", row.Credential, "reason", answer.Assumed)
	}
	if answer.Refresh == "" {
		answer.Refresh = old.Refresh
	}
	next = tokens.Token{Source: r.source, Credential: row.Credential, Generation: row.Generation + 1}
	if err := r.deps.Keys.Seal(&next, Secrets{answer.Value, answer.Refresh}); err != nil {
		return next, 0, err
	}
	return next, answer.Lifetime - time.Since(sent), nil
}

// ReadSecrets reads the secrets of a token configuration by name.
func ReadSecrets(c token.Config, read func(token.Secret) (string, error)) (map[string]string, error) {
	secrets := map[string]string{}
	for name, at := range c.Secrets() {
		text, err := read(at)
		if (err != nil || text == "") && c.Optional(name) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the secret %s: %w", name, err)
		}
		secrets[name] = text
	}
	return secrets, nil
}

// maxClockOffset is a difference between the clocks of the endpoint and of this process. If the
// difference is larger, and the endpoint has refused a JWT, the JWT is signed again with the
// endpoint's time.
const maxClockOffset = 30 * time.Second

// call calls the token endpoint, at most twice: a JWT that is refused because this process has a
// wrong clock is signed again with the endpoint's time.
func (r *Renewer) call(ctx context.Context, name string, config token.Config, secrets map[string]string, refresh string) (token.Answer, error) {
	s := r.states[name]
	r.mu.Lock()
	offset := s.clockDelta
	r.mu.Unlock()
	for again := false; ; again = true {
		answer, err := r.callOnce(ctx, name, config, secrets, refresh, offset)
		var f *token.FailureError
		if err == nil || again || config.Grant != token.JWTBearer || !errors.As(err, &f) || (f.ClockOffset-offset).Abs() < maxClockOffset {
			return answer, err
		}
		offset = f.ClockOffset
		r.mu.Lock()
		s.clockDelta = offset
		r.mu.Unlock()
		r.deps.Log.Warn("clock of this machine differs from the token endpoint's; the JWT is signed again", "source", r.source, "credential", name, "offset", offset.Round(time.Second).String())
	}
}

func (r *Renewer) callOnce(ctx context.Context, name string, config token.Config, secrets map[string]string, refresh string, offset time.Duration) (token.Answer, error) {
	bound, cancel := context.WithTimeout(ctx, spendTimeout)
	defer cancel()
	req, err := config.NewRequest(context.WithoutCancel(ctx), secrets, refresh, time.Now().Add(offset)) // a request that was sent is always finished, because its response may contain a new refresh token
	if err != nil {
		return token.Answer{}, err
	}
	finished, err := r.deps.Spend(bound, name)
	if err != nil {
		return token.Answer{}, errors.New("no quota for a call of the token endpoint within " + spendTimeout.String())
	}
	hidden := []string{refresh, req.Header.Get("Authorization")}
	for _, text := range secrets {
		hidden = append(hidden, text)
	}
	status := 0
	client := *r.deps.Client
	client.Transport = statusReader{client.Transport, &status}
	answer, err := config.Do(&client, req, hidden)
	finished(status)
	return answer, err
}

// statusReader stores the status of the response.
type statusReader struct {
	http.RoundTripper
	status *int
}

// RoundTrip implements http.RoundTripper.
func (s statusReader) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.RoundTripper.RoundTrip(req)
	if err == nil {
		*s.status = resp.StatusCode
	}
	return resp, err
}

// commit stores the next token.
func (r *Renewer) commit(ctx context.Context, next tokens.Token, lifetime time.Duration) {
	answered := time.Now()
	config := r.credentials[next.Credential].Token
	saved, err := r.untilStored(ctx, next.Credential, func() (bool, error) {
		passed := time.Since(answered)
		return r.deps.Store.SaveToken(ctx, next, lifetime-passed, config.RenewIn(lifetime)-passed)
	})
	result := "superseded" // another process has stored this generation
	switch {
	case err != nil:
		result = "lost"
		r.deps.Log.Error("renewed token lost; the database did not store it", "source", r.source, "credential", next.Credential, "err", err)
	case saved:
		result = "ok"
	}
	r.metrics.renewed(next.Credential, result)
}

// untilStored calls the function `write` until the database is reachable or ctx ends, because the
// response of the token endpoint may contain the only valid refresh token.
func (r *Renewer) untilStored(ctx context.Context, credential string, write func() (bool, error)) (bool, error) {
	for {
		stored, err := write()
		r.conditions.Record(r.deps.Log, r.of(credential, conditionNotStored), err)
		if err == nil || !poll.Pause(ctx, time.Second) {
			return stored, err
		}
	}
}

// storeFailure stores a failed renewal and the delay of the next attempt.
func (r *Renewer) storeFailure(ctx context.Context, row tokens.Token, why error) {
	f := tokens.Failure{
		Source: r.source, Credential: row.Credential, Generation: row.Generation, Holder: r.deps.Process,
		Error: why.Error(), RetryIn: min(minRetryDelay<<min(row.Failures, 10), maxRetryDelay),
	}
	var answer *token.FailureError
	if errors.As(why, &answer) {
		f.RetryIn = max(f.RetryIn, answer.RetryAfter)
	}
	if (answer != nil && answer.NeedsOperator) || errors.Is(why, token.ErrNoRefreshToken) {
		f.State = tokens.Stopped
	}
	r.metrics.renewed(row.Credential, "failed")
	_, _ = r.untilStored(ctx, row.Credential, func() (bool, error) { return r.deps.Store.FailToken(ctx, f) }) // if the failure is not stored, the claim expires
}
