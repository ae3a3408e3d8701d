package consumer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

func of(facet string, n int) schemas.Entity {
	return schemas.Entity{Source: "nexon", Facet: facet, Key: fmt.Sprint(n)}
}

// once has the first call of an entity end that has just begun.
func once(h *Health, e schemas.Entity, c source.Class, probed func(time.Time) bool) diagnosis {
	now := time.Now()
	return h.record(callEnd{entity: e, first: now, began: now}, evidenceOf(source.Outcome{Class: c}), false, probed)
}

// see has calls end one after the other, a second apart, and returns what the last told.
func see(h *Health, facet string, entities int, classes ...source.Class) (last diagnosis) {
	for i, c := range classes {
		last = once(h, of(facet, i%entities), c, stops(h.unhealthy))
		time.Sleep(time.Second)
	}
	return last
}

// stops is a limiter that knows of a stop at any time, or at none.
func stops(always bool) func(time.Time) bool { return func(time.Time) bool { return always } }

func times(n int, c source.Class) []source.Class {
	all := make([]source.Class, n)
	for i := range all {
		all[i] = c
	}
	return all
}

func TestHealth_OpensIfMostCallsFail(t *testing.T) {
	for _, bad := range []source.Class{source.Transient, source.BadContent} {
		synctest.Test(t, func(t *testing.T) {
			h := NewHealth()
			if got := see(h, "a", 20, times(20, source.OK)...); got != noDiagnosis {
				t.Fatalf("after 20 good ends: %v", got)
			}
			if got := see(h, "a", 20, times(10, bad)...); got != noDiagnosis {
				t.Errorf("%s: half of the last 20 is not more than half, and gave %v", bad, got)
			}
			if got := see(h, "a", 1, bad); got != sourceOpened {
				t.Errorf("%s: the 11th bad end of the last 20 gave %v", bad, got)
			}
			if got := see(h, "a", 1, bad); got != sourceOpen {
				t.Errorf("%s: the next gave %v", bad, got)
			}
			if got := see(h, "a", 1, source.OK); got != recovered {
				t.Errorf("%s: a good end gave %v", bad, got)
			}
			if got := see(h, "a", 20, times(10, bad)...); got != noDiagnosis {
				t.Errorf("%s: what was before the recovery still counts: %v", bad, got)
			}
		})
	}
}

func TestHealth_NeedsFiveFailingEntities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		if got := see(h, "a", 4, times(40, source.Transient)...); got != noDiagnosis {
			t.Errorf("4 entities that fail all the time gave %v", got)
		}
		if got := see(h, "a", 5, times(5, source.Transient)...); got != sourceOpened {
			t.Errorf("the fifth gave %v", got)
		}
	})
}

// tries has entities be called, each as often as it fails, in the order in which a lane
// would: first all for the first time, a second apart, then those that fail again. Its
// keys begin at from. It returns what was diagnosed first.
func tries(h *Health, from, entities, times int, fails func(n int) bool) diagnosis {
	first := map[int]time.Time{}
	for try := range times {
		for n := range entities {
			if try > 0 && !fails(n) {
				continue
			}
			time.Sleep(time.Second)
			class := source.OK
			if fails(n) {
				class = source.Transient
			}
			if try == 0 {
				first[n] = time.Now()
			}
			end := callEnd{entity: of("a", from+n), first: first[n], began: time.Now()}
			if d := h.record(end, evidenceOf(source.Outcome{Class: class}), false, stops(h.unhealthy)); d != noDiagnosis {
				return d
			}
		}
	}
	return noDiagnosis
}

// What fails is called again: a third of the entities then makes most of the calls, and at
// the end of a round all of them. To stop the source for them would bury none of them, and
// stop it again.
func TestHealth_CountsRetriedEntitiesOnce(t *testing.T) {
	for _, c := range []struct{ entities, each, times int }{{15, 3, 4}, {60, 3, 3}, {300, 4, 9}, {1000, 5, 2}} {
		synctest.Test(t, func(t *testing.T) {
			h := NewHealth()
			for round := range 5 {
				if got := tries(h, 10_000*round, c.entities, c.times, func(n int) bool { return n%c.each == 0 }); got != noDiagnosis {
					t.Fatalf("%+v, round %d: gave %v", c, round, got)
				}
			}
			if got := tries(h, 0, 20, 3, func(int) bool { return true }); got != sourceOpened {
				t.Errorf("%+v: 20 entities that fail gave %v", c, got)
			}
		})
	}
}

// Those that were well before an outage hide it from nobody, however few are called in it.
func TestHealth_DetectsOutageOfRarelyCalledSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		see(h, "a", 1000, times(100, source.OK)...)
		if got := see(h, "a", 5, times(10, source.Transient)...); got != noDiagnosis {
			t.Errorf("ten bad calls of five entities gave %v", got)
		}
		if got := see(h, "a", 1, source.Transient); got != sourceOpened {
			t.Errorf("the eleventh gave %v", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		tries(h, 0, 100, 1, func(int) bool { return false })
		for n := range 5 { // one after the other, three times each
			got := tries(h, 1000+n, 1, 3, func(int) bool { return true })
			if (got == sourceOpened) != (n == 4) {
				t.Errorf("after %d that fail: %v", n+1, got)
			}
		}
	})
}

// Entities that failed long ago make nobody's failures now those of the source.
func TestHealth_IgnoresOldFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		for n := range 50 { // now and then one for which there is nothing right, among eight that are well
			if got := tries(h, 1000+n, 1, 2, func(int) bool { return true }); got != noDiagnosis {
				t.Fatalf("%v", got)
			}
			for range 3 {
				time.Sleep(time.Minute)
				see(h, "a", 8, times(8, source.OK)...)
			}
		}
		if got := tries(h, 5000, 1, 30, func(int) bool { return true }); got != noDiagnosis {
			t.Errorf("one entity that fails gave %v", got)
		}
	})
}

// An upstream that fails for three of five calls is sick, whoever is called.
func TestHealth_DetectsMostlyFailingUpstream(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			h, dice := NewHealth(), rand.New(rand.NewPCG(seed, 0))
			for n := range 1000 {
				time.Sleep(time.Millisecond)
				class := source.OK
				if dice.IntN(5) < 3 {
					class = source.Transient
				}
				if once(h, of("a", n), class, stops(h.unhealthy)) == sourceOpened {
					return
				}
			}
			t.Errorf("seed %d: not found in 1,000 calls", seed)
		})
	}
}

// An entity that was answered well and then fails is one that fails, and the other way round.
func TestHealth_UsesLastCallOfEachEntity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		see(h, "a", 9, times(9, source.OK)...)
		if got := see(h, "a", 9, times(11, source.Transient)...); got != sourceOpened {
			t.Errorf("nine that were well and all fail gave %v", got)
		}
		h = NewHealth()
		see(h, "a", 9, times(10, source.Transient)...)
		see(h, "a", 9, times(9, source.OK)...)
		if got := see(h, "a", 1, source.Transient); got != noDiagnosis {
			t.Errorf("nine that have failed, eight of them well again, gave %v", got)
		}
	})
}

func TestHealth_IgnoresScopeRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		for _, c := range []source.Class{source.Quota, source.Maintenance, source.AuthRefused} {
			if got := see(h, "a", 20, times(40, c)...); got != noDiagnosis {
				t.Errorf("%s gave %v", c, got)
			}
		}
		see(h, "a", 20, times(11, source.Transient)...)
		if got := see(h, "a", 1, source.AuthRefused); got != sourceOpen {
			t.Errorf("a refused credential made a sick source %v", got)
		}
	})
}

func TestHealth_ProbesUnhealthyEndpointAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		see(h, "well", 5, times(5, source.OK)...)
		if got := see(h, "sick", 11, times(11, source.Transient)...); got != endpointOpen {
			t.Fatalf("an endpoint that fails beside a good one gave %v", got)
		}
		if ok, _ := h.admit("well"); !ok {
			t.Error("the other endpoint may not be called")
		}
		if got := see(h, "well", 5, times(5, source.OK)...); got != noDiagnosis {
			t.Errorf("the other endpoint's good ends gave %v", got)
		}
		var probes []time.Duration
		start := time.Now()
		for range 10 * 60 { // ten minutes, asked once a second
			if ok, _ := h.admit("sick"); ok {
				probes = append(probes, time.Since(start))
				once(h, of("sick", 1), source.Transient, stops(false))
			}
			time.Sleep(time.Second)
		}
		for i, p := range probes[1:] {
			if gap, least := p-probes[i], min(endpointPause<<(i+1), endpointMaxPause); gap < least {
				t.Errorf("probes %v and %v: less than %v apart", probes[i], p, least)
			}
		}
		if len(probes) < 10 {
			t.Errorf("only %d probes in ten minutes: %v", len(probes), probes)
		}
		if got := see(h, "sick", 1, source.OK); got != recovered {
			t.Errorf("a good end gave %v", got)
		}
		if ok, _ := h.admit("sick"); !ok {
			t.Error("the endpoint may not be called after it")
		}
	})
}

func TestHealth_ForgetsClosedBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		see(h, "a", 11, times(11, source.Transient)...)
		bad := func(stopped func(time.Time) bool) diagnosis {
			return once(h, of("a", 1), source.Transient, stopped)
		}
		if got := bad(stops(false)); got != sourceOpen {
			t.Errorf("before the stop is known: %v", got)
		}
		if got := bad(stops(true)); got != sourceOpen {
			t.Errorf("a probe: %v", got)
		}
		lifted := time.Now()
		time.Sleep(time.Second)
		if got := bad(func(since time.Time) bool { return since.Before(lifted) }); got != noDiagnosis {
			t.Errorf("a call after another process has lifted it: %v", got)
		}
		see(h, "a", 11, times(11, source.Transient)...)
		time.Sleep(maxSyncDelay + time.Second)
		if got := bad(stops(false)); got != noDiagnosis {
			t.Errorf("a stop that nobody has heard of: %v", got)
		}
	})
}

func TestHealth_OpensSourceWithoutHealthyEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		see(h, "other", 5, times(5, source.OK)...)
		time.Sleep(healthyTTL) // that is too long ago
		if got := see(h, "sick", 11, times(11, source.Transient)...); got != sourceOpened {
			t.Errorf("%v", got)
		}
		h = NewHealth()
		see(h, "a", 5, times(6, source.Transient)...)
		if got := see(h, "b", 5, times(5, source.Transient)...); got != sourceOpened {
			t.Errorf("two endpoints that fail alike gave %v", got)
		}
	})
}

func TestVerdict_IsEntityFaultAfterLaterSuccess(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(h *Health)
		want verdict
		done bool
	}{
		{"another's, later", func(h *Health) { once(h, of("a", 2), source.OK, stops(false)) }, entityFault, true},
		{"another's absence, later", func(h *Health) { once(h, of("a", 2), source.NotFound, stops(false)) }, entityFault, true},
		{"its own", func(h *Health) { once(h, of("a", 1), source.OK, stops(false)) }, faultUnknown, false},
		{"another endpoint's", func(h *Health) { once(h, of("b", 2), source.OK, stops(false)) }, faultUnknown, false},
		{"begun before", func(h *Health) {
			at := time.Now().Add(-time.Hour)
			h.record(callEnd{entity: of("a", 2), first: at, began: at}, goodAnswer, false, stops(false))
		}, faultUnknown, false},
		{"a bad one", func(h *Health) { once(h, of("a", 2), source.BadContent, stops(false)) }, faultUnknown, false},
		{"an outage", func(h *Health) {
			for i := range 11 {
				once(h, of("a", 2+i), source.BadContent, stops(false))
			}
		}, sharedFault, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, q := NewHealth(), faultQuery{entity: of("a", 1), after: time.Now()}
			time.Sleep(time.Second)
			c.then(h)
			if got, done, _ := h.lookupVerdict(q); got != c.want || done != c.done {
				t.Errorf("%s: got %v, %v; want %v, %v", c.name, got, done, c.want, c.done)
			}
		})
	}
}

// Whatever a hostile reader's keys are answered with, in whatever order: no breaker opens
// while a known-good entity can be asked that does not fail, and a run that it answers
// well confirms the failures before it.
func TestHealth_HostileAnswersOpenNoBreaker(t *testing.T) {
	for range 100 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			h, dice := NewHealth(), rand.New(rand.NewPCG(seed, 0))
			h.recordKnownGood(&task{request: schemas.UpdateRequest{Entity: of("a", -1)}}, true)
			keys := 1 + dice.IntN(300)
			for range 2000 {
				time.Sleep(time.Duration(dice.IntN(100)) * time.Millisecond)
				q := faultQuery{entity: of("a", dice.IntN(keys)), after: time.Now()}
				end := callEnd{entity: q.entity, first: q.after, began: q.after}
				if d := h.record(end, evidence(1+dice.IntN(3)), dice.IntN(2) == 0, stops(false)); d != noDiagnosis {
					t.Fatalf("seed %d: got %v, want nothing", seed, d)
				}
				if dice.IntN(10) > 0 || !h.beginRun(q) {
					continue
				}
				time.Sleep(time.Millisecond)
				once(h, of("a", -1), source.OK, stops(false))
				h.finishRun(q, time.Now(), entityFault)
				if v, known, _ := h.lookupVerdict(q); v != entityFault || !known {
					t.Fatalf("seed %d: verdict: got %v, %v; want own", seed, v, known)
				}
			}
		})
	}
}
