package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The tests TestSession_TC1 to TC3 are the test cases 1 to 3 of system-management.md, section 6.2.

func TestSession_TC1RenewsAndRepeats(t *testing.T) {
	s, i := accepting("token-1"), &issuer{}
	got, err := newTestClient(t, s, i.options(aToken)).Get(t.Context(), anEntity)
	if err != nil || got.Freshness != Fresh {
		t.Errorf("got %q, %v, want FRESH", got.Freshness, err)
	}
	if got := i.renewals.Load(); got != 1 {
		t.Errorf("got %d renewals, want 1", got)
	}
	var tokens []string
	for _, r := range s.requests {
		tokens = append(tokens, bearer(r))
	}
	if got, want := fmt.Sprint(tokens), fmt.Sprint([]string{aToken, "token-1"}); got != want {
		t.Errorf("got requests with the tokens %s, want %s", got, want)
	}
}

func TestSession_TC2FailedRenewalSignsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, i := accepting("token of the next session"), &issuer{errs: []error{fmt.Errorf("the session has ended: %w", ErrSignedOut)}}
		c := newTestClient(t, s, i.options(aToken))
		if _, err := c.Get(t.Context(), anEntity); !errors.Is(err, ErrSignedOut) {
			t.Errorf("got %v, want ErrSignedOut", err)
		}
		synctest.Wait()
		if got := i.signedOut.Load(); got != 1 {
			t.Errorf("got %d calls of OnSignedOut, want 1", got)
		}
		if s.count() != 1 {
			t.Errorf("got %d requests, want 1", s.count())
		}
		c.SetToken(Token{Value: "token of the next session"}) // SetToken is called as if the user had signed in again
		if _, err := c.Get(t.Context(), anEntity); err != nil {
			t.Errorf("after SetToken: got %v, want no error", err)
		}
	})
}

func TestSession_TC3FiveRequestsShareOneRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, i := accepting("token-1"), &issuer{delay: time.Second}
		c := newTestClient(t, s, i.options(aToken))
		var all sync.WaitGroup
		for n := range 5 {
			all.Go(func() {
				if got, err := c.Get(t.Context(), anEntity); err != nil || got.Freshness != Fresh {
					t.Errorf("request %d: got %q, %v, want FRESH", n, got.Freshness, err)
				}
			})
		}
		all.Wait()
		if got := i.renewals.Load(); got != 1 {
			t.Errorf("got %d renewals, want 1", got)
		}
		if s.count() != 10 {
			t.Errorf("got %d requests, want 10", s.count())
		}
	})
}

// Each case has a kind of call. A sensitive call must be sent once, and once more after the
// confirmation.
func TestSensitive_IsNotRepeatedAfterARenewal(t *testing.T) {
	for name, call := range map[string]func(context.Context, *Client) error{
		"read": func(ctx context.Context, c *Client) error { _, err := c.Get(ctx, anEntity); return err },
		"refresh": func(ctx context.Context, c *Client) error {
			_, err := c.Refresh(ctx, anEntity, Wait(time.Second))
			return err
		},
		"any": func(ctx context.Context, c *Client) error {
			_, err := c.Send(ctx, http.MethodPost, "/admin/v1/sources/nexon/stop", struct{}{})
			return err
		},
		"watch": func(ctx context.Context, c *Client) error { _, err := follow(ctx, c, 1); return err },
	} {
		s, i := accepting("token-1"), &issuer{}
		c, ctx := newTestClient(t, s, i.options(aToken)), Sensitive(t.Context())
		if err := call(ctx, c); !errors.Is(err, ErrConfirm) {
			t.Errorf("%s: got %v, want ErrConfirm", name, err)
		}
		if s.count() != 1 || i.renewals.Load() != 1 {
			t.Errorf("%s: got %d requests and %d renewals, want 1 and 1", name, s.count(), i.renewals.Load())
		}
		if err := call(ctx, c); errors.Is(err, ErrConfirm) {
			t.Errorf("%s, confirmed: got %v, want another result", name, err)
		}
		if s.count() != 2 || bearer(s.last()) != "token-1" {
			t.Errorf("%s, confirmed: got %d requests, the last with %s, want 2 and token-1", name, s.count(), bearer(s.last()))
		}
	}
}

// Only the requests with the context of Sensitive return ErrConfirm. The other requests of the
// client are repeated after the renewal.
func TestSensitive_ConcernsOnlyItsOwnCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{delay: time.Second}
		c := newTestClient(t, accepting("token-1"), i.options(aToken))
		var confirm, answers atomic.Int64
		var all sync.WaitGroup
		for n := range 10 {
			all.Go(func() {
				ctx := t.Context()
				if n%2 == 0 {
					ctx = Sensitive(ctx)
				}
				switch _, err := c.Get(ctx, anEntity); {
				case err == nil:
					answers.Add(1)
				case errors.Is(err, ErrConfirm):
					confirm.Add(1)
				}
			})
		}
		all.Wait()
		if confirm.Load() != 5 || answers.Load() != 5 {
			t.Errorf("got %d calls with ErrConfirm and %d answers, want 5 and 5", confirm.Load(), answers.Load())
		}
	})
}

func TestSensitive_FailedRenewalIsNoConfirmation(t *testing.T) {
	i := &issuer{errs: []error{ErrSignedOut}}
	_, err := newTestClient(t, accepting("token-1"), i.options(aToken)).Get(Sensitive(t.Context()), anEntity)
	if !errors.Is(err, ErrSignedOut) || errors.Is(err, ErrConfirm) {
		t.Errorf("got %v, want ErrSignedOut", err)
	}
}

// The service and the issuer use the same clock, and the client uses a clock that differs by up to
// 10 minutes. The client reads an entity every 10 s for two hours. No read may fail.
func TestSession_ClocksMayDifferBy10Minutes(t *testing.T) {
	for name, c := range map[string]struct {
		lifetime, clientAhead time.Duration
		renewals              int64
	}{
		"same clock":              {30 * time.Minute, 0, 5},                 // the client renews each token 5 min before it expires
		"client late":             {30 * time.Minute, -10 * time.Minute, 4}, // the client learns from a rejection that a token has expired
		"client ahead":            {30 * time.Minute, 10 * time.Minute, 8},  // the clock of the client is ahead, so it renews each token 15 min before it expires
		"ended when they arrive":  {5 * time.Minute, 10 * time.Minute, 24},  // the client's clock shows that each token has already expired when it arrives, so only a rejection causes a renewal
		"client late, short life": {5 * time.Minute, -10 * time.Minute, 24},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &service{answer: func(_ int, r *http.Request, w http.ResponseWriter) {
				if end, err := time.Parse(time.RFC3339, bearer(r)); err != nil || !time.Now().Before(end) {
					expired(w)
					return
				}
				write(w, 200, freshBody)
			}}
			i := &issuer{}
			o := i.options("")
			o.Renew = func(ctx context.Context) (Token, error) {
				_, err := i.renew(ctx)
				end := time.Now().Add(c.lifetime)
				return Token{Value: end.Format(time.RFC3339), Expires: end.Add(-c.clientAhead)}, err // the expiry time is shifted by the difference of the two clocks, as if the client's clock were ahead
			}
			client := newTestClient(t, s, o)
			for range 2 * 360 {
				if _, err := client.Get(t.Context(), anEntity); err != nil {
					t.Fatalf("%s: got %v, want no error", name, err)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
			}
			if got := i.renewals.Load(); got != c.renewals {
				t.Errorf("%s: got %d renewals, want %d", name, got, c.renewals)
			}
		})
	}
}
