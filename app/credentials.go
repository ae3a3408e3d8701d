package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/freshet/freshet/renewal"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/token"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store/tokens"
)

// Credentials manages the credentials that renew themselves, on the database and Redis of the
// configuration.
type Credentials struct {
	process *Process
	parts   parts
	keys    *renewal.Keyring
}

// OpenCredentials connects to the database and Redis. The caller calls the returned function when it
// has finished.
func OpenCredentials(ctx context.Context, p *Process) (*Credentials, func(), error) {
	config, err := p.Load(RequiredSources)
	if err != nil {
		return nil, nil, err
	}
	if !slices.ContainsFunc(slices.Collect(maps.Values(config.Sources)), func(s SourceConfig) bool { return len(renewing(s)) > 0 }) {
		return nil, nil, UsageErrorf("no credential of the configuration renews itself; a credential with the section token does (docs/credentials.md)")
	}
	keys, err := renewal.NewKeyring(config.Secrets.KeyFile)
	if err != nil {
		return nil, nil, err
	}
	parts, closeAll, err := p.connect(ctx, config, "credentials")
	if err != nil {
		return nil, nil, err
	}
	return &Credentials{p, parts, keys}, closeAll, nil
}

// config returns the token configuration of a credential. `source` and `credential` may be empty if
// the configuration has only one credential that renews itself.
func (c *Credentials) config(source, credential string) (string, renewal.Credential, error) {
	var found []string
	var last renewal.Credential
	name := ""
	for _, s := range slices.Sorted(maps.Keys(c.parts.config.Sources)) {
		for _, one := range renewing(c.parts.config.Sources[s]) {
			if (source == "" || s == source) && (credential == "" || one.Name == credential) {
				name, last = s, one
			}
			found = append(found, s+"/"+one.Name)
		}
	}
	if last.Name == "" || len(found) > 1 && (source == "" || credential == "") {
		return "", last, UsageErrorf("name a credential that renews itself, as SOURCE/CREDENTIAL; the configuration has %v", found)
	}
	return name, last, nil
}

// List returns the states of all credentials that renew themselves.
func (c *Credentials) List(ctx context.Context) ([]status.Credential, error) {
	return credentialStates(ctx, c.parts.store, c.parts.config)
}

func credentialStates(ctx context.Context, reader renewal.Reader, config Config) ([]status.Credential, error) {
	rows, now, err := reader.Tokens(ctx, "")
	if err != nil {
		return nil, err
	}
	var all []status.Credential
	for _, name := range slices.Sorted(maps.Keys(config.Sources)) {
		for _, one := range renewing(config.Sources[name]) {
			row := tokens.Token{Source: name, Credential: one.Name}
			for _, r := range rows {
				if r.Source == name && r.Credential == one.Name {
					row = r
				}
			}
			all = append(all, status.Credential{
				Source: name, Credential: one.Name, Grant: one.Token.Grant, State: stateOf(row, now), Generation: row.Generation,
				EndsAt: schemas.OptionalTime(row.ExpiresAt), RenewAt: schemas.OptionalTime(row.RenewAt), KeyID: row.KeyID,
				Failures: row.Failures, Since: schemas.OptionalTime(row.Since), Error: row.Error,
			})
		}
	}
	return all, nil
}

func stateOf(row tokens.Token, now time.Time) string {
	switch {
	case row.State == tokens.Stopped:
		return status.CredentialStopped
	case row.Failures > 0:
		return status.CredentialFailing
	case row.Generation == 0:
		return status.CredentialNew
	case !row.ExpiresAt.After(now):
		return status.CredentialEnded
	}
	return status.CredentialActive
}

// Renew makes the renewal of a credential due at once, even if the credential has stopped.
func (c *Credentials) Renew(ctx context.Context, source, credential string) (string, error) {
	source, one, err := c.config(source, credential)
	if err != nil {
		return "", err
	}
	if err := c.parts.store.AddToken(ctx, source, one.Name); err != nil {
		return "", err
	}
	if err := c.audit(ctx, "credential-renew", source, one.Name); err != nil {
		return "", err
	}
	if _, err := c.parts.store.RestartToken(ctx, source, one.Name); err != nil {
		return "", err
	}
	tokenNotifier(c.parts, source).WakeAt(ctx, time.Now())
	return source + "/" + one.Name, nil
}

// Authorize obtains a new refresh token from a person and stores it. It calls the function `show`
// with the URL of the page on which the person grants the access.
func (c *Credentials) Authorize(ctx context.Context, source, credential string, show func(page string)) (string, error) {
	source, one, err := c.config(source, credential)
	if err != nil {
		return "", err
	}
	if one.Token.Grant != token.RefreshToken {
		return "", UsageErrorf("credential %s/%s has the grant %s; only the grant refresh-token needs a person's consent", source, one.Name, one.Token.Grant)
	}
	if one.Token.Consent.AuthorizeURL == "" {
		return "", UsageErrorf("sources.%s.credentials: %s needs token.consent.authorizeURL, the page on which a person agrees", source, one.Name)
	}
	secrets, err := renewal.ReadSecrets(one.Token, readTokenSecret(c.process.requireSecret))
	if err != nil {
		return "", err
	}
	answer, err := renewal.Authorize(ctx, one.Token, secrets, token.NewClient(renewal.CallTimeout), show)
	if err != nil {
		return "", err
	}
	if err := c.save(ctx, source, one, renewal.Secrets{Value: answer.Value, Refresh: answer.Refresh}, tokens.Token{}, answer.Lifetime); err != nil {
		return "", err
	}
	return source + "/" + one.Name, c.audit(ctx, "credential-authorize", source, one.Name)
}

// Revoke ends a credential: it revokes its tokens at the upstream if the configuration has an endpoint
// for it, deletes them from the database and stops the credential.
func (c *Credentials) Revoke(ctx context.Context, source, credential string) (name string, revoked bool, err error) {
	source, one, err := c.config(source, credential)
	if err != nil {
		return "", false, err
	}
	name = source + "/" + one.Name
	row, err := c.row(ctx, source, one.Name)
	if err != nil {
		return name, false, err
	}
	old, err := c.keys.Open(row)
	if err != nil {
		return name, false, err
	}
	stopped := tokens.Token{State: tokens.Stopped, Error: "revoked by an operator"}
	if err := c.save(ctx, source, one, renewal.Secrets{}, stopped, 0); err != nil {
		return name, false, err
	}
	if err := c.audit(ctx, "credential-revoke", source, one.Name); err != nil || one.Token.Consent.RevokeURL == "" {
		return name, false, err
	}
	secrets, err := renewal.ReadSecrets(one.Token, readTokenSecret(c.process.requireSecret))
	if err != nil {
		return name, false, err
	}
	return name, true, errors.Join(revokeToken(ctx, one.Token, secrets, old.Refresh, "refresh_token"), revokeToken(ctx, one.Token, secrets, old.Value, "access_token"))
}

// revokeToken revokes one token at the upstream. The error has no text of the answer, which may repeat
// the token.
func revokeToken(ctx context.Context, c token.Config, secrets map[string]string, value, hint string) error {
	if value == "" {
		return nil
	}
	req, err := c.NewRevokeRequest(ctx, secrets, value, hint)
	if err != nil {
		return err
	}
	resp, err := token.NewClient(renewal.CallTimeout).Do(req)
	if err != nil {
		return fmt.Errorf("the tokens are deleted here, but the upstream's endpoint did not answer; revoke the %s at the upstream", hint)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the tokens are deleted here, but the upstream's endpoint answered %d; revoke the %s at the upstream", resp.StatusCode, hint)
	}
	return nil
}

// row returns the stored token of a credential, and inserts its row if it is missing.
func (c *Credentials) row(ctx context.Context, source, credential string) (tokens.Token, error) {
	if err := c.parts.store.AddToken(ctx, source, credential); err != nil {
		return tokens.Token{}, err
	}
	rows, _, err := c.parts.store.Tokens(ctx, source)
	for _, row := range rows {
		if row.Credential == credential {
			return row, err
		}
	}
	return tokens.Token{}, errors.Join(err, fmt.Errorf("the token of %s/%s is not stored", source, credential))
}

// save stores the secrets as the token of the next generation and notifies the workers. If a worker
// stores a newer token at the same time, save reads this token and tries again.
func (c *Credentials) save(ctx context.Context, source string, one renewal.Credential, secrets renewal.Secrets, next tokens.Token, lifetime time.Duration) error {
	for range 5 {
		row, err := c.row(ctx, source, one.Name)
		if err != nil {
			return err
		}
		next.Source, next.Credential, next.Generation = source, one.Name, row.Generation+1
		if secrets != (renewal.Secrets{}) {
			if err := c.keys.Seal(&next, secrets); err != nil {
				return err
			}
		}
		saved, err := c.parts.store.SaveToken(ctx, next, lifetime, one.Token.RenewIn(lifetime))
		if err != nil {
			return err
		}
		if saved {
			tokenNotifier(c.parts, source).WakeAt(ctx, time.Now())
			return nil
		}
	}
	return fmt.Errorf("the token of %s/%s is renewed by a worker at the same time; try again", source, one.Name)
}

// RotateKeys encrypts all tokens with the first key of secrets.keyFile. It returns the number of
// tokens and the id of the key.
func (c *Credentials) RotateKeys(ctx context.Context) (changed int, keyID string, err error) {
	for again := true; again; {
		again = false
		rows, _, err := c.parts.store.Tokens(ctx, "")
		if err != nil {
			return changed, keyID, err
		}
		for _, row := range rows {
			if len(row.Sealed) == 0 {
				continue
			}
			secrets, err := c.keys.Open(row)
			if err != nil {
				return changed, keyID, err
			}
			old := row.KeyID
			if err := c.keys.Seal(&row, secrets); err != nil {
				return changed, keyID, err
			}
			if keyID = row.KeyID; old == keyID {
				continue
			}
			written, err := c.parts.store.ResealToken(ctx, row, old)
			if err != nil {
				return changed, keyID, err
			}
			if again = again || !written; written { // true if a worker has stored a newer token meanwhile: then the tokens are read again
				changed++
			}
		}
	}
	return changed, keyID, c.audit(ctx, "credential-rotate-keys", "", "")
}

// audit writes an audit entry about a credential.
func (c *Credentials) audit(ctx context.Context, action, source, credential string) error {
	return writeAudit(ctx, c.parts.store, action, source, map[string]string{"credential": credential})
}
