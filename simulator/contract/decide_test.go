package contract

import (
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/simulator"
)

// The log and the counters share no code. After random calls the log must show that no accepted
// call exceeded a limit, and that every refused call would have exceeded one.
func TestLog_AgreesWithDecisions(t *testing.T) {
	for _, x := range examples {
		for _, how := range []map[Switch]float64{nil, {FixedWindows: 1}, {SlidingWindows: 1}} {
			t.Run(fmt.Sprintf("%s %v", x.name, how), func(t *testing.T) {
				run(t, x.name, Options{Speed: 3, Misbehave: how}, func(t *testing.T, r rig) {
					chance := rand.New(rand.NewPCG(7, 7))
					for range 1_200 {
						r.do(x.call())
						if chance.IntN(3) == 0 {
							sleep(time.Duration(chance.Int64N(int64(x.resetAfter) / int64(x.atOnce) / 3)))
						}
					}
					refused := 0
					for _, a := range r.u.accounts {
						refused += checkAccount(t, a)
					}
					if refused == 0 {
						t.Error("no call was refused, so the test checks nothing")
					}
				})
			})
		}
	}
}

// checkAccount checks the log of an account and returns its number of refusals.
func checkAccount(t *testing.T, a *account) int {
	t.Helper()
	var charged []logEntry
	refused, looked := 0, 0
	for _, e := range a.log {
		if e.refused {
			refused++
			if looked < 20 && !a.policy.strict && e.units > 0 { // checks only the first 20 refusals, because each check reads the whole log
				looked++
				if most := a.maxInWindow(append(slices.Clip(charged), e)); most <= a.policy.limit+tolerance {
					t.Fatalf("%s %q refused %v units at %v, but the maximum would be %v of %v", a.policy.name, a.scope, e.units, e.at, most, a.policy.limit)
				}
			}
		}
		if !e.refused || a.policy.strict {
			charged = append(charged, e)
		}
	}
	if most := a.maxInWindow(charged); !a.policy.strict && most > a.policy.limit+tolerance {
		t.Errorf("%s %q accepted %v of %v", a.policy.name, a.scope, most, a.policy.limit)
	}
	return refused
}

func TestNexon_ChargesRejectedCalls(t *testing.T) {
	call := get("GET /maplestory/v1/id", "X-Nxopen-Api-Key: app-1")
	run(t, "nexon-development", Options{}, func(t *testing.T, r rig) {
		r.acceptAll(5, call)
		sleep(time.Second)
		r.do(call()).check(t, 429)
		sleep(1)
		for range 4 {
			r.do(call()).check(t, 200)
		}
		r.do(call()).check(t, 429)
	})
}

func TestAccounts_AreIndependent(t *testing.T) {
	run(t, "nexon-development", Options{}, func(t *testing.T, r rig) {
		r.acceptAll(3, get("GET /x", "X-Nxopen-Api-Key: app-1"))
		r.acceptAll(2, get("GET /x", "X-Nxopen-Api-Key: app-2"))
		r.acceptAll(5, get("GET /x", "X-Nxopen-Api-Key: other-1"))
		r.do(newRequest("GET /x", "X-Nxopen-Api-Key: app-3")).check(t, 429)
	})
}

func TestSpeed_DayEndsAtMidnight(t *testing.T) {
	// Speed 144 shortens a day to ten minutes. The short days are counted from midnight in Korea. The
	// test begins nine hours later, at midnight UTC. Nine hours are exactly 54 short days, so a short
	// day begins at the start of the test.
	call := get("GET /weather?serviceKey=k")
	run(t, "data-go-kr", Options{Speed: 144}, func(t *testing.T, r rig) {
		sleep(time.Minute)
		for range 400 {
			for range 25 {
				r.do(call()).check(t, 200, `"value"`)
			}
			sleep(1100 * time.Millisecond)
		}
		if p := r.policy("day"); r.u.Stats().Refused > 0 || p.Used != 10_000 || p.Window != "10m0s" {
			t.Fatalf("before the end of the day: got %+v, %+v", r.u.Stats(), p)
		}
		r.do(call()).check(t, 200, "<returnReasonCode>22</returnReasonCode>")
		sleep(100*time.Second - time.Nanosecond)
		r.do(call()).check(t, 200, "<returnReasonCode>22</returnReasonCode>")
		sleep(time.Nanosecond)
		r.do(call()).check(t, 200, `"value"`)
		if p := r.policy("day"); p.Budget != 20_000 || p.MaxInWindow != 10_002 {
			t.Errorf("two days: got %+v", p)
		}
	})
}

// statusWatcher calls a function when the response is written.
type statusWatcher struct {
	*httptest.ResponseRecorder
	due func()
}

func (l statusWatcher) WriteHeader(status int) {
	l.due()
	l.ResponseRecorder.WriteHeader(status)
}

func TestDay_BeginsAtMidnightInKorea(t *testing.T) {
	call := get("GET /x", "X-Nxopen-Api-Key: a")
	run(t, "nexon-development", Options{}, func(t *testing.T, r rig) {
		for range 200 {
			r.acceptAll(5, call)
			sleep(time.Second + 1)
		}
		r.do(call()).check(t, 429)
		sleep(15*time.Hour - 201*time.Second)
		r.do(call()).check(t, 429)
		if p := r.policy("day"); p.Budget != 1_000 {
			t.Errorf("one day: got %+v", p)
		}
		sleep(time.Second + 1)
		r.do(call()).check(t, 200)
		if p := r.policy("day"); p.Budget != 2_000 {
			t.Errorf("two days: got %+v", p)
		}
	})
}

func TestSpeed_MultipliesBucketRestore(t *testing.T) {
	call := get("GET /admin/api/products/1.json", "X-Shopify-Access-Token: t")
	run(t, "shopify-rest", Options{Speed: 20}, func(t *testing.T, r rig) {
		r.acceptAll(40, call)
		sleep(time.Second)
		r.acceptAll(40, call)
		r.do(call()).check(t, 429)
	})
}

func TestConcurrency_IsFreeBeforeResponse(t *testing.T) {
	run(t, "court", Options{Latency: simulator.Range{Min: 5 * time.Second, Max: 5 * time.Second}}, func(t *testing.T, r rig) {
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { r.do(newRequest("GET /case/7")).check(t, 200, "value") })
			sleep(time.Second)
		}
		r.do(newRequest("GET /case/7")).check(t, 200, "<html>")
		r.do(newRequest("GET /case/7")).check(t, 200, "<html>")
		if s := r.u.Stats(); s.Refusals["in-flight"] != 2 || s.MaxInFlight != 4 {
			t.Errorf("fourth call in flight: got %+v", s)
		}
		all.Wait()
		sleep(time.Second)
		l := statusWatcher{httptest.NewRecorder(), func() {
			if r.u.inFlight != 0 {
				t.Errorf("got %d in flight while the response is written", r.u.inFlight)
			}
		}}
		r.u.ServeHTTP(l, newRequest("GET /case/7"))
		if p := r.policy("in-flight"); p.MaxInWindow != 4 || p.Used != 20 || p.Budget != 39 {
			t.Errorf("four calls of 5 s with a limit of three for 13 s: got %+v", p)
		}
	})
}

func TestReset_KeepsQuota(t *testing.T) {
	call := get("GET /r/golang/new", bearer, agent)
	run(t, "reddit", Options{}, func(t *testing.T, r rig) {
		r.acceptAll(1_000, call)
		r.do(call()).check(t, 429)
		r.do(newRequest("POST /_reset")).check(t, 204)
		if s := r.u.Stats(); s.Arrivals != 0 || s.Refused != 0 || len(s.Policies) != 0 || !s.First.IsZero() {
			t.Errorf("after a reset: got %+v", s)
		}
		r.do(call()).check(t, 429)
		r.do(newRequest("GET /_stats")).check(t, 200, `"refused": 1`, `"name": "period"`)
		r.do(newRequest("GET /_else")).check(t, 404, "/_stats")
	})
}
