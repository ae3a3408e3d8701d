package renewal

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/source/token"
	"github.com/freshet/freshet/store/tokens"
)

// Reader reads tokens.
type Reader interface {
	// Tokens returns the tokens of a source and the database's time.
	Tokens(ctx context.Context, source string) (all []tokens.Token, now time.Time, err error)
	// AddToken inserts the row of a credential, without a token, unless the row exists.
	AddToken(ctx context.Context, source, credential string) error
	// RefuseToken makes the renewal of a token due, because the upstream has refused a call with it.
	// `generation` is the number of the token. Nothing changes if the token is younger than minAge.
	RefuseToken(ctx context.Context, source, credential string, generation int64, minAge time.Duration) (bool, error)
}

// Writer writes the results of renewals.
type Writer interface {
	// ClaimToken claims the due renewal of the token with the number `generation`. It reports false
	// if another process has the claim, or if the renewal is not due.
	ClaimToken(ctx context.Context, source, credential string, generation int64, holder string, lease time.Duration) (bool, error)
	// SaveToken stores the next token of a credential, with the next generation (number). It reports
	// false if a token with that generation is stored already.
	SaveToken(ctx context.Context, t tokens.Token, lifetime, renewIn time.Duration) (bool, error)
	// FailToken stores a failed renewal and ends the holder's claim.
	FailToken(ctx context.Context, f tokens.Failure) (bool, error)
}

// Store is the database with the tokens, which all processes share.
type Store interface {
	Reader
	Writer
}

// Editor changes tokens for an operator.
type Editor interface {
	// RestartToken makes the renewal of a credential due at once, even if the credential has stopped.
	RestartToken(ctx context.Context, source, credential string) (bool, error)
	// ResealToken replaces the encrypted form of a token. Nothing changes if the stored form was not
	// encrypted with the key that has the id oldKey.
	ResealToken(ctx context.Context, t tokens.Token, oldKey string) (bool, error)
}

// Notifier wakes the renewers of all processes (poll.Poller).
type Notifier interface {
	// Run calls the function `work` until ctx ends: at once, at the time `next` that `work` has
	// returned, after a wake-up, and at least once per interval.
	Run(ctx context.Context, interval time.Duration, work func(ctx context.Context, now time.Time) (next time.Time, err error)) error
	// WakeAt wakes all processes, and WakeLocal only this one.
	WakeAt(ctx context.Context, at time.Time)
	WakeLocal(at time.Time)
}

// Spend waits until the quota of the source allows a call of the token endpoint, and charges it. The
// caller calls the returned function with the status of the response; 0: there was no response.
type Spend func(ctx context.Context, credential string) (finished func(status int), err error)

// Token is one version of a credential's token.
type Token struct {
	Value      string
	Generation int64
	Until      time.Time // when the token expires, on the monotonic clock of this process
}

// Credential is a credential that renews itself.
type Credential struct {
	Name  string
	Token token.Config
}

// Deps are the dependencies of a Renewer.
type Deps struct {
	Store    Store
	Keys     *Keyring
	Notifier Notifier
	Spend    Spend
	// Secret reads a secret of the configuration. It returns "" if the secret is missing.
	Secret func(token.Secret) (string, error)
	// Use makes the source send its calls with a new token of a credential.
	Use     func(credential string, t Token) error
	Client  *http.Client
	Process string // name of the process, which holds claims
	Log     *slog.Logger
	Metrics prometheus.Registerer
}
