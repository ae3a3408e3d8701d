package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/freshet/freshet/store"
)

// tokenClock returns the clock of this process in microseconds: SQLite runs in the process.
func tokenClock() string { return strconv.FormatInt(time.Now().UnixMicro(), 10) }

// tokens has the methods of a Store for tokens of credentials.
type tokens struct{ db *sql.DB }

// Tokens returns the tokens of a source, or of all sources if source is empty, and the database's
// time.
func (s tokens) Tokens(ctx context.Context, source string) (all []store.Token, now time.Time, err error) {
	rows, err := s.db.QueryContext(ctx, store.TokenStatement(store.SelectTokens, tokenClock()), source)
	if err != nil {
		return nil, now, fmt.Errorf("read the tokens: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var t store.Token
		if now, err = t.ScanToken(rows.Scan); err != nil {
			return nil, now, fmt.Errorf("read the tokens: %w", err)
		}
		all = append(all, t)
	}
	return all, now, rows.Err()
}

// AddToken inserts the row of a credential without a token, unless it exists.
func (s tokens) AddToken(ctx context.Context, source, credential string) error {
	_, err := s.execToken(ctx, source, credential, store.InsertToken, source, credential)
	return err
}

// ClaimToken claims the due renewal of a generation for the lease. It reports false if another
// process has the claim, or the renewal is not due.
func (s tokens) ClaimToken(ctx context.Context, source, credential string, generation int64, holder string, lease time.Duration) (bool, error) {
	return s.execToken(ctx, source, credential, store.ClaimToken, source, credential, generation, holder, lease.Microseconds())
}

// SaveToken stores the next generation, which expires after lifetime and is due after renewIn. It
// reports false if that generation is stored already.
func (s tokens) SaveToken(ctx context.Context, t store.Token, lifetime, renewIn time.Duration) (bool, error) {
	return s.execToken(ctx, t.Source, t.Credential, store.SaveToken, t.TokenArgs(lifetime, renewIn)...)
}

// FailToken stores a failed renewal and ends the holder's claim. It reports false if the claim
// ended before.
func (s tokens) FailToken(ctx context.Context, f store.TokenFailure) (bool, error) {
	return s.execToken(ctx, f.Source, f.Credential, store.FailToken, f.FailureArgs()...)
}

// RefuseToken makes the renewal of a generation due, unless its token is younger than minAge.
func (s tokens) RefuseToken(ctx context.Context, source, credential string, generation int64, minAge time.Duration) (bool, error) {
	return s.execToken(ctx, source, credential, store.RefuseToken, source, credential, generation, minAge.Microseconds())
}

// RestartToken makes a renewal due at once, also of a stopped credential.
func (s tokens) RestartToken(ctx context.Context, source, credential string) (bool, error) {
	return s.execToken(ctx, source, credential, store.RestartToken, source, credential)
}

// ResealToken replaces the encrypted form of a generation that was encrypted with the key oldKey.
func (s tokens) ResealToken(ctx context.Context, t store.Token, oldKey string) (bool, error) {
	return s.execToken(ctx, t.Source, t.Credential, store.ResealToken, t.Source, t.Credential, t.Generation, oldKey, t.Sealed, t.KeyID)
}

func (s tokens) execToken(ctx context.Context, source, credential, statement string, args ...any) (bool, error) {
	result, err := s.db.ExecContext(ctx, store.TokenStatement(statement, tokenClock()), args...)
	if err != nil {
		return false, fmt.Errorf("write the token of source %s, credential %s: %w", source, credential, err)
	}
	n, err := result.RowsAffected()
	return n > 0, err
}
