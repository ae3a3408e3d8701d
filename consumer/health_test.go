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

// endFirstCall records the end of an entity's first call, with this outcome class. The call began
// at the present time.
func endFirstCall(h *Health, e schemas.Entity, c source.Class, probed func(time.Time) bool) diagnosis {
	now := time.Now()
	return h.record(callEnd{entity: e, first: now, began: now}, evidenceOf(source.Outcome{Class: c}), false, probed)
}

// endCalls records the end of one call for each element of classes, one second apart. The calls
// rotate over `entities` entities. It returns the diagnosis of the last call.
func endCalls(h *Health, facet string, entities int, classes ...source.Class) (last diagnosis) {
	for i, c := range classes {
		last = endFirstCall(h, of(facet, i%entities), c, breakerOpen(h.unhealthy))
		time.Sleep(time.Second)
	}
	return last
}

// breakerOpen returns a function that reports the source's breaker as always open or as never open.
func breakerOpen(always bool) func(time.Time) bool { return func(time.Time) bool { return always } }

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
			if got := endCalls(h, "a", 20, times(20, source.OK)...); got != noDiagnosis {
				t.Fatalf("after 20 successes: got %v, want %v", got, noDiagnosis)
			}
			if got := endCalls(h, "a", 20, times(10, bad)...); got != noDiagnosis {
				t.Errorf("%s: half of the last 20 calls: got %v, want none", bad, got)
			}
			if got := endCalls(h, "a", 1, bad); got != sourceOpened {
				t.Errorf("%s: the 11th failure of the last 20 calls: got %v, want %v", bad, got, sourceOpened)
			}
			if got := endCalls(h, "a", 1, bad); got != sourceOpen {
				t.Errorf("%s: the next failure: got %v, want %v", bad, got, sourceOpen)
			}
			if got := endCalls(h, "a", 1, source.OK); got != recovered {
				t.Errorf("%s: a success: got %v, want %v", bad, got, recovered)
			}
			if got := endCalls(h, "a", 20, times(10, bad)...); got != noDiagnosis {
				t.Errorf("%s: failures before the recovery: got %v, want none", bad, got)
			}
		})
	}
}

func TestHealth_NeedsFiveFailingEntities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		if got := endCalls(h, "a", 4, times(40, source.Transient)...); got != noDiagnosis {
			t.Errorf("4 failing entities: got %v, want %v", got, noDiagnosis)
		}
		if got := endCalls(h, "a", 5, times(5, source.Transient)...); got != sourceOpened {
			t.Errorf("the fifth failing entity: got %v, want %v", got, sourceOpened)
		}
	})
}

// callEntities records calls of entities, one second apart. It first records one call of each entity.
// Then it records further calls of only the failing entities, until each of them was called `times`
// times. The entities are numbered from `from` upward. It returns the first diagnosis other than
// noDiagnosis.
func callEntities(h *Health, from, entities, times int, fails func(n int) bool) diagnosis {
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
			if d := h.record(end, evidenceOf(source.Outcome{Class: class}), false, breakerOpen(h.unhealthy)); d != noDiagnosis {
				return d
			}
		}
	}
	return noDiagnosis
}

// A minority of the entities fails and is called repeatedly. At first most of the last windowSize
// calls fail, and in the end all of them. The failures must not open the breaker, because all other
// entities are healthy.
func TestHealth_CountsRetriedEntitiesOnce(t *testing.T) {
	for _, c := range []struct{ entities, each, times int }{{15, 3, 4}, {60, 3, 3}, {300, 4, 9}, {1000, 5, 2}} {
		synctest.Test(t, func(t *testing.T) {
			h := NewHealth()
			for round := range 5 {
				if got := callEntities(h, 10_000*round, c.entities, c.times, func(n int) bool { return n%c.each == 0 }); got != noDiagnosis {
					t.Fatalf("%+v, round %d: got %v, want %v", c, round, got, noDiagnosis)
				}
			}
			if got := callEntities(h, 0, 20, 3, func(int) bool { return true }); got != sourceOpened {
				t.Errorf("%+v: 20 failing entities: got %v, want %v", c, got, sourceOpened)
			}
		})
	}
}

// The successes before an outage must not prevent the detection of the outage, even if few entities
// are called during the outage.
func TestHealth_DetectsOutageOfRarelyCalledSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		endCalls(h, "a", 1000, times(100, source.OK)...)
		if got := endCalls(h, "a", 5, times(10, source.Transient)...); got != noDiagnosis {
			t.Errorf("ten failures of five entities: got %v, want %v", got, noDiagnosis)
		}
		if got := endCalls(h, "a", 1, source.Transient); got != sourceOpened {
			t.Errorf("the eleventh failure: got %v, want %v", got, sourceOpened)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		callEntities(h, 0, 100, 1, func(int) bool { return false })
		for n := range 5 { // in each round another failing entity is called three times
			got := callEntities(h, 1000+n, 1, 3, func(int) bool { return true })
			if (got == sourceOpened) != (n == 4) {
				t.Errorf("after %d failing entities: got %v, want %v only after 5", n+1, got, sourceOpened)
			}
		}
	})
}

// Old failures do not turn new failures of other entities into failures of the source.
func TestHealth_IgnoresOldFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		for n := range 50 { // in each round: a new entity, whose two calls fail, and then 24 calls of eight healthy entities
			if got := callEntities(h, 1000+n, 1, 2, func(int) bool { return true }); got != noDiagnosis {
				t.Fatalf("diagnosis: got %v, want none", got)
			}
			for range 3 {
				time.Sleep(time.Minute)
				endCalls(h, "a", 8, times(8, source.OK)...)
			}
		}
		if got := callEntities(h, 5000, 1, 30, func(int) bool { return true }); got != noDiagnosis {
			t.Errorf("one failing entity: got %v, want %v", got, noDiagnosis)
		}
	})
}

// An upstream that fails for three of five calls is unhealthy, whichever entities are called.
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
				if endFirstCall(h, of("a", n), class, breakerOpen(h.unhealthy)) == sourceOpened {
					return
				}
			}
			t.Errorf("seed %d: outage: got none detected in 1,000 calls, want it detected", seed)
		})
	}
}

// The last call of an entity decides whether the entity counts as failing.
func TestHealth_UsesLastCallOfEachEntity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		endCalls(h, "a", 9, times(9, source.OK)...)
		if got := endCalls(h, "a", 9, times(11, source.Transient)...); got != sourceOpened {
			t.Errorf("nine entities that fail after a success: got %v, want %v", got, sourceOpened)
		}
		h = NewHealth()
		endCalls(h, "a", 9, times(10, source.Transient)...)
		endCalls(h, "a", 9, times(9, source.OK)...)
		if got := endCalls(h, "a", 1, source.Transient); got != noDiagnosis {
			t.Errorf("nine failed entities, eight of them recovered: got %v, want %v", got, noDiagnosis)
		}
	})
}

func TestHealth_IgnoresScopeRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		for _, c := range []source.Class{source.Quota, source.Maintenance, source.AuthRefused} {
			if got := endCalls(h, "a", 20, times(40, c)...); got != noDiagnosis {
				t.Errorf("%s: got %v, want %v", c, got, noDiagnosis)
			}
		}
		endCalls(h, "a", 20, times(11, source.Transient)...)
		if got := endCalls(h, "a", 1, source.AuthRefused); got != sourceOpen {
			t.Errorf("a refused credential of an unhealthy source: got %v, want %v", got, sourceOpen)
		}
	})
}

func TestHealth_RetriesOfUnhealthyEndpointWaitForTwoProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		endCalls(h, "healthy", 5, times(5, source.OK)...)
		endCalls(h, "unhealthy", 11, times(11, source.Transient)...)
		for i, seconds := range []int{10, 20, 40, 80, 120, 120} {
			want := time.Duration(seconds) * time.Second
			if got := h.endpointDelay("unhealthy"); got != want {
				t.Errorf("delay after %d probes: got %v, want %v", i, got, want)
			}
			time.Sleep(endpointMaxPause)
			h.admit("unhealthy")
		}
	})
}

func TestHealth_ProbesUnhealthyEndpointAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		endCalls(h, "healthy", 5, times(5, source.OK)...)
		if got := endCalls(h, "unhealthy", 11, times(11, source.Transient)...); got != endpointOpen {
			t.Fatalf("a failing endpoint beside a healthy one: got %v, want %v", got, endpointOpen)
		}
		if ok, _ := h.admit("healthy"); !ok {
			t.Error("healthy endpoint: got it rejected, want admitted")
		}
		if got := endCalls(h, "healthy", 5, times(5, source.OK)...); got != noDiagnosis {
			t.Errorf("successes of the healthy endpoint: got %v, want %v", got, noDiagnosis)
		}
		var probes []time.Duration
		start := time.Now()
		for range 10 * 60 { // ten minutes of fake time, with one check a second
			if ok, _ := h.admit("unhealthy"); ok {
				probes = append(probes, time.Since(start))
				endFirstCall(h, of("unhealthy", 1), source.Transient, breakerOpen(false))
			}
			time.Sleep(time.Second)
		}
		if len(probes) < 10 {
			t.Fatalf("probes in ten minutes: got %d, want at least 10: %v", len(probes), probes)
		}
		for i, p := range probes[1:] {
			if gap, least := p-probes[i], min(endpointPause<<(i+1), endpointMaxPause); gap < least {
				t.Errorf("pause between the probes at %v and %v: got %v, want at least %v", probes[i], p, gap, least)
			}
		}
		if got := endCalls(h, "unhealthy", 1, source.OK); got != recovered {
			t.Errorf("a success: got %v, want %v", got, recovered)
		}
		if ok, _ := h.admit("unhealthy"); !ok {
			t.Error("recovered endpoint: got it rejected, want admitted")
		}
	})
}

func TestHealth_ForgetsClosedBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		endCalls(h, "a", 11, times(11, source.Transient)...)
		bad := func(stopped func(time.Time) bool) diagnosis {
			return endFirstCall(h, of("a", 1), source.Transient, stopped)
		}
		if got := bad(breakerOpen(false)); got != sourceOpen {
			t.Errorf("before the breaker is known to be open: got %v, want %v", got, sourceOpen)
		}
		if got := bad(breakerOpen(true)); got != sourceOpen {
			t.Errorf("a probe: got %v, want %v", got, sourceOpen)
		}
		lifted := time.Now()
		time.Sleep(time.Second)
		if got := bad(func(since time.Time) bool { return since.Before(lifted) }); got != noDiagnosis {
			t.Errorf("a call after another process closed the breaker: got %v, want %v", got, noDiagnosis)
		}
		endCalls(h, "a", 11, times(11, source.Transient)...)
		time.Sleep(maxSyncDelay + time.Second)
		if got := bad(breakerOpen(false)); got != noDiagnosis {
			t.Errorf("an open breaker that Redis lost: got %v, want %v", got, noDiagnosis)
		}
	})
}

func TestHealth_OpensSourceWithoutHealthyEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		endCalls(h, "other", 5, times(5, source.OK)...)
		time.Sleep(healthyTTL) // the other facet's last success is now longer ago than healthyTTL
		if got := endCalls(h, "unhealthy", 11, times(11, source.Transient)...); got != sourceOpened {
			t.Errorf("diagnosis: got %v, want the source opened", got)
		}
		h = NewHealth()
		endCalls(h, "a", 5, times(6, source.Transient)...)
		if got := endCalls(h, "b", 5, times(5, source.Transient)...); got != sourceOpened {
			t.Errorf("two failing endpoints: got %v, want %v", got, sourceOpened)
		}
	})
}

// A hostile client requests random keys. Their calls fail in random ways. No breaker opens while a
// healthy known-good entity exists. If that entity succeeds in a confirming run, the earlier
// failures are attributed to their own entities.
func TestHealth_HostileAnswersOpenNoBreaker(t *testing.T) {
	for range 100 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			h, dice := NewHealth(), rand.New(rand.NewPCG(seed, 0))
			h.confirmations.recordKnownGood(&task{request: schemas.UpdateRequest{Entity: of("a", -1)}}, true)
			keys := 1 + dice.IntN(300)
			for range 2000 {
				time.Sleep(time.Duration(dice.IntN(100)) * time.Millisecond)
				q := faultQuery{entity: of("a", dice.IntN(keys)), after: time.Now()}
				end := callEnd{entity: q.entity, first: q.after, began: q.after}
				if d := h.record(end, evidence(1+dice.IntN(3)), dice.IntN(2) == 0, breakerOpen(false)); d != noDiagnosis {
					t.Fatalf("seed %d: got %v, want nothing", seed, d)
				}
				if dice.IntN(10) > 0 || !h.confirmations.beginRun(q) {
					continue
				}
				time.Sleep(time.Millisecond)
				endFirstCall(h, of("a", -1), source.OK, breakerOpen(false))
				h.applyVerdict(q, time.Now(), entityFault)
				if v, known, _ := h.lookupVerdict(q); v != entityFault || !known {
					t.Fatalf("seed %d: verdict: got %v, %v; want own", seed, v, known)
				}
			}
		})
	}
}
