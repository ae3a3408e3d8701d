package storetest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/store/tokens"
)

// Tokens are the methods for tokens of credentials that renew themselves.
type Tokens interface {
	// Tokens returns the tokens of a source, or of all sources if source is empty, and the database's
	// time.
	Tokens(ctx context.Context, source string) (all []tokens.Token, now time.Time, err error)
	// AddToken inserts the row of a credential without a token, unless it exists.
	AddToken(ctx context.Context, source, credential string) error
	// ClaimToken claims the renewal of the token with this generation, for the duration of the lease.
	// It returns false if the renewal is not due, or if another process has claimed it.
	ClaimToken(ctx context.Context, source, credential string, generation int64, holder string, lease time.Duration) (bool, error)
	// SaveToken stores the next generation, which expires after `lifetime` and is due after `renewIn`.
	// It reports false if that generation is stored already.
	SaveToken(ctx context.Context, t tokens.Token, lifetime, renewIn time.Duration) (bool, error)
	// FailToken stores a failed renewal and ends the holder's claim. It reports false if the claim
	// ended before.
	FailToken(ctx context.Context, f tokens.Failure) (bool, error)
	// RefuseToken makes the renewal of a generation due, unless its token is younger than `minAge`.
	RefuseToken(ctx context.Context, source, credential string, generation int64, minAge time.Duration) (bool, error)
	// RestartToken makes a renewal due at once, also of a stopped credential.
	RestartToken(ctx context.Context, source, credential string) (bool, error)
	// ResealToken replaces the encrypted form of a generation that was encrypted with the key
	// `oldKey`.
	ResealToken(ctx context.Context, t tokens.Token, oldKey string) (bool, error)
}

// token returns the only token of the source "nexon", and the database's time.
func (b suite) token() (tokens.Token, time.Time) {
	b.Helper()
	all, now, err := b.store.Tokens(b.Context(), "nexon")
	if err != nil || len(all) != 1 {
		b.Fatalf("Tokens: got %d, %v, want 1", len(all), err)
	}
	return all[0], now
}

// done fails the test unless a write returned `want` without an error.
func (b suite) done(what string, want, got bool, err error) {
	b.Helper()
	if err != nil || got != want {
		b.Fatalf("%s: got %v, %v, want %v", what, got, err, want)
	}
}

func (b suite) saveToken(generation int64, lifetime, renewIn time.Duration) (bool, error) {
	return b.store.SaveToken(b.Context(), tokens.Token{Source: "nexon", Credential: "a", Generation: generation, Sealed: fmt.Appendf(nil, "s%d", generation), KeyID: "k1"}, lifetime, renewIn)
}

func (b suite) claimToken(generation int64, holder string) (bool, error) {
	return b.store.ClaimToken(b.Context(), "nexon", "a", generation, holder, time.Hour)
}

func (b suite) addToken(source, credential string) {
	b.Helper()
	if err := b.store.AddToken(b.Context(), source, credential); err != nil {
		b.Fatal(err)
	}
}

func testTokens(b suite) {
	b.addToken("nexon", "a")
	b.addToken("nexon", "a")
	b.addToken("other", "b")
	t, now := b.token()
	if due, active := t.Due(); t.Generation != 0 || len(t.Sealed) != 0 || due.After(now) || !active {
		b.Errorf("new token: got %+v at %v, want an active one that is due", t, now)
	}
	ok, err := b.saveToken(1, time.Hour, time.Minute)
	b.done("SaveToken(1)", true, ok, err)
	t, now = b.token()
	if t.Generation != 1 || string(t.Sealed) != "s1" || t.KeyID != "k1" || t.RenewedAt.After(now) ||
		t.ExpiresAt.Sub(t.RenewedAt) != time.Hour || t.RenewAt.Sub(t.RenewedAt) != time.Minute {
		b.Errorf("saved token: got %+v", t)
	}
	for _, generation := range []int64{0, 1, 3} {
		ok, err = b.saveToken(generation, time.Hour, time.Minute)
		b.done(fmt.Sprintf("SaveToken(%d) after 1", generation), false, ok, err)
	}
	t.Sealed, t.KeyID = []byte("new"), "k2"
	ok, err = b.store.ResealToken(b.Context(), t, "k0")
	b.done("ResealToken of another key", false, ok, err)
	ok, err = b.store.ResealToken(b.Context(), t, "k1")
	b.done("ResealToken", true, ok, err)
	if got, _ := b.token(); !bytes.Equal(got.Sealed, t.Sealed) || got.KeyID != "k2" || got.Generation != 1 {
		b.Errorf("resealed: got %+v", got)
	}
	all, _, err := b.store.Tokens(b.Context(), "")
	if err != nil || len(all) != 2 || all[1].Source != "other" {
		b.Errorf("all tokens: got %+v, %v", all, err)
	}
}

func testTokenClaims(b suite) {
	b.addToken("nexon", "a")
	ok, err := b.claimToken(0, "one")
	b.done("claim", true, ok, err)
	ok, err = b.claimToken(0, "two")
	b.done("second claim", false, ok, err)
	fail := func(holder string, state tokens.State, in time.Duration) (bool, error) {
		return b.store.FailToken(b.Context(), tokens.Failure{Source: "nexon", Credential: "a", Holder: holder, State: state, Error: "why", RetryIn: in})
	}
	ok, err = fail("two", tokens.Active, 0)
	b.done("failure of another holder", false, ok, err)
	ok, err = fail("one", tokens.Active, 0)
	b.done("failure", true, ok, err)
	if t, _ := b.token(); t.Failures != 1 || t.Error != "why" || t.Since.IsZero() || t.Holder != "" {
		b.Errorf("failed: got %+v", t)
	}
	ok, err = b.claimToken(0, "two")
	b.done("claim after a failure", true, ok, err)
	first, _ := b.token()
	ok, err = fail("two", tokens.Active, time.Hour)
	b.done("failure with a delay", true, ok, err)
	if t, _ := b.token(); !t.Since.Equal(first.Since) || t.Failures != 2 {
		b.Errorf("second failure: got %+v, want since %v", t, first.Since)
	}
	ok, err = b.claimToken(0, "two")
	b.done("claim before the delay ended", false, ok, err)
	ok, err = b.store.RestartToken(b.Context(), "nexon", "a")
	b.done("restart", true, ok, err)
	ok, err = b.claimToken(0, "three")
	b.done("claim after a restart", true, ok, err)
	ok, err = b.store.RestartToken(b.Context(), "nexon", "a")
	b.done("restart during a claim", true, ok, err)
	ok, err = b.claimToken(0, "four")
	b.done("claim of a claimed renewal after a restart", false, ok, err)
	ok, err = fail("three", tokens.Stopped, 0)
	b.done("stop", true, ok, err)
	ok, err = b.claimToken(0, "four")
	b.done("claim of a stopped credential", false, ok, err)
	ok, err = b.saveToken(1, time.Hour, time.Minute)
	b.done("save a stopped credential", true, ok, err)
	if t, _ := b.token(); t.State != tokens.Active || t.Failures != 0 || t.Error != "" || !t.Since.IsZero() {
		b.Errorf("saved after a stop: got %+v", t)
	}
	ok, err = b.claimToken(1, "four")
	b.done("claim before the renewal is due", false, ok, err)
	ok, err = b.store.RestartToken(b.Context(), "nexon", "unknown")
	b.done("restart of an unknown credential", false, ok, err)
}

// testTokenRace claims and saves one generation in many concurrent calls: one of each succeeds.
func testTokenRace(b suite) {
	b.addToken("nexon", "a")
	for generation := range int64(5) {
		var claims, saves atomic.Int64
		var wg sync.WaitGroup
		for n := range 6 {
			wg.Go(func() {
				claimed, err := b.claimToken(generation, fmt.Sprint(n))
				if err != nil {
					b.Error(err)
				}
				if claimed {
					claims.Add(1)
				}
				saved, err := b.saveToken(generation+1, time.Hour, 0)
				if err != nil {
					b.Error(err)
				}
				if saved {
					saves.Add(1)
				}
			})
		}
		wg.Wait()
		t, _ := b.token()
		if claims.Load() > 1 || saves.Load() != 1 || t.Generation != generation+1 {
			b.Fatalf("generation %d: got %d claims, %d saves, generation %d stored", generation, claims.Load(), saves.Load(), t.Generation)
		}
	}
}

func testTokenRefusal(b suite) {
	b.addToken("nexon", "a")
	ok, err := b.saveToken(1, time.Hour, 50*time.Minute)
	b.done("save", true, ok, err)
	refuse := func(generation int64, minAge time.Duration) (bool, error) {
		return b.store.RefuseToken(b.Context(), "nexon", "a", generation, minAge)
	}
	ok, err = refuse(1, time.Minute)
	b.done("refusal of a young token", false, ok, err)
	ok, err = refuse(2, 0)
	b.done("refusal of another generation", false, ok, err)
	ok, err = refuse(1, 0)
	b.done("refusal", true, ok, err)
	ok, err = b.claimToken(1, "one")
	b.done("claim after a refusal", true, ok, err)
	ok, err = refuse(1, 0)
	b.done("second refusal", false, ok, err)
	ok, err = b.saveToken(2, time.Hour, 50*time.Minute)
	b.done("save after a refusal", true, ok, err)
	ok, err = refuse(1, 0)
	b.done("late refusal of the old generation", false, ok, err)
}

func testTokenHostile(b suite) {
	b.addToken("nexon", "a")
	ok, err := b.claimToken(0, "é'")
	b.done("claim", true, ok, err)
	ok, err = b.store.FailToken(b.Context(), tokens.Failure{Source: "nexon", Credential: "a", Holder: "é'", Error: "'); DROP TABLE tokens; {now} é"})
	b.done("failure", true, ok, err)
	if t, _ := b.token(); t.Error != "'); DROP TABLE tokens; {now} é" {
		b.Errorf("error: got %q", t.Error)
	}
	if ok, err := b.store.SaveToken(b.Context(), tokens.Token{Source: "nexon", Credential: "a", Generation: 1, State: tokens.Stopped, Error: "revoked"}, 0, 0); err != nil || !ok {
		b.Errorf("SaveToken without a token: got %v, %v", ok, err)
	}
	if t, _ := b.token(); t.State != tokens.Stopped || t.Since.IsZero() || len(t.Sealed) != 0 {
		b.Errorf("revoked: got %+v", t)
	}
}
