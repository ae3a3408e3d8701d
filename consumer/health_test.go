package consumer

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

func of(facet string, n int) schemas.Entity {
	return schemas.Entity{Source: "nexon", Facet: facet, Key: fmt.Sprint(n)}
}

// see has calls end one after the other, a second apart, and returns what the last told.
func see(h *Health, facet string, entities int, classes ...source.Class) (last diagnosis) {
	for i, c := range classes {
		last = h.saw(of(facet, i%entities), c, time.Now(), stops(h.sick))
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

func TestTheSourceAndNotItsEntitiesIsSickWhenMoreThanHalfOfTheLastCallsFail(t *testing.T) {
	for _, bad := range []source.Class{source.Transient, source.Permanent, source.BadContent} {
		synctest.Test(t, func(t *testing.T) {
			h := NewHealth()
			if got := see(h, "a", 20, times(20, source.OK)...); got != nothing {
				t.Fatalf("after 20 good ends: %v", got)
			}
			if got := see(h, "a", 20, times(10, bad)...); got != nothing {
				t.Errorf("%s: half of the last 20 is not more than half, and gave %v", bad, got)
			}
			if got := h.saw(of("a", 10), bad, time.Now(), stops(false)); got != fellSick {
				t.Errorf("%s: the 11th bad end of the last 20 gave %v", bad, got)
			}
			if got := see(h, "a", 1, bad); got != sickSource {
				t.Errorf("%s: the next gave %v", bad, got)
			}
			if got := see(h, "a", 1, source.OK); got != recovered {
				t.Errorf("%s: a good end gave %v", bad, got)
			}
			if got := see(h, "a", 20, times(10, bad)...); got != nothing {
				t.Errorf("%s: what was before the recovery still counts: %v", bad, got)
			}
		})
	}
}

func TestFewerThanFiveEntitiesAreSickThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		if got := see(h, "a", 4, times(40, source.Transient)...); got != nothing {
			t.Errorf("4 entities that fail all the time gave %v", got)
		}
		if got := see(h, "a", 5, times(5, source.Transient)...); got != fellSick {
			t.Errorf("the fifth gave %v", got)
		}
	})
}

// What fails is called again: a third of the entities then makes most of the calls, and
// stopping the source for them would bury none and stop it again.
func TestEntitiesThatAreTriedAgainCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		end := func(n int, c source.Class) diagnosis {
			time.Sleep(time.Second)
			return h.saw(of("a", n), c, time.Now(), stops(h.sick))
		}
		for round := range 10 {
			for n := range 10 {
				end(100*round+n, source.OK)
			}
			for i := range 15 {
				if got := end(100*round+50+i%5, source.Transient); got != nothing {
					t.Fatalf("round %d: 15 failed calls of 5 entities, beside 10 that are well, gave %v", round, got)
				}
			}
		}
		for i := range 20 {
			if end(i, source.Permanent) == fellSick {
				return
			}
		}
		t.Error("20 entities that fail are no sick upstream")
	})
}

// An entity that was answered well and then fails is one that fails, and the other way round.
func TestAnEntityIsWhatItsLastCallCameTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		see(h, "a", 9, times(9, source.OK)...)
		if got := see(h, "a", 9, times(11, source.Transient)...); got != fellSick {
			t.Errorf("nine that were well and all fail gave %v", got)
		}
		h = NewHealth()
		see(h, "a", 9, times(10, source.Transient)...)
		see(h, "a", 9, times(9, source.OK)...)
		if got := see(h, "a", 1, source.Transient); got != nothing {
			t.Errorf("nine that have failed, eight of them well again, gave %v", got)
		}
	})
}

func TestWhatHasAWayOfItsOwnTellsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		for _, c := range []source.Class{source.Quota, source.Maintenance, source.AuthRefused} {
			if got := see(h, "a", 20, times(40, c)...); got != nothing {
				t.Errorf("%s gave %v", c, got)
			}
		}
		see(h, "a", 20, times(11, source.Transient)...)
		if got := see(h, "a", 1, source.AuthRefused); got != sickSource {
			t.Errorf("a refused credential made a sick source %v", got)
		}
	})
}

func TestASickEndpointOfASourceThatIsWellIsProbedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		see(h, "well", 5, times(5, source.OK)...)
		if got := see(h, "sick", 11, times(11, source.Transient)...); got != sickEndpoint {
			t.Fatalf("an endpoint that fails beside a good one gave %v", got)
		}
		if !h.admits("well") {
			t.Error("the other endpoint may not be called")
		}
		if got := see(h, "well", 5, times(5, source.OK)...); got != nothing {
			t.Errorf("the other endpoint's good ends gave %v", got)
		}
		var probes []time.Duration
		start := time.Now()
		for range 10 * 60 { // ten minutes, asked once a second
			if h.admits("sick") {
				probes = append(probes, time.Since(start))
				h.saw(of("sick", 1), source.Transient, time.Now(), stops(false))
			}
			time.Sleep(time.Second)
		}
		for i, p := range probes[1:] {
			if gap, least := p-probes[i], min(endpointFirst<<(i+1), endpointMost); gap < least {
				t.Errorf("probes %v and %v: less than %v apart", probes[i], p, least)
			}
		}
		if len(probes) < 10 {
			t.Errorf("only %d probes in ten minutes: %v", len(probes), probes)
		}
		if got := see(h, "sick", 1, source.OK); got != recovered || !h.admits("sick") {
			t.Errorf("a good end gave %v", got)
		}
	})
}

func TestAStopThatIsOverIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		see(h, "a", 11, times(11, source.Transient)...)
		bad := func(stopped func(time.Time) bool) diagnosis {
			return h.saw(of("a", 1), source.Transient, time.Now(), stopped)
		}
		if got := bad(stops(false)); got != sickSource {
			t.Errorf("before the stop is known: %v", got)
		}
		if got := bad(stops(true)); got != sickSource {
			t.Errorf("a probe: %v", got)
		}
		lifted := time.Now()
		time.Sleep(time.Second)
		if got := bad(func(since time.Time) bool { return since.Before(lifted) }); got != nothing {
			t.Errorf("a call after another process has lifted it: %v", got)
		}
		see(h, "a", 11, times(11, source.Transient)...)
		time.Sleep(learnWithin + time.Second)
		if got := bad(stops(false)); got != nothing {
			t.Errorf("a stop that nobody has heard of: %v", got)
		}
	})
}

func TestWithoutAnotherGoodEndpointTheSourceIsSick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		see(h, "other", 5, times(5, source.OK)...)
		time.Sleep(vouchFor) // that is too long ago
		if got := see(h, "sick", 11, times(11, source.Transient)...); got != fellSick {
			t.Errorf("%v", got)
		}
		h = NewHealth()
		see(h, "a", 5, times(6, source.Transient)...)
		if got := see(h, "b", 5, times(5, source.Transient)...); got != fellSick {
			t.Errorf("two endpoints that fail alike gave %v", got)
		}
	})
}

func TestABadAnswerIsItsEntitysWhenAnothersLaterCallIsAnsweredWell(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(h *Health)
		want bool
	}{
		{"another's, later", func(h *Health) { h.saw(of("a", 2), source.OK, time.Now(), stops(false)) }, true},
		{"another's absence, later", func(h *Health) { h.saw(of("a", 2), source.Absent, time.Now(), stops(false)) }, true},
		{"its own", func(h *Health) { h.saw(of("a", 1), source.OK, time.Now(), stops(false)) }, false},
		{"another endpoint's", func(h *Health) { h.saw(of("b", 2), source.OK, time.Now(), stops(false)) }, false},
		{"begun before", func(h *Health) { h.saw(of("a", 2), source.OK, time.Now().Add(-time.Hour), stops(false)) }, false},
		{"nobody's", func(*Health) {}, false},
		{"a bad one", func(h *Health) { h.saw(of("a", 2), source.BadContent, time.Now(), stops(false)) }, false},
		{"an outage", func(h *Health) {
			for i := range 11 {
				h.saw(of("a", 2+i), source.BadContent, time.Now(), stops(false))
			}
		}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, bad := NewHealth(), time.Now()
			h.saw(of("a", 3), source.OK, bad.Add(-time.Minute), stops(false))
			told := make(chan bool)
			go func() { told <- h.awaitGood(t.Context(), of("a", 1), bad, 15*time.Second) }()
			time.Sleep(time.Second)
			c.then(h)
			got := <-told
			if waited := time.Since(bad); got != c.want || (waited < 15*time.Second) != (c.want || c.name == "an outage") {
				t.Errorf("%s: %v after %v", c.name, got, waited)
			}
		})
	}
}
