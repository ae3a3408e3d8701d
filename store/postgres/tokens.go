package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/freshet/freshet/store/tokens"
)

// tokenClock is PostgreSQL's clock in microseconds, so that the clocks of the processes do not
// matter.
const tokenClock = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint" //nolint:gosec // an expression, not a secret

// tokenStore has the methods of a Store for tokens of credentials.
type tokenStore struct{ connections *pgxpool.Pool }

// Tokens returns the tokens of a source, or of all sources if source is empty, and the database's
// time.
func (s tokenStore) Tokens(ctx context.Context, source string) (all []tokens.Token, now time.Time, err error) {
	rows, err := s.connections.Query(ctx, tokens.Statement(tokens.Select, tokenClock), source)
	if err != nil {
		return nil, now, fmt.Errorf("read the tokens: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var t tokens.Token
		if now, err = t.Scan(rows.Scan); err != nil {
			return nil, now, fmt.Errorf("read the tokens: %w", err)
		}
		all = append(all, t)
	}
	return all, now, rows.Err()
}

// AddToken inserts the row of a credential without a token, unless it exists.
func (s tokenStore) AddToken(ctx context.Context, source, credential string) error {
	_, err := s.execToken(ctx, source, credential, tokens.Insert, source, credential)
	return err
}

// ClaimToken claims the due renewal of a generation for the lease. It reports false if another
// process has the claim, or the renewal is not due.
func (s tokenStore) ClaimToken(ctx context.Context, source, credential string, generation int64, holder string, lease time.Duration) (bool, error) {
	return s.execToken(ctx, source, credential, tokens.Claim, source, credential, generation, holder, lease.Microseconds())
}

// SaveToken stores the next generation, which expires after lifetime and is due after renewIn. It
// reports false if that generation is stored already.
func (s tokenStore) SaveToken(ctx context.Context, t tokens.Token, lifetime, renewIn time.Duration) (bool, error) {
	return s.execToken(ctx, t.Source, t.Credential, tokens.Save, t.Args(lifetime, renewIn)...)
}

// FailToken stores a failed renewal and ends the holder's claim. It reports false if the claim
// ended before.
func (s tokenStore) FailToken(ctx context.Context, f tokens.Failure) (bool, error) {
	return s.execToken(ctx, f.Source, f.Credential, tokens.Fail, f.Args()...)
}

// RefuseToken makes the renewal of a generation due, unless its token is younger than minAge.
func (s tokenStore) RefuseToken(ctx context.Context, source, credential string, generation int64, minAge time.Duration) (bool, error) {
	return s.execToken(ctx, source, credential, tokens.Refuse, source, credential, generation, minAge.Microseconds())
}

// RestartToken makes a renewal due at once, also of a stopped credential.
func (s tokenStore) RestartToken(ctx context.Context, source, credential string) (bool, error) {
	return s.execToken(ctx, source, credential, tokens.Restart, source, credential)
}

// ResealToken replaces the encrypted form of a generation that was encrypted with the key oldKey.
func (s tokenStore) ResealToken(ctx context.Context, t tokens.Token, oldKey string) (bool, error) {
	return s.execToken(ctx, t.Source, t.Credential, tokens.Reseal, t.Source, t.Credential, t.Generation, oldKey, t.Sealed, t.KeyID)
}

func (s tokenStore) execToken(ctx context.Context, source, credential, statement string, args ...any) (bool, error) {
	tag, err := s.connections.Exec(ctx, tokens.Statement(statement, tokenClock), args...)
	if err != nil {
		return false, fmt.Errorf("write the token of source %s, credential %s: %w", source, credential, classifyError(err))
	}
	return tag.RowsAffected() > 0, nil
}
