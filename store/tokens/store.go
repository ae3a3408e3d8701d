package tokens

import (
	"context"
	"fmt"
	"time"
)

// DB runs the statements of a Store in one database.
type DB interface {
	// Query calls the function row for each row of the result.
	Query(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error
	// Exec runs a statement. It returns the number of rows that the statement has written.
	Exec(ctx context.Context, statement string, args ...any) (written int64, err error)
	// Clock returns an SQL expression of the database's time in microseconds since 1970 UTC.
	Clock() string
}

// Store has the methods of a database's store for tokens of credentials.
type Store struct{ db DB }

// NewStore returns a Store in a database.
func NewStore(db DB) Store { return Store{db} }

// Tokens returns the tokens of a source, or of all sources if source is empty, and the database's
// time.
func (s Store) Tokens(ctx context.Context, source string) (all []Token, now time.Time, err error) {
	err = s.db.Query(ctx, func(scan func(...any) error) error {
		var t Token
		var err error
		now, err = t.Scan(scan)
		all = append(all, t)
		return err
	}, Statement(Select, s.db.Clock()), source)
	if err != nil {
		return nil, now, fmt.Errorf("read the tokens: %w", err)
	}
	return all, now, nil
}

// AddToken inserts the row of a credential without a token, unless it exists.
func (s Store) AddToken(ctx context.Context, source, credential string) error {
	_, err := s.exec(ctx, source, credential, Insert, source, credential)
	return err
}

// ClaimToken claims the renewal of the token with this generation, for the duration of the lease. It
// returns false if the renewal is not due, or if another process has claimed it.
func (s Store) ClaimToken(ctx context.Context, source, credential string, generation int64, holder string, lease time.Duration) (bool, error) {
	return s.exec(ctx, source, credential, Claim, source, credential, generation, holder, lease.Microseconds())
}

// SaveToken stores the next generation, which expires after `lifetime` and is due after `renewIn`. It
// reports false if that generation is stored already.
func (s Store) SaveToken(ctx context.Context, t Token, lifetime, renewIn time.Duration) (bool, error) {
	return s.exec(ctx, t.Source, t.Credential, Save, t.Args(lifetime, renewIn)...)
}

// FailToken stores a failed renewal and ends the holder's claim. It reports false if the claim
// ended before.
func (s Store) FailToken(ctx context.Context, f Failure) (bool, error) {
	return s.exec(ctx, f.Source, f.Credential, Fail, f.Args()...)
}

// RefuseToken makes the renewal of a generation due, unless its token is younger than `minAge`.
func (s Store) RefuseToken(ctx context.Context, source, credential string, generation int64, minAge time.Duration) (bool, error) {
	return s.exec(ctx, source, credential, Refuse, source, credential, generation, minAge.Microseconds())
}

// RestartToken makes a renewal due at once, also of a stopped credential.
func (s Store) RestartToken(ctx context.Context, source, credential string) (bool, error) {
	return s.exec(ctx, source, credential, Restart, source, credential)
}

// ResealToken replaces the encrypted form of a generation that was encrypted with the key `oldKey`.
func (s Store) ResealToken(ctx context.Context, t Token, oldKey string) (bool, error) {
	return s.exec(ctx, t.Source, t.Credential, Reseal, t.Source, t.Credential, t.Generation, oldKey, t.Sealed, t.KeyID)
}

func (s Store) exec(ctx context.Context, source, credential, statement string, args ...any) (bool, error) {
	written, err := s.db.Exec(ctx, Statement(statement, s.db.Clock()), args...)
	if err != nil {
		return false, fmt.Errorf("write the token of source %s, credential %s: %w", source, credential, err)
	}
	return written > 0, nil
}
