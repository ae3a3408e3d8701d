package limiter

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func second(limit, target, high, low int) Config {
	return Config{Jitter: 10 * ms, Policies: []Policy{{
		Name: "second", Limit: limit, Window: time.Second, Target: target, HighReserve: high, LowReserve: low,
	}}}
}

func TestTheLanesOfTheReferenceContractAreThoseOfItsProof(t *testing.T) {
	l, err := NewLanes(second(500, 450, 100, 0))
	if err != nil {
		t.Fatal(err)
	}
	if l.lanes[0] != (lane{10 * ms, 10}) || l.lanes[1] != (lane{2858 * time.Microsecond, 15}) || l.lanes[2] != (lane{}) {
		t.Errorf("lanes %+v", l.lanes)
	}
	inSecond := l.lanes[0].slots(time.Second) + l.lanes[1].slots(time.Second)
	if inSecond != 474 || l.Bound() != 497 || l.quiet() != 1200*ms {
		t.Errorf("%d slots in a second, %d at the upstream, quiet for %v; want 474, 497, 1.2s", inSecond, l.Bound(), l.quiet())
	}
}

func TestAnyLimitIsKeptAndLittleOfItLost(t *testing.T) {
	for _, c := range []struct {
		config Config
		least  float64 // share of the limit that saturated lanes give
	}{
		{second(500, 450, 100, 0), 0.89},
		{second(500, 450, 100, 50), 0.89},
		{second(500, 0, 100, 0), 0.85},
		{second(20, 0, 4, 0), 0.94},
		{second(5, 0, 1, 0), 0.94},
		{second(2, 0, 0, 0), 0.94},
		{second(10_000, 9_000, 2_000, 0), 0.89},
		{Config{Jitter: 10 * ms, Policies: []Policy{{Name: "minute", Limit: 40, Window: time.Minute, HighReserve: 10}}}, 0.99},
	} {
		l, err := NewLanes(c.config)
		if err != nil {
			t.Errorf("%+v: %v", c.config, err)
			continue
		}
		limit := c.config.Policies[0].Limit
		if l.Bound() > limit || l.PerWindow() < c.least*float64(limit) {
			t.Errorf("%+v: at most %d, saturated %.2f of %d", c.config.Policies[0], l.Bound(), l.PerWindow(), limit)
		}
	}
}

func TestRandomConfigurationsAreKeptOrRefused(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 7))
	refused := 0
	for range 20_000 {
		limit := 2 + rng.IntN(2000)
		config := second(limit, rng.IntN(limit+1), rng.IntN(limit), rng.IntN(1+limit/4))
		config.Policies[0].Window = time.Duration(1+rng.IntN(600)) * 100 * ms
		config.Jitter = time.Duration(rng.IntN(100)) * ms
		l, err := NewLanes(config)
		if err != nil {
			refused++
			continue
		}
		if l.Bound() > limit {
			t.Fatalf("%+v: %d calls could arrive", config, l.Bound())
		}
		for i, lane := range l.lanes {
			if (lane.interval > 0) != (lane.burst > 0) || lane.interval%time.Microsecond != 0 {
				t.Fatalf("%+v: lane %d is %+v", config, i, lane)
			}
		}
	}
	if refused == 0 || refused == 20_000 {
		t.Errorf("%d of 20,000 refused", refused)
	}
}

func TestAQuotaThatCannotHoldIsRefusedWithTheSum(t *testing.T) {
	for mention, config := range map[string]Config{
		"up to 550 calls":      second(500, 500, 100, 0),
		"leave it out to use":  second(5, 5, 1, 0),
		"exactly one":          {Policies: nil},
		"jitter":               {Jitter: -1, Policies: second(500, 450, 100, 0).Policies},
		"name is missing":      {Policies: []Policy{{Limit: 5, Window: time.Second}}},
		"limit: 1":             second(1, 0, 0, 0),
		"window":               {Policies: []Policy{{Name: "day", Limit: 5, Window: 24 * time.Hour}}},
		"50,000 a second":      second(60_000, 0, 0, 0),
		"must not be negative": second(500, -1, 0, 0),
		"above the limit":      second(500, 501, 0, 0),
		"nothing of 450":       second(500, 450, 400, 50),
	} {
		if _, err := NewLanes(config); err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%+v: %v; want a mention of %q", config, err, mention)
		}
	}
}
