// Package tokens has the rows of credentials that renew themselves, and the statements that both
// databases share.
package tokens

import (
	"strings"
	"time"
)

// Token is the stored token of a credential that renews itself. Its times are on the clock of the
// database.
type Token struct {
	Source, Credential string
	// Generation increases by one with each token; 0 means that there was never a token.
	Generation int64
	Sealed     []byte // the encrypted token and refresh token; empty means none
	KeyID      string // id of the key that encrypted the field Sealed
	ExpiresAt  time.Time
	RenewAt    time.Time // time at which the renewal is due
	RenewedAt  time.Time // zero means that the token was never renewed
	Holder     string    // the process that renews the credential now; empty means none
	// ClaimedUntil is the end of the holder's claim. Without a holder it is the time of the next
	// attempt after a failed renewal.
	ClaimedUntil time.Time
	Failures     int // failed renewals since the last token
	State        State
	Error        string    // error of the last failed renewal
	Since        time.Time // time of the first failed renewal since the last token
}

// State says whether a credential with a token is renewed, or has stopped until an operator acts.
type State string

const (
	// Active means that the credential is renewed when it is due.
	Active State = ""
	// Stopped means that the credential is not renewed until an operator acts.
	Stopped State = "STOPPED"
)

// Due returns the time from which the next renewal can be claimed, and whether there is one: false for
// a stopped credential.
func (t Token) Due() (time.Time, bool) {
	due := t.RenewAt
	if t.ClaimedUntil.After(due) {
		due = t.ClaimedUntil
	}
	return due, t.State == Active
}

// Failure is a renewal that failed, as it is written to the database.
type Failure struct {
	Source, Credential string
	Generation         int64  // the generation that was to be replaced
	Holder             string // name of the process that tried the renewal
	State              State
	Error              string
	RetryIn            time.Duration
}

// tokenClock stands for the database's clock in the statements, in microseconds since 1970 UTC.
const tokenClock = "{now}"

// Statements for tokens, shared by both databases. Statement replaces their clock.
const (
	// Select returns the clock and all tokens with the columns of Scan. Arguments: source,
	// or empty for all sources.
	Select = `SELECT {now}, source, credential, generation, sealed, key_id, expires_at, renew_at, renewed_at, holder, claimed_until, failures, state, error, since
FROM tokens WHERE source = $1 OR $1 = '' ORDER BY source, credential`

	// Insert inserts the row of a credential without a token. Arguments: source, credential.
	Insert = `INSERT INTO tokens (source, credential) VALUES ($1, $2) ON CONFLICT DO NOTHING`

	// Claim claims a due renewal. Arguments: source, credential, generation, holder, lease in
	// microseconds.
	Claim = `UPDATE tokens SET holder = $4, claimed_until = {now} + $5
WHERE source = $1 AND credential = $2 AND generation = $3 AND state = '' AND renew_at <= {now} AND claimed_until <= {now}`

	// Save stores the next generation. It needs no claim: if two processes renewed the same
	// generation, the first token is stored. Arguments: Args.
	Save = `UPDATE tokens SET generation = $3, sealed = $4, key_id = $5, expires_at = {now} + $6, renew_at = {now} + $7, renewed_at = {now},
	holder = '', claimed_until = 0, failures = 0, state = $8, error = $9, since = CASE WHEN $8 = '' THEN 0 ELSE {now} END
WHERE source = $1 AND credential = $2 AND generation = $3 - 1`

	// Fail stores a failed renewal and ends the claim. Arguments: source, credential, generation,
	// holder, state, error, time until the next attempt in microseconds.
	Fail = `UPDATE tokens SET holder = '', claimed_until = {now} + $7, failures = failures + 1, state = $5, error = $6,
	since = CASE WHEN since = 0 THEN {now} ELSE since END
WHERE source = $1 AND credential = $2 AND generation = $3 AND holder = $4`

	// Refuse makes the renewal of a generation due, unless the token is younger than a minimum
	// age. Arguments: source, credential, generation, minimum age in microseconds.
	Refuse = `UPDATE tokens SET renew_at = {now}
WHERE source = $1 AND credential = $2 AND generation = $3 AND state = '' AND renew_at > {now} AND renewed_at <= {now} - $4`

	// Restart makes a renewal due at once, also of a stopped credential. A claim is kept.
	// Arguments: source, credential.
	Restart = `UPDATE tokens SET renew_at = {now}, claimed_until = CASE WHEN holder = '' THEN 0 ELSE claimed_until END,
	failures = 0, state = '', error = '', since = 0
WHERE source = $1 AND credential = $2`

	// Reseal replaces the encrypted form of a generation. Arguments: source, credential,
	// generation, old key id, sealed, new key id.
	Reseal = `UPDATE tokens SET sealed = $5, key_id = $6
WHERE source = $1 AND credential = $2 AND generation = $3 AND key_id = $4`
)

// Statement returns a statement of this package with an SQL expression for the clock.
func Statement(statement, clock string) string {
	return strings.ReplaceAll(statement, tokenClock, clock)
}

// Args returns the arguments of Save. The times are relative to now.
func (t Token) Args(lifetime, renewIn time.Duration) []any {
	return []any{t.Source, t.Credential, t.Generation, append([]byte{}, t.Sealed...), t.KeyID, lifetime.Microseconds(), renewIn.Microseconds(), string(t.State), t.Error}
}

// Args returns the arguments of Fail.
func (f Failure) Args() []any {
	return []any{f.Source, f.Credential, f.Generation, f.Holder, string(f.State), f.Error, f.RetryIn.Microseconds()}
}

// Scan reads the database's clock and the token from a row.
func (t *Token) Scan(scan func(...any) error) (now time.Time, err error) {
	var clock, expires, renew, renewed, claimed, since int64
	err = scan(&clock, &t.Source, &t.Credential, &t.Generation, &t.Sealed, &t.KeyID, &expires, &renew, &renewed, &t.Holder, &claimed, &t.Failures, &t.State, &t.Error, &since)
	t.ExpiresAt, t.RenewAt, t.RenewedAt = fromMicros(expires), fromMicros(renew), fromMicros(renewed)
	t.ClaimedUntil, t.Since = fromMicros(claimed), fromMicros(since)
	return fromMicros(clock), err
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
