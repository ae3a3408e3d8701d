package contract

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/simulator"
)

// Each case makes its number of calls, and checks the response to the last call.
func TestSwitches_Effects(t *testing.T) {
	limited := get("GET /thing", bearer)
	github := get("GET /search/code?q=x", bearer)
	for _, x := range []struct {
		turned   Switch
		value    float64
		contract string
		call     func() *http.Request
		calls    int // number of calls; the test checks only the response to the last call
		status   int
		body     string
		headers  map[string]string
	}{
		{Silent, 1, "ietf", limited, 101, 429, "", map[string]string{"RateLimit": "", "RateLimit-Policy": "", "Retry-After": ""}},
		{Silent, 1, "ietf", limited, 1, 200, "", map[string]string{"RateLimit": "", "RateLimit-Policy": ""}},
		{ResetSkew, 7, "github-rest", github, 1, 200, "", map[string]string{"x-ratelimit-reset": "946684867"}},
		{ResetSkew, -7, "github-rest", github, 1, 200, "", map[string]string{"x-ratelimit-reset": "946684853"}},
		{RefusedWith200, 100, "ietf", limited, 101, 200, "#quota-exceeded", nil},
		{Forbidden, 100, "github-rest", github, 1, 403, "no permission", map[string]string{"x-ratelimit-remaining": "29"}},
		{NoRetryAfter, 100, "ietf", limited, 101, 429, "", map[string]string{"Retry-After": ""}},
		{FloatRetryAfter, 100, "ietf", limited, 101, 429, "", map[string]string{"Retry-After": "60.000"}},
		{LongRetryAfter, 100, "ietf", limited, 101, 429, "", map[string]string{"Retry-After": "121"}},
		{RemainingWhenRefused, 100, "ietf", limited, 101, 429, "", map[string]string{"RateLimit": `"burst";r=1;t=60,"daily";r=9900;t=86400`}},
		{VanishingPolicy, 1, "ietf", limited, 99, 200, "", map[string]string{"RateLimit-Policy": `"burst";q=100;w=60,"daily";q=10000;w=86400`}},
		{VanishingPolicy, 1, "ietf", limited, 100, 200, "", map[string]string{"RateLimit-Policy": "", "RateLimit": `"burst";r=0;t=60,"daily";r=9900;t=86400`}},
		{HTML, 100, "ietf", limited, 1, 200, "<html>", map[string]string{"Content-Type": "text/html;charset=UTF-8"}},
		{HTML, 0, "ietf", limited, 1, 200, "value", nil},
	} {
		run(t, x.contract, Options{Misbehave: map[Switch]float64{x.turned: x.value}}, func(t *testing.T, r rig) {
			r.acceptAll(x.calls-1, x.call)
			a := r.do(x.call())
			a.check(t, x.status, x.body)
			for name, want := range x.headers {
				a.checkHeader(t, name, want)
			}
		})
	}
}

func TestSwitches_Percentage(t *testing.T) {
	run(t, "ietf", Options{Misbehave: map[Switch]float64{HTML: 30}}, func(t *testing.T, r rig) {
		pages := 0
		for range 100 {
			if strings.Contains(r.do(newRequest("GET /thing", bearer)).body, "<html>") {
				pages++
			}
		}
		if pages < 10 || pages > 60 {
			t.Errorf("30 %% of 100: got %d", pages)
		}
	})
}

func TestSwitches_WindowKind(t *testing.T) {
	// halves makes 51 calls in one window, 50 of them near its end, and 100 calls just after its
	// end. It returns the number of refused calls, which depends on the kind of the window.
	halves := func(r rig) (refused int) {
		call := get("GET /thing", bearer)
		r.acceptAll(1, call)
		sleep(59 * time.Second)
		r.acceptAll(50, call)
		sleep(2 * time.Second)
		for range 100 {
			r.do(call())
		}
		return r.u.Stats().Refused
	}
	for turned, want := range map[Switch]int{FixedWindows: 0, SlidingWindows: 50} {
		run(t, "ietf", Options{Misbehave: map[Switch]float64{turned: 1}}, func(t *testing.T, r rig) {
			if got := halves(r); got != want {
				t.Errorf("%s: got %d refused, want %d", turned, got, want)
			}
		})
	}
}

func TestSwitches_NotReadyBeforeTwo(t *testing.T) {
	call := func(date string) func() *http.Request { return get("GET /x?date="+date, "X-Nxopen-Api-Key: a") }
	// The test begins at 09:00 on 1 January in Korea.
	run(t, "nexon", Options{Misbehave: map[Switch]float64{NotReady: 1}}, func(t *testing.T, r rig) {
		r.do(call("1999-12-31")()).check(t, 200, "value")
		r.do(call("2000-01-01")()).check(t, 400, "OPENAPI00004")
		sleep(15*time.Hour + 2*time.Hour - time.Second)
		r.do(call("2000-01-01")()).check(t, 400, "OPENAPI00009")
		r.do(call("1999-12-31")()).check(t, 200, "value")
		sleep(time.Second)
		r.do(call("2000-01-01")()).check(t, 200, "value")
		r.do(newRequest("GET /x")).check(t, 400, "OPENAPI00005")
	})
}

func TestSwitches_Gzip(t *testing.T) {
	run(t, "ietf", Options{Misbehave: map[Switch]float64{Gzip: 1}}, func(t *testing.T, r rig) {
		a := r.do(newRequest("GET /thing", bearer, "Accept-Encoding: gzip"))
		a.checkHeader(t, "Content-Encoding", "gzip")
		z, err := gzip.NewReader(strings.NewReader(a.body))
		if err != nil {
			t.Fatal(err)
		}
		if plain, err := io.ReadAll(z); err != nil || !strings.Contains(string(plain), "value") {
			t.Errorf("got body %s, error %v", plain, err)
		}
		r.do(newRequest("GET /thing", bearer)).check(t, 200, "value")
	})
}

func TestSkew_DoesNotAffectStats(t *testing.T) {
	run(t, "github-rest", Options{Skew: time.Hour}, func(t *testing.T, r rig) {
		a := r.do(newRequest("GET /search/code?q=x", bearer))
		a.checkHeader(t, "Date", "Sat, 01 Jan 2000 01:00:00 GMT")
		a.checkHeader(t, "x-ratelimit-reset", "946688460")
		if s := r.u.Stats(); !s.First.Equal(time.Now()) || !s.Last.Equal(time.Now()) {
			t.Errorf("got first %v, last %v", s.First, s.Last)
		}
	})
}

func TestExtraLatency_KeepsReportedValues(t *testing.T) {
	for _, o := range []Options{{MaxExtraLatency: time.Second}, {Latency: simulator.Range{Min: time.Millisecond, Max: time.Second}}} {
		run(t, "github-rest", o, func(t *testing.T, r rig) {
			left := make(chan string, 30)
			for range 30 {
				go func() {
					left <- r.do(newRequest("GET /search/code?q=x", bearer)).header.Get("x-ratelimit-remaining")
				}()
			}
			sleep(2 * time.Second)
			seen, order := map[string]bool{}, []string{}
			for range 30 {
				one := <-left
				seen[one] = true
				order = append(order, one)
			}
			inOrder := true
			for i := range order[1:] {
				inOrder = inOrder && len(order[i]) >= len(order[i+1]) && (len(order[i]) > len(order[i+1]) || order[i] > order[i+1])
			}
			if len(seen) != 30 || inOrder {
				t.Errorf("%+v: got order %v", o, order)
			}
		})
	}
}

func TestConcurrency_IsFreeAfterDisconnect(t *testing.T) {
	run(t, "stripe", Options{MaxExtraLatency: time.Hour}, func(t *testing.T, r rig) {
		q := newRequest("GET /v1/customers", bearer)
		ctx, cancel := context.WithCancel(t.Context())
		go r.do(q.WithContext(ctx))
		sleep(time.Second)
		cancel()
		sleep(time.Second)
		if p := r.policy("global-concurrency"); p.Used != 1 || r.u.inFlight != 0 {
			t.Errorf("got %+v, %d in flight", p, r.u.inFlight)
		}
	})
}
