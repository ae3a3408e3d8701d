package client

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/problem"
)

// failing returns a service that answers with a problem n times, and then with a snapshot.
func failing(n, status int, code string, header ...string) *service {
	return &service{answer: func(i int, _ *http.Request, w http.ResponseWriter) {
		if i <= n {
			write(w, status, problemBody(status, code), header...)
			return
		}
		write(w, 200, freshBody)
	}}
}

func TestRetry_HonoursRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, began := failing(1, 503, "store-unavailable", "Retry-After", "3"), time.Now()
		got, err := newTestClient(t, s, Options{}).Get(t.Context(), anEntity)
		if err != nil || got.Freshness != Fresh {
			t.Errorf("got %q, %v, want FRESH", got.Freshness, err)
		}
		if took := time.Since(began); took < 3*time.Second || took > 3*time.Second+baseRetryDelay {
			t.Errorf("got a retry after %v, want 3s and a random part of at most %v", took, baseRetryDelay)
		}
	})
}

func TestRetry_EndsAfterMaxRetries(t *testing.T) {
	for configured, want := range map[int]int{-1: 1, 0: 1 + DefaultMaxRetries, 1: 2} {
		synctest.Test(t, func(t *testing.T) {
			s := failing(99, 503, "store-unavailable")
			_, err := newTestClient(t, s, Options{MaxRetries: configured}).Get(t.Context(), anEntity)
			if p, ok := errors.AsType[*Problem](err); !ok || p.Code != problem.StoreUnavailable {
				t.Errorf("got %v, want the problem of the last response", err)
			}
			if s.count() != want {
				t.Errorf("MaxRetries %d: got %d requests, want %d", configured, s.count(), want)
			}
		})
	}
}

// Each case has a kind of response. It also has the number of times that the client must send a read,
// a refresh and another POST that get this response.
func TestRetry_RepeatsWhatIsSafe(t *testing.T) {
	for _, c := range []struct {
		status              int
		code, after         string
		read, refresh, post int
	}{
		{503, "store-unavailable", "", 2, 2, 1},
		{503, "not-queued", "1", 2, 2, 1},
		{503, "keys-unavailable", "1", 2, 2, 2},
		{500, "internal", "", 2, 2, 1},
		{502, "", "", 2, 2, 1},
		{429, "too-many-requests", "1", 2, 2, 2},
		{429, "too-many-outstanding", "1", 2, 2, 1},
		{429, "too-many-outstanding", "11", 1, 1, 1}, // the requested delay of 11 s is longer than maxRetryDelay
		{429, "cooldown", "1", 1, 1, 1},
		{400, "bad-key", "", 1, 1, 1},
		{401, "token-expired", "", 1, 1, 1}, // the client has no function Renew, so it can't renew the token
		{404, "no-such-source", "", 1, 1, 1},
	} {
		for name, want := range map[string]int{"read": c.read, "refresh": c.refresh, "POST": c.post} {
			synctest.Test(t, func(t *testing.T) {
				s := failing(1, c.status, c.code, "Retry-After", c.after)
				client := newTestClient(t, s, Options{Token: Token{Value: aToken}})
				switch name {
				case "read":
					_, _ = client.Get(t.Context(), anEntity)
				case "refresh":
					_, _ = client.Refresh(t.Context(), anEntity)
				default:
					_, _ = client.Send(t.Context(), http.MethodPost, "/admin/v1/anything", nil)
				}
				if s.count() != want {
					t.Errorf("%s after %d %s: got %d requests, want %d", name, c.status, c.code, s.count(), want)
				}
			})
		}
	}
}

type brokenTransport struct{ calls int }

func (b *brokenTransport) RoundTrip(*http.Request) (*http.Response, error) {
	b.calls++
	return nil, errors.New("connection refused")
}

func TestRetry_RepeatsSafeRequestsWithoutAResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := &brokenTransport{}
		c := newTestClient(t, broken, Options{})
		_, err := c.Get(t.Context(), anEntity)
		if failed, ok := errors.AsType[*ConnectionError](err); !ok || failed.Address != "http://freshet.example" {
			t.Errorf("got %v, want a ConnectionError", err)
		}
		if broken.calls != 1+DefaultMaxRetries {
			t.Errorf("read: got %d calls, want %d", broken.calls, 1+DefaultMaxRetries)
		}
		broken.calls = 0
		_, _ = c.Refresh(t.Context(), anEntity)
		if broken.calls != 1+DefaultMaxRetries {
			t.Errorf("refresh: got %d calls, want %d", broken.calls, 1+DefaultMaxRetries)
		}
		broken.calls = 0
		_, _ = c.Send(t.Context(), http.MethodPost, "/admin/v1/anything", nil)
		if broken.calls != 1 {
			t.Errorf("POST: got %d calls, want 1", broken.calls)
		}
	})
}

func TestRetry_StopsWithoutBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failing(1<<30, 503, "store-unavailable")
		c := newTestClient(t, s, Options{})
		const reads = 200
		for range reads {
			_, _ = c.Get(t.Context(), anEntity)
		}
		if retries, limit := s.count()-reads, maxRetryBudget+reads/10; retries > limit || retries < limit-2 {
			t.Errorf("got %d retries of %d reads, want about %d", retries, reads, limit)
		}
	})
}

func TestRetry_ReturnsTheProblemBeforeTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := newTestClient(t, failing(9, 503, "store-unavailable", "Retry-After", "5"), Options{}).Get(ctx, anEntity)
		if _, ok := errors.AsType[*Problem](err); !ok || time.Since(began) != 0 {
			t.Errorf("got %v after %v, want the problem at once", err, time.Since(began))
		}
	})
}

func TestRetry_IgnoresAnInvalidRetryAfter(t *testing.T) {
	for _, value := range []string{"", "-5", "soon", "99999999999999999999", "1e3"} {
		if got := retryAfter(http.Header{"Retry-After": {value}}); got != 0 {
			t.Errorf("%q: got %v, want 0", value, got)
		}
	}
}

func TestRateLimit_DelaysTheOtherRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failing(1, 429, "too-many-requests", "Retry-After", "4", "RateLimit", `"requests";r=0;t=4`)
		c := newTestClient(t, s, Options{MaxRetries: -1})
		began := time.Now()
		_, _ = c.Get(t.Context(), anEntity)
		if _, err := c.Get(t.Context(), anEntity); err != nil || time.Since(began) != 4*time.Second {
			t.Errorf("second read: got %v after %v, want success after 4s", err, time.Since(began))
		}
	})
}

func TestRateLimit_ReturnsTheProblemOfALongPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failing(1, 429, "too-many-requests", "Retry-After", "60", "RateLimit", `"requests";r=0;t=60`)
		c := newTestClient(t, s, Options{})
		_, _ = c.Get(t.Context(), anEntity)
		time.Sleep(15 * time.Second)
		_, err := c.Get(t.Context(), anEntity)
		if p, ok := errors.AsType[*Problem](err); !ok || p.After != 45*time.Second {
			t.Errorf("got %v, want the problem with 45s left", err)
		}
		if s.count() != 1 {
			t.Errorf("got %d requests, want 1", s.count())
		}
	})
}

func TestRateLimit_OfAnotherPolicyDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failing(1, 429, "too-many-waiting", "Retry-After", "4", "RateLimit", `"waiting";r=0;t=4`)
		c := newTestClient(t, s, Options{MaxRetries: -1})
		began := time.Now()
		_, _ = c.Get(t.Context(), anEntity)
		if _, err := c.Get(t.Context(), anEntity); err != nil || time.Since(began) != 0 {
			t.Errorf("second read: got %v after %v, want success at once", err, time.Since(began))
		}
	})
}

// hangingTransport sends no response until the request is cancelled.
type hangingTransport struct{}

func (hangingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestTimeout_LimitsEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := newTestClient(t, hangingTransport{}, Options{MaxRetries: -1}).Get(t.Context(), anEntity, Wait(5*time.Second))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != DefaultTimeout+5*time.Second {
			t.Errorf("got %v after %v, want DeadlineExceeded after %v", err, time.Since(began), DefaultTimeout+5*time.Second)
		}
	})
}

func TestGet_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errors.New("enough")) })
		_, err := newTestClient(t, hangingTransport{}, Options{}).Get(ctx, anEntity)
		if err == nil || err.Error() != "enough" {
			t.Errorf("got %v, want the cause of the context", err)
		}
	})
}
