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

// The record and what enforces share no code. After calls at random the record
// must have it that no more was accepted than is allowed, and that each refusal
// would have been too much.
func TestTheRecordAgreesWithEveryDecision(t *testing.T) {
	for _, x := range examples {
		for _, how := range []map[Switch]float64{nil, {FixedWindows: 1}, {SlidingWindows: 1}} {
			t.Run(fmt.Sprintf("%s %v", x.name, how), func(t *testing.T) {
				play(t, x.name, Options{Speed: 3, Misbehave: how}, func(t *testing.T, r rig) {
					chance := rand.New(rand.NewPCG(7, 7))
					for range 1_200 {
						r.do(x.call())
						if chance.IntN(3) == 0 {
							pass(time.Duration(chance.Int64N(int64(x.again) / int64(x.atOnce) / 3)))
						}
					}
					refused := 0
					for _, a := range r.u.accounts {
						refused += agrees(t, a)
					}
					if refused == 0 {
						t.Error("nothing was refused, so nothing was seen")
					}
				})
			})
		}
	}
}

// agrees returns how many refusals an account has.
func agrees(t *testing.T, a *account) int {
	t.Helper()
	var charged []entry
	refused, looked := 0, 0
	for _, e := range a.log {
		if e.refused {
			refused++
			if looked < 20 && !a.policy.strict && e.units > 0 { // each look goes over all of the record
				looked++
				if most := a.most(append(slices.Clip(charged), e)); most <= a.policy.limit+tolerance {
					t.Fatalf("%s %q refused %v units at %v, and would have had %v of %v", a.policy.name, a.scope, e.units, e.at, most, a.policy.limit)
				}
			}
		}
		if !e.refused || a.policy.strict {
			charged = append(charged, e)
		}
	}
	if most := a.most(charged); !a.policy.strict && most > a.policy.limit+tolerance {
		t.Errorf("%s %q accepted %v of %v", a.policy.name, a.scope, most, a.policy.limit)
	}
	return refused
}

func TestARefusalOfANexonKeyIsChargedToo(t *testing.T) {
	call := get("GET /maplestory/v1/id", "X-Nxopen-Api-Key: app-1")
	play(t, "nexon-development", Options{}, func(t *testing.T, r rig) {
		r.within(5, call)
		pass(time.Second)
		r.do(call()).has(t, 429)
		pass(1)
		for range 4 {
			r.do(call()).has(t, 200)
		}
		r.do(call()).has(t, 429)
	})
}

func TestAccountsAreApart(t *testing.T) {
	play(t, "nexon-development", Options{}, func(t *testing.T, r rig) {
		r.within(3, get("GET /x", "X-Nxopen-Api-Key: app-1"))
		r.within(2, get("GET /x", "X-Nxopen-Api-Key: app-2"))
		r.within(5, get("GET /x", "X-Nxopen-Api-Key: other-1"))
		r.do(ask("GET /x", "X-Nxopen-Api-Key: app-3")).has(t, 429)
	})
}

func TestAnAcceleratedDayEndsAtItsMidnight(t *testing.T) {
	// A day of ten minutes; the bubble begins at midnight of UTC, nine o'clock in
	// Korea, which is a multiple of that.
	call := get("GET /weather?serviceKey=k")
	play(t, "data-go-kr", Options{Speed: 144}, func(t *testing.T, r rig) {
		pass(time.Minute)
		for range 400 {
			for range 25 {
				r.do(call()).has(t, 200, `"value"`)
			}
			pass(1100 * time.Millisecond)
		}
		if p := r.policy("day"); r.u.Stats().Refused > 0 || p.Used != 10_000 || p.Window != "10m0s" {
			t.Fatalf("before the end of the day: %+v, %+v", r.u.Stats(), p)
		}
		r.do(call()).has(t, 200, "<returnReasonCode>22</returnReasonCode>")
		pass(100*time.Second - time.Nanosecond)
		r.do(call()).has(t, 200, "<returnReasonCode>22</returnReasonCode>")
		pass(time.Nanosecond)
		r.do(call()).has(t, 200, `"value"`)
		if p := r.policy("day"); p.Budget != 20_000 || p.MaxInWindow != 10_002 {
			t.Errorf("calls in two days: %+v", p)
		}
	})
}

// looking calls what is due when an answer is written.
type looking struct {
	*httptest.ResponseRecorder
	due func()
}

func (l looking) WriteHeader(status int) {
	l.due()
	l.ResponseRecorder.WriteHeader(status)
}

func TestADayBeginsAtMidnightInKorea(t *testing.T) {
	call := get("GET /x", "X-Nxopen-Api-Key: a")
	play(t, "nexon-development", Options{}, func(t *testing.T, r rig) {
		for range 200 {
			r.within(5, call)
			pass(time.Second + 1)
		}
		r.do(call()).has(t, 429)
		pass(15*time.Hour - 201*time.Second)
		r.do(call()).has(t, 429)
		if p := r.policy("day"); p.Budget != 1_000 {
			t.Errorf("within a day: %+v", p)
		}
		pass(time.Second + 1)
		r.do(call()).has(t, 200)
		if p := r.policy("day"); p.Budget != 2_000 {
			t.Errorf("in two days: %+v", p)
		}
	})
}

func TestSpeedMultipliesWhatABucketRestores(t *testing.T) {
	call := get("GET /admin/api/products/1.json", "X-Shopify-Access-Token: t")
	play(t, "shopify-rest", Options{Speed: 20}, func(t *testing.T, r rig) {
		r.within(40, call)
		pass(time.Second)
		r.within(40, call)
		r.do(call()).has(t, 429)
	})
}

func TestPlacesAreBackBeforeTheAnswerIs(t *testing.T) {
	play(t, "court", Options{Latency: simulator.Range{Min: 5 * time.Second, Max: 5 * time.Second}}, func(t *testing.T, r rig) {
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { r.do(ask("GET /case/7")).has(t, 200, "value") })
			pass(time.Second)
		}
		r.do(ask("GET /case/7")).has(t, 200, "<html>")
		r.do(ask("GET /case/7")).has(t, 200, "<html>")
		if s := r.u.Stats(); s.Refusals["in-flight"] != 2 || s.MaxInFlight != 4 {
			t.Errorf("a fourth in flight: %+v", s)
		}
		all.Wait()
		pass(time.Second)
		l := looking{httptest.NewRecorder(), func() {
			if r.u.inFlight != 0 {
				t.Errorf("%d are in flight when the answer is written", r.u.inFlight)
			}
		}}
		r.u.ServeHTTP(l, ask("GET /case/7"))
		if p := r.policy("in-flight"); p.MaxInWindow != 4 || p.Used != 20 || p.Budget != 39 {
			t.Errorf("four calls of 5 s each, of 13 s with three places: %+v", p)
		}
	})
}

func TestAResetForgetsStatisticsAndNotTheQuota(t *testing.T) {
	call := get("GET /r/golang/new", bearer, agent)
	play(t, "reddit", Options{}, func(t *testing.T, r rig) {
		r.within(1_000, call)
		r.do(call()).has(t, 429)
		r.do(ask("POST /_reset")).has(t, 204)
		if s := r.u.Stats(); s.Arrivals != 0 || s.Refused != 0 || len(s.Policies) != 0 || !s.First.IsZero() {
			t.Errorf("after a reset: %+v", s)
		}
		r.do(call()).has(t, 429)
		r.do(ask("GET /_stats")).has(t, 200, `"refused": 1`, `"name": "period"`)
		r.do(ask("GET /_else")).has(t, 404, "/_stats")
	})
}
