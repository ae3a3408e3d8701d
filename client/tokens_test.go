package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/problem"
)

// accepting returns a service that accepts one token and rejects any other as expired.
func accepting(token string) *service {
	return &service{answer: func(_ int, r *http.Request, w http.ResponseWriter) {
		if bearer(r) != token {
			expired(w)
			return
		}
		write(w, 200, freshBody)
	}}
}

// issuer counts renewals. Renewal n returns the token "token-n", unless `errs` has an error for it.
type issuer struct {
	renewals  atomic.Int64
	delay     time.Duration
	errs      []error
	lifetime  time.Duration
	signedOut atomic.Int64
}

func (i *issuer) renew(ctx context.Context) (Token, error) {
	n := int(i.renewals.Add(1))
	if err := sleep(ctx, i.delay); err != nil {
		return Token{}, err
	}
	if n <= len(i.errs) && i.errs[n-1] != nil {
		return Token{}, i.errs[n-1]
	}
	t := Token{Value: fmt.Sprint("token-", n)}
	if i.lifetime > 0 {
		t.Expires = time.Now().Add(i.lifetime)
	}
	return t, nil
}

func (i *issuer) options(first string) Options {
	return Options{Token: Token{Value: first}, Renew: i.renew, OnSignedOut: func() { i.signedOut.Add(1) }}
}

var errNetwork = errors.New("issuer: connection refused")

func TestTokens_RenewOnceForAllRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, i := accepting("token-1"), &issuer{delay: time.Second}
		c := newTestClient(t, s, i.options(aToken))
		var answers atomic.Int64
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if r, err := c.Get(t.Context(), anEntity); err == nil && r.Freshness == Fresh {
					answers.Add(1)
				}
			})
		}
		all.Wait()
		if got := answers.Load(); got != 100 {
			t.Errorf("got %d answers, want 100", got)
		}
		if got := i.renewals.Load(); got != 1 {
			t.Errorf("got %d renewals, want 1", got)
		}
		if s.count() != 200 {
			t.Errorf("got %d requests, want 200", s.count())
		}
	})
}

// A request whose response with token-expired arrives after the renewal must not renew again.
func TestTokens_LateRejectionsDoNotRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, i := accepting("token-1"), &issuer{}
		answer := s.answer
		s.answer = func(n int, r *http.Request, w http.ResponseWriter) {
			if n == 1 {
				<-time.After(5 * time.Second)
			}
			answer(n, r, w)
		}
		c := newTestClient(t, s, i.options(aToken))
		var all sync.WaitGroup
		for n := range 3 {
			all.Go(func() {
				<-time.After(time.Duration(n) * time.Second)
				if _, err := c.Get(t.Context(), anEntity); err != nil {
					t.Errorf("request %d: got %v, want no error", n, err)
				}
			})
		}
		all.Wait()
		if got := i.renewals.Load(); got != 1 {
			t.Errorf("got %d renewals, want 1", got)
		}
	})
}

func TestTokens_HangingRenewalEndsNoOtherContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{delay: 20 * time.Second}
		c := newTestClient(t, accepting("token-1"), i.options(aToken))
		began := time.Now()
		var all sync.WaitGroup
		for n := 1; n <= 5; n++ {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*time.Second)
				defer cancel()
				if _, err := c.Get(ctx, anEntity); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("caller %d: got %v, want DeadlineExceeded", n, err)
				}
				if took := time.Since(began); took != time.Duration(n)*time.Second {
					t.Errorf("caller %d: got an end after %v, want %ds", n, took, n)
				}
			})
		}
		all.Wait()
		if _, err := c.Get(t.Context(), anEntity); err != nil { // this request waits for the renewal that the earlier callers started, although their contexts have ended
			t.Errorf("after the renewal: got %v, want no error", err)
		}
		if took := time.Since(began); took != 20*time.Second {
			t.Errorf("got the token after %v, want 20s", took)
		}
		if got := i.renewals.Load(); got != 1 {
			t.Errorf("got %d renewals, want 1", got)
		}
	})
}

func TestTokens_RefusedForEverEndsAfterTwoRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, i := accepting("no token"), &issuer{}
		c := newTestClient(t, s, i.options(aToken))
		_, err := c.Get(t.Context(), anEntity)
		if p, ok := errors.AsType[*Problem](err); !errors.Is(err, ErrSignedOut) || !ok || p.Code != problem.TokenExpired {
			t.Errorf("got %v, want ErrSignedOut with the problem token-expired", err)
		}
		for range 3 {
			if _, err := c.Get(t.Context(), anEntity); !errors.Is(err, ErrSignedOut) {
				t.Errorf("later request: got %v, want ErrSignedOut", err)
			}
		}
		if s.count() != 2 {
			t.Errorf("got %d requests, want 2", s.count())
		}
		synctest.Wait()
		if got := i.signedOut.Load(); got != 1 {
			t.Errorf("got %d calls of OnSignedOut, want 1", got)
		}
	})
}

func TestTokens_RefusedForEverSignsOutEveryWaitingRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, i := accepting("no token"), &issuer{delay: time.Second}
		answer := s.answer
		s.answer = func(n int, r *http.Request, w http.ResponseWriter) {
			time.Sleep(time.Second) // the delay makes all requests with the renewed token be in flight at the same time
			answer(n, r, w)
		}
		c := newTestClient(t, s, i.options(aToken))
		var group sync.WaitGroup
		for range 10 {
			group.Go(func() {
				if _, err := c.Get(t.Context(), anEntity); !errors.Is(err, ErrSignedOut) {
					t.Errorf("got %v, want ErrSignedOut", err)
				}
			})
		}
		group.Wait()
		synctest.Wait()
		if got := i.signedOut.Load(); got != 1 {
			t.Errorf("got %d calls of OnSignedOut, want 1", got)
		}
	})
}

// Each case has a sequence of results of renewals. 10 requests start at the same time with an expired
// token.
func TestTokens_Renewals(t *testing.T) {
	refused := fmt.Errorf("the refresh token is revoked: %w", ErrSignedOut)
	for name, c := range map[string]struct {
		errs      []error
		renewals  int64
		want      error
		signedOut int64
	}{
		"works":                     {nil, 1, nil, 0},
		"network fails once":        {[]error{errNetwork}, 2, nil, 0},
		"network fails twice":       {[]error{errNetwork, errNetwork}, 2, errNetwork, 0},
		"refused":                   {[]error{refused}, 1, ErrSignedOut, 1},
		"network fails, refused":    {[]error{errNetwork, refused}, 2, ErrSignedOut, 1},
		"its own context has ended": {[]error{context.DeadlineExceeded}, 2, nil, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			i := &issuer{delay: time.Second, errs: c.errs}
			s := &service{answer: func(_ int, r *http.Request, w http.ResponseWriter) {
				if bearer(r) == aToken {
					expired(w)
					return
				}
				write(w, 200, freshBody)
			}}
			client := newTestClient(t, s, i.options(aToken))
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					if _, err := client.Get(t.Context(), anEntity); !errors.Is(err, c.want) {
						t.Errorf("%s: got %v, want %v", name, err, c.want)
					}
				})
			}
			all.Wait()
			synctest.Wait()
			if got := i.renewals.Load(); got != c.renewals {
				t.Errorf("%s: got %d renewals, want %d", name, got, c.renewals)
			}
			if got := i.signedOut.Load(); got != c.signedOut {
				t.Errorf("%s: got %d calls of OnSignedOut, want %d", name, got, c.signedOut)
			}
		})
	}
}

func TestTokens_RenewAgainAfterANetworkFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{errs: []error{errNetwork, errNetwork}}
		c := newTestClient(t, accepting("token-3"), i.options(aToken))
		if _, err := c.Get(t.Context(), anEntity); !errors.Is(err, errNetwork) {
			t.Errorf("first request: got %v, want the network error", err)
		}
		if _, err := c.Get(t.Context(), anEntity); err != nil {
			t.Errorf("second request: got %v, want no error", err)
		}
	})
}

func TestTokens_InvalidNeverRenews(t *testing.T) {
	for _, code := range []string{"token-invalid", "token-missing"} {
		s, i := always(401, problemBody(401, code)), &issuer{}
		_, err := newTestClient(t, s, i.options(aToken)).Get(t.Context(), anEntity)
		if p, ok := errors.AsType[*Problem](err); !ok || string(p.Code) != code {
			t.Errorf("got %v, want the problem %s", err, code)
		}
		if i.renewals.Load() != 0 || s.count() != 1 {
			t.Errorf("%s: got %d renewals and %d requests, want 0 and 1", code, i.renewals.Load(), s.count())
		}
	}
}

func TestTokens_FirstTokenComesFromRenew(t *testing.T) {
	s, i := accepting("token-1"), &issuer{}
	if _, err := newTestClient(t, s, i.options("")).Get(t.Context(), anEntity); err != nil || s.count() != 1 {
		t.Errorf("got %v after %d requests, want success after 1", err, s.count())
	}
}

func TestTokens_SetTokenSignsInAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{errs: []error{ErrSignedOut}}
		c := newTestClient(t, accepting("another"), i.options(aToken))
		_, _ = c.Get(t.Context(), anEntity)
		c.SetToken(Token{Value: "another"})
		if _, err := c.Get(t.Context(), anEntity); err != nil {
			t.Errorf("got %v, want no error", err)
		}
	})
}

func TestTokens_SetTokenReplacesARunningRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{delay: 5 * time.Second}
		c := newTestClient(t, accepting("another"), i.options(aToken))
		time.AfterFunc(time.Second, func() { c.SetToken(Token{Value: "another"}) })
		if _, err := c.Get(t.Context(), anEntity); err != nil {
			t.Errorf("got %v, want no error", err)
		}
	})
}

// In each case the first token has another lifetime by the client's clock. The value of the map is
// the time at which the client must start the renewal. The service accepts each token, so only the
// clock of the client starts a renewal.
func TestTokens_RenewEarly(t *testing.T) {
	for lifetime, want := range map[time.Duration]time.Duration{
		time.Hour: 55 * time.Minute, 20 * time.Minute: 15 * time.Minute, 6 * time.Minute: 3 * time.Minute, time.Minute: 30 * time.Second,
		-10 * time.Minute: 0, 0: 0, // no early renewal: the token seems to have expired already because the issuer's clock is behind, or it has no expiry time
	} {
		synctest.Test(t, func(t *testing.T) {
			i := &issuer{delay: 3 * time.Second, errs: []error{errNetwork, errNetwork}}
			o := i.options(aToken)
			if lifetime != 0 {
				o.Token.Expires = time.Now().Add(lifetime)
			}
			c, began := newTestClient(t, always(200, freshBody), o), time.Now()
			for time.Since(began) < max(lifetime, 20*time.Minute) && i.renewals.Load() == 0 {
				asked := time.Now()
				if _, err := c.Get(t.Context(), anEntity); err != nil || time.Since(asked) != 0 {
					t.Fatalf("got %v after %v, want an answer at once", err, time.Since(asked))
				}
				synctest.Wait()
				if i.renewals.Load() == 0 {
					time.Sleep(10 * time.Second)
				}
			}
			if got := time.Since(began); i.renewals.Load() > 0 && got != want {
				t.Errorf("lifetime %v: got a renewal after %v, want %v", lifetime, got, want)
			}
			if want == 0 && i.renewals.Load() != 0 {
				t.Errorf("lifetime %v: got %d renewals, want none", lifetime, i.renewals.Load())
			}
			time.Sleep(time.Minute) // the early renewals fail in this time; no request may fail because of them
			if _, err := c.Get(t.Context(), anEntity); err != nil {
				t.Errorf("lifetime %v: got %v, want no error", lifetime, err)
			}
			time.Sleep(time.Minute)
		})
	}
}

func TestTokens_AppearInNoText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		log := slog.New(slog.NewJSONHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
		texts := []string{}
		for name, s := range map[string]http.RoundTripper{
			"expired": accepting("no token"), "invalid": always(401, problemBody(401, "token-invalid")),
			"unavailable": failing(1, 503, "store-unavailable"), "broken": &brokenTransport{}, "page": always(200, "<html>"),
		} {
			c := newTestClient(t, s, Options{Token: Token{Value: aToken}, Log: log, Renew: func(context.Context) (Token, error) {
				panic("the issuer has no answer for " + aToken)
			}})
			_, err := c.Get(t.Context(), anEntity)
			texts = append(texts, fmt.Sprintf("%v %+v %#v", err, err, err), fmt.Sprintf("%v %+v %#v %s", c, c, c, c))
			log.Info("a test", "name", name, "client", c, "err", err, "token", c.options.Token)
			if recorded, ok := s.(*service); ok {
				texts = append(texts, recorded.last().URL.String())
			}
		}
		token := Token{Value: aToken}
		encoded, err := json.Marshal(map[string]any{"token": token, "options": struct{ Token Token }{token}})
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, logged.String(), string(encoded), fmt.Sprintf("%v %+v %#v %s %q %x %d", token, token, token, token, token, token, token), fmt.Sprintf("%+v", Options{Token: token}))
		_, err = newTestClient(t, always(200, ""), Options{Token: Token{Value: aToken + "\r\nX: y"}}).Get(t.Context(), anEntity)
		for _, text := range append(texts, fmt.Sprint(err)) {
			if strings.Contains(text, aToken) || strings.Contains(text, fmt.Sprintf("%x", aToken)) {
				t.Errorf("got the token in %q, want it in no text", text)
			}
		}
	})
}
