package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/problem"
)

const (
	firstEvent  = "id: 1.a\nevent: changed\ndata: {\"freshness\":\"FRESH\",\"lastCheckedAt\":\"2026-11-20T20:37:53Z\",\"etag\":\"W/\\\"a\\\"\"}\n\n"
	secondEvent = "id: 2.a\nevent: checked\ndata: {\"freshness\":\"FRESH\"}\n\n"
)

// streams is a service whose responses are the given functions, in this order. Further requests
// get the last response.
type streams struct {
	requests []*http.Request
	at       []time.Time
	answers  []http.RoundTripper
	closed   int
}

func (s *streams) RoundTrip(r *http.Request) (*http.Response, error) {
	s.requests, s.at = append(s.requests, r), append(s.at, time.Now())
	resp, err := s.answers[min(len(s.requests), len(s.answers))-1].RoundTrip(r)
	if err == nil {
		resp.Body = &countedBody{resp.Body, s}
	}
	return resp, err
}

// roundTrip is a transport of one function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type countedBody struct {
	io.ReadCloser
	s *streams
}

func (b *countedBody) Close() error { b.s.closed++; return b.ReadCloser.Close() }

// ending returns a stream that ends after the text.
func ending(text string) http.RoundTripper {
	return roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: 200, Status: "200 OK", Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(strings.NewReader(text)),
		}, nil
	})
}

// open returns a stream that sends the text, and then nothing until the request is cancelled.
func open(text string) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		reader, writer := io.Pipe()
		go func() {
			_, _ = io.WriteString(writer, text)
			<-r.Context().Done()
			_ = writer.CloseWithError(r.Context().Err())
		}()
		resp, err := ending("").RoundTrip(r)
		resp.Body = reader
		return resp, err
	})
}

func answering(status int, code, after string) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		return always(status, problemBody(status, code), "Retry-After", after).RoundTrip(r)
	})
}

// follow returns the first n events of a stream. If an error occurs earlier, it returns the events
// before the error, and the error.
func follow(ctx context.Context, c *Client, n int, options ...CallOption) (events []Event, err error) {
	for e, err := range c.Watch(ctx, anEntity, options...) {
		if err != nil {
			return events, err
		}
		if events = append(events, e); len(events) == n {
			break
		}
	}
	return events, nil
}

func ids(events []Event) (all []string) {
	for _, e := range events {
		all = append(all, e.ID)
	}
	return all
}

func TestWatch_YieldsTheEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &streams{answers: []http.RoundTripper{open("retry: 1500\n\n: alive\n\n" + firstEvent + "event: state\r\ndata: {\"freshness\":\r\ndata: \"UPDATING\"}\r\n\r\n")}}
		got, err := follow(t.Context(), newTestClient(t, s, Options{}), 2)
		if err != nil || len(got) != 2 {
			t.Fatalf("got %d events, %v, want 2", len(got), err)
		}
		want := Event{ID: "1.a", Type: Changed, Freshness: Fresh, LastCheckedAt: time.Date(2026, 11, 20, 20, 37, 53, 0, time.UTC), ETag: `W/"a"`}
		if !reflect.DeepEqual(got[0], want) {
			t.Errorf("first event: got %+v, want %+v", got[0], want)
		}
		if want := (Event{Type: State, Freshness: Updating}); !reflect.DeepEqual(got[1], want) {
			t.Errorf("second event: got %+v, want %+v", got[1], want)
		}
		if s.closed != 1 {
			t.Errorf("after the end of the loop: got %d closed streams, want 1", s.closed)
		}
	})
}

func TestWatch_ContinuesAfterTheLastEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &streams{answers: []http.RoundTripper{ending("retry: 2000\n\n" + firstEvent + "id: 9.x\nevent: chan"), open(secondEvent)}}
		got, err := follow(t.Context(), newTestClient(t, s, Options{}), 2)
		if err != nil || !slices.Equal(ids(got), []string{"1.a", "2.a"}) {
			t.Fatalf("got %v, %v, want both events", ids(got), err)
		}
		if id := s.requests[1].Header.Get("Last-Event-ID"); id != "1.a" {
			t.Errorf("got Last-Event-ID %q, want that of the last complete event", id)
		}
		if delay := s.at[1].Sub(s.at[0]); delay < 2*time.Second || delay > 2500*time.Millisecond {
			t.Errorf("got a reconnect after %v, want 2s to 2.5s", delay)
		}
		if s.closed != 2 {
			t.Errorf("got %d closed streams, want 2", s.closed)
		}
	})
}

func TestWatch_BeginsAfterAGivenEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &streams{answers: []http.RoundTripper{open(secondEvent)}}
		_, _ = follow(t.Context(), newTestClient(t, s, Options{}), 1, LastEventID("1.a"), Wait(time.Second))
		if h := s.requests[0].Header; h.Get("Last-Event-ID") != "1.a" || h.Get("Prefer") != "" {
			t.Errorf("got %v, want Last-Event-ID 1.a and no Prefer", h)
		}
	})
}

// Each case has a failure after which Watch must reconnect, and the limits of the delay before the
// reconnect.
func TestWatch_ReconnectsAfterTemporaryFailures(t *testing.T) {
	for name, c := range map[string]struct {
		answer   http.RoundTripper
		min, max time.Duration
	}{
		"no connection": {&brokenTransport{}, 2 * time.Second, 2500 * time.Millisecond},
		"unavailable":   {answering(503, "store-unavailable", "7"), 7 * time.Second, 9500 * time.Millisecond},
		"long limit":    {answering(429, "too-many-waiting", "60"), time.Minute, 75 * time.Second},
		"proxy":         {answering(502, "internal", ""), 2 * time.Second, 2500 * time.Millisecond},
		"no response":   {hangingTransport{}, DefaultTimeout + 2*time.Second, DefaultTimeout + 2500*time.Millisecond},
		"silent stream": {open(": alive\n\n"), streamIdleTimeout + time.Second, streamIdleTimeout + 1250*time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &streams{answers: []http.RoundTripper{c.answer, open(firstEvent)}}
			got, err := follow(t.Context(), newTestClient(t, s, Options{MaxRetries: -1}), 1)
			if err != nil || len(got) != 1 {
				t.Fatalf("%s: got %d events, %v, want 1", name, len(got), err)
			}
			if delay := s.at[1].Sub(s.at[0]); delay < c.min || delay > c.max {
				t.Errorf("%s: got a reconnect after %v, want %v to %v", name, delay, c.min, c.max)
			}
		})
	}
}

func TestWatch_DelaysGrowToTheirMaximum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s := &streams{answers: []http.RoundTripper{&brokenTransport{}}}
		_, _ = follow(ctx, newTestClient(t, s, Options{}), 1)
		if n := len(s.requests); n < 90 || n > 125 {
			t.Errorf("got %d requests in an hour without a service, want about one in 30s", n)
		}
	})
}

func TestWatch_EndsWithAPermanentError(t *testing.T) {
	for name, answer := range map[string]http.RoundTripper{
		"no such source": answering(404, "no-such-source", ""),
		"bad key":        answering(400, "bad-key", ""),
		"invalid token":  answering(401, "token-invalid", ""),
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &streams{answers: []http.RoundTripper{answer}}
			_, err := follow(t.Context(), newTestClient(t, s, (&issuer{}).options(aToken)), 1)
			if _, ok := errors.AsType[*Problem](err); !ok || len(s.requests) != 1 {
				t.Errorf("%s: got %v after %d requests, want a problem after 1", name, err, len(s.requests))
			}
		})
	}
}

func TestWatch_RefusesOtherResponses(t *testing.T) {
	for name, answer := range map[string]http.RoundTripper{
		"page":          always(200, "<html>"),
		"no JSON":       open("event: changed\ndata: hello\n\n"),
		"no freshness":  open("event: changed\ndata: {}\n\n"),
		"endless event": open("data: " + strings.Repeat("x", 70_000)),
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &streams{answers: []http.RoundTripper{answer}}
			got, err := follow(t.Context(), newTestClient(t, s, Options{MaxResponseBytes: 65_536}), 1)
			if err == nil || len(got) != 0 || len(s.requests) != 1 {
				t.Errorf("%s: got %d events, %v, %d requests, want an error after 1 request", name, len(got), err, len(s.requests))
			}
		})
	}
}

func TestWatch_RenewsAnExpiredToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, i := &streams{answers: []http.RoundTripper{ending(firstEvent), answering(401, "token-expired", ""), open(secondEvent)}}, &issuer{delay: 20 * time.Second}
		got, err := follow(t.Context(), newTestClient(t, s, i.options(aToken)), 2)
		if err != nil || len(got) != 2 || i.renewals.Load() != 1 {
			t.Errorf("got %d events, %v, %d renewals, want 2 events and 1 renewal", len(got), err, i.renewals.Load())
		}
	})
}

func TestWatch_OutlastsANetworkFailureOfTheRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, i := &streams{answers: []http.RoundTripper{answering(401, "token-expired", ""), answering(401, "token-expired", ""), open(firstEvent)}}, &issuer{errs: []error{errNetwork, errNetwork}}
		if got, err := follow(t.Context(), newTestClient(t, s, i.options(aToken)), 1); err != nil || len(got) != 1 {
			t.Errorf("got %d events, %v, want 1", len(got), err)
		}
	})
}

func TestWatch_EndsWhenSignedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &streams{answers: []http.RoundTripper{answering(401, "token-expired", "")}}
		_, err := follow(t.Context(), newTestClient(t, s, (&issuer{}).options(aToken)), 1)
		if p, ok := errors.AsType[*Problem](err); !errors.Is(err, ErrSignedOut) || !ok || p.Code != problem.TokenExpired {
			t.Errorf("got %v, want ErrSignedOut", err)
		}
	})
}

func TestWatch_EndsWithItsContext(t *testing.T) {
	for name, answer := range map[string]http.RoundTripper{
		"open stream": open(firstEvent), "reconnect": &brokenTransport{}, "no response": hangingTransport{},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(5*time.Second, func() { cancel(errors.New("enough")) })
			_, err := follow(ctx, newTestClient(t, &streams{answers: []http.RoundTripper{answer}}, Options{}), 2)
			if err == nil || err.Error() != "enough" {
				t.Errorf("%s: got %v, want the cause of the context", name, err)
			}
		})
	}
}

func TestWatch_WaitsForASlowCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &streams{answers: []http.RoundTripper{open(firstEvent + secondEvent)}}
		for e, err := range newTestClient(t, s, Options{}).Watch(t.Context(), anEntity) {
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if e.ID == "2.a" {
				break
			}
		}
		if len(s.requests) != 1 {
			t.Errorf("got %d streams, want 1", len(s.requests))
		}
	})
}
