package limiter

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func second(limit, target, high, low int) Config {
	return Config{Jitter: 10 * ms, Policies: []Policy{{
		Name: "second", Limit: limit, Window: Window(time.Second), Target: target, HighReserve: Reserve{Calls: high}, LowReserve: low,
	}}}
}

func TestPartitions_MatchTheProof(t *testing.T) {
	q, err := NewQuota(second(500, 450, 100, 0))
	if err != nil {
		t.Fatal(err)
	}
	l := q.partitioned[0]
	if l.partitions[0] != (gcra{10 * ms, 10}) || l.partitions[1] != (gcra{2858 * time.Microsecond, 15}) || l.partitions[2] != (gcra{}) {
		t.Errorf("lanes %+v", l.partitions)
	}
	inSecond := l.partitions[0].slots(time.Second) + l.partitions[1].slots(time.Second)
	if inSecond != 474 || l.bound() != 497 || q.Quiet() != 1200*ms {
		t.Errorf("%d slots in a second, %d at the upstream, quiet for %v; want 474, 497, 1.2s", inSecond, l.bound(), q.Quiet())
	}
}

func TestPartitions_UseMostOfAnyLimit(t *testing.T) {
	for _, c := range []struct {
		config Config
		least  float64 // under constant demand the quota must use at least this share of the limit
	}{
		{second(500, 450, 100, 0), 0.89},
		{second(500, 450, 100, 50), 0.89},
		{second(500, 0, 100, 0), 0.85},
		{second(20, 0, 4, 0), 0.95},
		{second(5, 0, 1, 0), 0.95},
		{second(1, 0, 0, 0), 0.95},
		{second(10_000, 9_000, 2_000, 0), 0.89},
		{Config{Jitter: 10 * ms, Policies: []Policy{{Name: "minute", Limit: 40, Window: Window(time.Minute), HighReserve: Reserve{Calls: 10}}}}, 0.99},
	} {
		q, err := NewQuota(c.config)
		if err != nil {
			t.Errorf("%+v: %v", c.config, err)
			continue
		}
		for _, b := range q.Bounds() {
			if b.Max > b.Limit || b.PerWindow < c.least*float64(b.Limit) {
				t.Errorf("%+v: at most %d, saturated %.2f of %d", b.Name, b.Max, b.PerWindow, b.Limit)
			}
		}
	}
}

func TestNewQuota_RandomConfigurationsHoldOrFail(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 7))
	refused := 0
	for range 20_000 {
		limit := 1 + rng.IntN(2000)
		config := second(limit, rng.IntN(limit+1), rng.IntN(limit), rng.IntN(1+limit/4))
		config.Policies[0].Window = Window(time.Duration(1+rng.IntN(600)) * 100 * ms)
		config.Jitter = time.Duration(rng.IntN(100)) * ms
		q, err := NewQuota(config)
		if err != nil {
			refused++
			continue
		}
		if b := q.Bounds()[0]; b.Max > limit || b.Low < 0 || b.Low > b.PerWindow {
			t.Fatalf("%+v: %+v", config, b)
		}
		for _, l := range q.partitioned {
			for i, lane := range l.partitions {
				if (lane.interval > 0) != (lane.burst > 0) || lane.interval%time.Microsecond != 0 {
					t.Fatalf("%+v: lane %d is %+v", config, i, lane)
				}
			}
		}
	}
	if refused == 0 || refused == 20_000 {
		t.Errorf("got %d of 20,000 rejected", refused)
	}
}

func TestNewQuota_RejectsInvalidConfigurations(t *testing.T) {
	with := func(config Config, change func(c *Config)) Config {
		config.Policies = append([]Policy(nil), config.Policies...)
		change(&config)
		return config
	}
	day := Policy{Name: "day", Limit: 1000, Window: Day}
	for mention, config := range map[string]Config{
		"up to 550 calls":       second(500, 500, 100, 0),
		"omit it to use":        second(120, 120, 1, 0),
		"at least one policy":   {Policies: []Policy{day}},
		"needs a short window":  {},
		"jitter":                {Jitter: -1, Policies: second(500, 450, 100, 0).Policies},
		"name: ":                {Policies: []Policy{{Limit: 5, Window: Window(time.Second)}}},
		"limit: 0":              second(0, 0, 0, 0),
		"window":                {Policies: []Policy{{Name: "long", Limit: 5, Window: Window(24 * time.Hour)}}},
		"50,000 calls a second": second(60_000, 0, 0, 0),
		"must not be negative":  second(500, -1, 0, 0),
		"above the limit":       second(500, 501, 0, 0),
		"reserve all 450 calls": second(500, 450, 400, 50),
		"has the same name": with(second(5, 0, 1, 0), func(c *Config) {
			c.Policies = append(c.Policies, Policy{Name: "second", Limit: 5, Window: Window(time.Minute)})
		}),
		"has the window": with(second(5, 0, 1, 0), func(c *Config) {
			c.Policies = append(c.Policies, Policy{Name: "again", Limit: 5, Window: Window(time.Second)})
		}),
		"timeZone": with(second(5, 0, 1, 0), func(c *Config) {
			c.Policies = append(c.Policies, Policy{Name: "day", Limit: 1000, Window: Day, TimeZone: "Asia/Nowhere"})
		}),
		"allowed only in a policy with": with(second(5, 0, 1, 0), func(c *Config) { c.Policies[0].TimeZone = "Asia/Seoul" }),
		"not allowed in a policy with": with(second(5, 0, 1, 0), func(c *Config) {
			c.Policies = append(c.Policies, Policy{Name: "day", Limit: 1000, Window: Day, Target: 5})
		}),
	} {
		if _, err := NewQuota(config); err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%+v: got %v, want it to contain %q", config, err, mention)
		}
	}
}
