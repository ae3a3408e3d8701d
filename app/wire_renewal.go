package app

import (
	"context"
	"net/http"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/renewal"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/token"
)

// tokenEndpoint is the name that replaces the name of a facet in quotas, for calls of token
// endpoints. The full endpoint name of such a call is token/CREDENTIAL.
const tokenEndpoint = "token"

// simulatedToken is the token that a simulated upstream gets.
const simulatedToken = "freshet-simulated-token"

// tokensChannel returns the Redis channel that notifies workers of new tokens.
func tokensChannel(source string) string { return "tokens:{" + source + "}" }

// renewing returns the credentials of the source that renew themselves.
func renewing(s SourceConfig) (all []renewal.Credential) {
	for _, c := range s.Credentials {
		if c.Token != nil {
			all = append(all, renewal.Credential{Name: c.Name, Token: *c.Token})
		}
	}
	return all
}

// tokenNotifier returns the poller that wakes the renewers of a source.
func tokenNotifier(p parts, source string) *poll.Poller {
	return poll.New(tokensChannel(source), p.rdb, p.log, observe.Condition{
		Event: "credential_renewal_paused", Failing: "credential renewal paused; database not reachable", Recovered: "credential renewal continued; database reachable",
		Attr: "source", Value: source,
	})
}

// startRenewal renews the credentials of a source until the group stops. It returns nil if the source
// has no credential that renews itself. It calls the function closeBreakers for each new token.
func startRenewal(p parts, background *group, s *source.Source, l *limiter.Limiter, closeBreakers func(credential string)) (consumer.Tokens, error) {
	all := renewing(p.config.Sources[s.Name()])
	if len(all) == 0 {
		return nil, nil //nolint:nilnil // no credential renews itself
	}
	if p.simulated {
		for _, c := range all {
			if err := s.SetToken(c.Name, simulatedToken, 0, time.Now().AddDate(100, 0, 0)); err != nil {
				return nil, err
			}
		}
		return nil, nil //nolint:nilnil // the token of a simulated upstream does not expire
	}
	keys, err := renewal.NewKeyring(p.config.Secrets.KeyFile)
	if err != nil {
		return nil, err
	}
	if err := checkTokenKeys(p.store, keys, s.Name()); err != nil {
		return nil, err
	}
	r := renewal.New(s.Name(), all, renewal.Deps{
		Store: p.store, Keys: keys, Notifier: tokenNotifier(p, s.Name()), Spend: spendOn(l, all),
		Secret: readTokenSecret(p.secret),
		Use: func(credential string, t renewal.Token) error {
			if err := s.SetToken(credential, t.Value, t.Generation, t.Until); err != nil {
				return err
			}
			if t.Value != "" {
				closeBreakers(credential)
			}
			return nil
		},
		Client: token.NewClient(renewal.CallTimeout), Process: workerName(), Log: p.log, Metrics: p.reg,
	})
	background.run(r.Run)
	return r, nil
}

// checkTokenKeys returns an error if a stored token needs a key that the key file does not have.
// While the database is unreachable, it returns nil.
func checkTokenKeys(tokens renewal.Reader, keys *renewal.Keyring, source string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	rows, _, err := tokens.Tokens(ctx, source)
	if err != nil {
		return nil // not an error here, because the renewer reads the tokens again later
	}
	for _, row := range rows {
		if _, err := keys.Open(row); err != nil {
			return err
		}
	}
	return nil
}

// readTokenSecret returns a function that reads a secret of a token's configuration, which `read`
// redacts in all logs.
func readTokenSecret(read func(secretRef) (string, error)) func(token.Secret) (string, error) {
	return func(at token.Secret) (string, error) {
		return read(secretRef{setting: "token", env: at.Env, file: at.File})
	}
}

// tokenURL returns the URL of the token endpoint. Its host has no placeholders.
func tokenURL(c token.Config) string {
	if c.Request != nil {
		return c.Request.URL
	}
	return c.TokenURL
}

// spendOn returns a function that charges calls of token endpoints to the source's quota, in the lane
// HIGH.
func spendOn(l *limiter.Limiter, credentials []renewal.Credential) renewal.Spend {
	hosts := map[string]string{}
	for _, c := range credentials {
		hosts[c.Name] = hostOf(tokenURL(c.Token))
	}
	return func(ctx context.Context, credential string) (func(status int), error) {
		call := limiter.Call{Endpoint: tokenEndpoint + "/" + credential, Host: hosts[credential], Method: http.MethodPost, Credentials: []string{""}}
		acquire := l.Acquire
		for {
			permit, err := acquire(ctx, schemas.High, call)
			if err != nil {
				return nil, err
			}
			if permit.Spend() {
				permit.Written()
				return func(status int) {
					permit.Answered()
					// A response of the token endpoint does not show that the source accepts calls
					// again, so it must not end a backoff of the source.
					permit.ReportEnd(status, nil, func() bool { return true })
				}, nil
			}
			acquire = l.Reacquire // the permit expired before it was spent
		}
	}
}
