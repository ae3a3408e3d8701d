package renewal

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/store/tokens"
)

const (
	// recheckInterval is the maximum time between two reads of the tokens. So a process that misses
	// the notification of a new token knows the token after this time at the latest.
	recheckInterval = 30 * time.Second
	// claimRecheckInterval replaces recheckInterval while another process renews a token, because
	// calls wait for the new token.
	claimRecheckInterval = 2 * time.Second
	// claimLease is longer than spendTimeout, two calls of CallTimeout and a commit.
	claimLease   = time.Minute
	spendTimeout = 15 * time.Second
	// CallTimeout bounds one call of a token endpoint.
	CallTimeout = 15 * time.Second
	// commitTimeout is how long a process tries to store the response of the token endpoint while the
	// database is unreachable.
	commitTimeout = 2 * time.Minute
	// minRefusedAge is the minimum age of a token that is renewed because of a 401. An upstream that
	// refuses each new token therefore costs at most one renewal in this time.
	minRefusedAge = 10 * time.Second
	// waitTimeout bounds how long a call waits for a renewal.
	waitTimeout = 30 * time.Second
	// endMargin is the time before the expiry of a token from which no new call gets the token. A
	// call that already has the token may still have to wait for its permit and its connection.
	endMargin = 2 * time.Second
	// minRetryDelay and maxRetryDelay limit the delay after a failed renewal. The delay doubles with
	// each failure in a row.
	minRetryDelay, maxRetryDelay = 5 * time.Second, 5 * time.Minute
)

// Renewer renews the tokens of one source. Its methods may be called concurrently.
type Renewer struct {
	source      string
	credentials map[string]Credential
	names       []string
	deps        Deps
	metrics     *metrics
	conditions  observe.Conditions
	tasks       sync.WaitGroup

	mu      sync.Mutex
	states  map[string]*state
	changed chan struct{} // closed when a state changes
}

// state is the state of one credential, as known to this process.
type state struct {
	row        tokens.Token
	reads      int // number of times that the row was read
	until      time.Time
	since      time.Time // when this process received the generation
	renewing   bool      // true: this process is renewing the token now
	refused    int64     // the last generation whose renewal this process has requested, because of a 401
	clockDelta time.Duration
}

// New returns a Renewer for the credentials of a source.
func New(source string, all []Credential, d Deps) *Renewer {
	r := &Renewer{source: source, credentials: map[string]Credential{}, deps: d, states: map[string]*state{}, changed: make(chan struct{})}
	for _, c := range all {
		r.credentials[c.Name] = c
		r.names = append(r.names, c.Name)
		r.states[c.Name] = &state{}
	}
	r.metrics = newMetrics(source, r.names, d.Metrics)
	return r
}

// Run renews tokens until ctx ends. It finishes a renewal whose request was sent.
func (r *Renewer) Run(ctx context.Context) error {
	defer r.tasks.Wait()
	return r.deps.Notifier.Run(ctx, recheckInterval, r.work)
}

// work reads the tokens, gives new ones to the source and begins due renewals. It returns when the
// next renewal is due.
func (r *Renewer) work(ctx context.Context, _ time.Time) (next time.Time, err error) {
	readAt := time.Now()
	rows, now, err := r.load(ctx)
	if err != nil {
		return time.Time{}, err
	}
	next = time.Now().Add(recheckInterval)
	for _, row := range rows {
		if _, known := r.credentials[row.Credential]; !known {
			continue
		}
		if err := r.apply(row, readAt, now); err != nil {
			r.conditions.Error(r.deps.Log, r.of(row.Credential, conditionUnreadable), err)
			continue
		}
		r.conditions.Resolved(r.deps.Log, r.of(row.Credential, conditionUnreadable))
		due, active := row.Due()
		switch wait := due.Sub(now); {
		case !active:
		case wait > 0 && row.Holder != "":
			next = earlier(next, readAt.Add(min(wait, claimRecheckInterval)))
		case wait > 0:
			next = earlier(next, readAt.Add(wait))
		default:
			r.begin(ctx, row)
		}
	}
	return next, nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// load reads the rows of the source, and inserts the rows of new credentials.
func (r *Renewer) load(ctx context.Context) ([]tokens.Token, time.Time, error) {
	rows, now, err := r.deps.Store.Tokens(ctx, r.source)
	if err != nil {
		return nil, now, err
	}
	missing := false
	for _, name := range r.names {
		if !slices.ContainsFunc(rows, func(t tokens.Token) bool { return t.Credential == name }) {
			missing = true
			if err := r.deps.Store.AddToken(ctx, r.source, name); err != nil {
				return nil, now, err
			}
		}
	}
	if missing {
		return r.deps.Store.Tokens(ctx, r.source)
	}
	return rows, now, nil
}

// apply records a row that was requested from the database at the time readAt. If the row has a new
// token, apply gives this token to the source.
func (r *Renewer) apply(row tokens.Token, readAt, now time.Time) error {
	s := r.states[row.Credential]
	r.mu.Lock()
	stale := s.reads > 0 && row.Generation < s.row.Generation
	newer := s.reads == 0 || row.Generation > s.row.Generation
	r.mu.Unlock()
	if stale { // this process has stored a newer token after the row was read
		return nil
	}
	until := time.Time{}
	if newer {
		secrets, err := r.deps.Keys.Open(row)
		if err != nil {
			return err
		}
		if until = readAt.Add(row.ExpiresAt.Sub(now)); secrets.Value == "" {
			until = time.Time{}
		}
		if err := r.deps.Use(row.Credential, Token{secrets.Value, row.Generation, until}); err != nil {
			return err
		}
		if row.Generation > 0 {
			r.deps.Log.Info("credential uses a new token", "source", r.source, "credential", row.Credential, "generation", row.Generation, "ends_in", time.Until(until).Round(time.Second).String())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if newer {
		s.until, s.since = until, readAt.Add(row.RenewedAt.Sub(now))
	}
	s.row = row
	s.reads++
	r.metrics.set(row.Credential, s.until, row)
	r.reportState(row)
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// reportState logs when a credential stops or fails, and when it works again.
func (r *Renewer) reportState(row tokens.Token) {
	stopped, failing := r.of(row.Credential, conditionStopped), r.of(row.Credential, conditionFailing)
	switch {
	case row.State == tokens.Stopped:
		r.conditions.Error(r.deps.Log, stopped, errors.New(row.Error))
	case row.Failures > 0:
		r.conditions.Warn(r.deps.Log, failing, errors.New(row.Error))
	default:
		r.conditions.Resolved(r.deps.Log, stopped)
		r.conditions.Resolved(r.deps.Log, failing)
	}
}

// The log conditions of a credential.
var (
	conditionStopped = observe.Condition{
		Event: "credential_stopped", Failing: "credential stopped; an operator must renew or authorize it", Recovered: "credential renewal works again",
	}
	conditionFailing = observe.Condition{
		Event: "credential_renewal_failing", Failing: "credential renewal failed; will retry", Recovered: "credential renewal succeeded",
	}
	conditionUnreadable = observe.Condition{
		Event: "credential_unreadable", Failing: "stored token of a credential can't be read", Recovered: "reading the stored token of a credential works again",
	}
	conditionNotStored = observe.Condition{
		Event: "credential_not_stored", Failing: "renewed token not stored; will retry", Recovered: "renewed token stored",
	}
)

// of returns a copy of a log condition for one credential.
func (r *Renewer) of(credential string, c observe.Condition) observe.Condition {
	c.Attr, c.Value = "credential", r.source+"/"+credential
	return c
}
