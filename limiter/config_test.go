package limiter

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

func TestConfig_RoundTripsAsYAML(t *testing.T) {
	const text = `jitter: 10ms
policies:
  - {name: second, limit: 500, window: 1s, target: 450, highReserve: 100, lowReserve: 20}
  - {name: minute, limit: 90, window: 1m0s, highReserve: 1.5/s}
  - {name: day, limit: 20000000, window: day, timeZone: Asia/Seoul, highReserve: 25/s}
backoff: 1m0s
`
	var c, again Config
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	want := Config{
		Jitter: 10 * ms,
		Policies: []Policy{
			{Name: "second", Limit: 500, Window: Window(time.Second), Target: 450, HighReserve: Reserve{Calls: 100}, LowReserve: 20},
			{Name: "minute", Limit: 90, Window: Window(time.Minute), HighReserve: Reserve{Rate: 1.5}},
			{Name: "day", Limit: 20_000_000, Window: Day, TimeZone: "Asia/Seoul", HighReserve: Reserve{Rate: 25}},
		},
		Backoff: time.Minute,
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%+v; want %+v", c, want)
	}
	written, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(written, &again); err != nil || !reflect.DeepEqual(c, again) {
		t.Errorf("%v: %s", err, written)
	}
	for bad, mention := range map[string]string{
		"policies: [{window: week}]":           "must be day, in-flight, or a duration",
		"policies: [{window: -1s}]":            "must be day, in-flight, or a duration",
		"policies: [{highReserve: many}]":      "a number of calls a window, or a rate",
		"policies: [{highReserve: -1}]":        "a number of calls a window, or a rate",
		"policies: [{highReserve: 2000000/s}]": "a number of calls a window, or a rate",
	} {
		if err := yaml.Unmarshal([]byte(bad), new(Config)); err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestOverride_RoundTripsAsJSON(t *testing.T) {
	for _, text := range []string{
		`{}`, `{"stopped":true}`,
		`{"policies":{"day":{"limit":0,"highReserve":"1.5/s"},"second":{"target":0,"highReserve":0,"lowReserve":7}}}`,
	} {
		var o Override
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(o); err != nil || string(got) != text {
			t.Errorf("%s became %s, %v", text, got, err)
		}
	}
}

func TestWith_CopiesAndNamesUnknownPolicies(t *testing.T) {
	c := withDay()
	limit, target, low, reserve := 400, 300, 10, Reserve{Rate: 5}
	changed, err := c.With(Override{Policies: map[string]PolicyOverride{
		"second": {Limit: &limit, Target: &target, LowReserve: &low, HighReserve: &reserve},
	}})
	want := Policy{Name: "second", Limit: 400, Window: Window(time.Second), Target: 300, HighReserve: reserve, LowReserve: 10}
	if err != nil || !reflect.DeepEqual(changed.Policies[0], want) || !reflect.DeepEqual(changed.Policies[1], c.Policies[1]) {
		t.Errorf("%+v, %v", changed, err)
	}
	if !reflect.DeepEqual(c, withDay()) {
		t.Errorf("the configuration became %+v", c)
	}
	_, err = c.With(Override{Policies: map[string]PolicyOverride{"minute": {}, "hour": {}, "day": {Limit: &limit}}})
	if err == nil || !strings.Contains(err.Error(), `no policy "hour"; the quota has second, day`) || !strings.Contains(err.Error(), `no policy "minute"`) {
		t.Error(err)
	}
}

func FuzzRate_RoundTrips(f *testing.F) {
	for _, seed := range []string{"25/s", "90/m", "5000/h", "0/s", "1e3/s", "1.5/s", "-1/s", "/s", "5", "NaN/s", "Inf/s", "0x1p-2/s", "1/s/s", "1_0/s", " 1/s", "1e-320/h"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRate(text)
		if err != nil {
			if r != 0 {
				t.Errorf("%q: %v with %v", text, r, err)
			}
			return
		}
		if math.IsNaN(float64(r)) || r < 0 || r > 1e6 {
			t.Errorf("%q is %v", text, r)
		}
		if again, err := ParseRate(r.String()); err != nil || again != r {
			t.Errorf("%q is %v and then %v, %v", text, r, again, err)
		}
	})
}

func FuzzReserve_RoundTrips(f *testing.F) {
	for _, seed := range []string{"100", "0", "25/s", "-3", "+3", "1e3", "9223372036854775807", "0/s", "3/m", `"5"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseReserve(text)
		if err != nil {
			return
		}
		if r.Calls < 0 || r.Rate < 0 || (r.Calls > 0 && r.Rate > 0) {
			t.Errorf("%q is %+v", text, r)
		}
		again, err := ParseReserve(r.String())
		if err != nil || again != r {
			t.Errorf("%q is %+v and then %+v, %v", text, r, again, err)
		}
		var read Reserve
		if written, err := json.Marshal(r); err != nil || json.Unmarshal(written, &read) != nil || read != r {
			t.Errorf("%q is %+v, in JSON %s, %+v, %v", text, r, written, read, err)
		}
		// A reserve of any size gives an error or a valid quota, without integer overflow.
		config := second(500, 450, 0, 0)
		config.Policies[0].HighReserve = r
		if q, err := NewQuota(config); err == nil && q.Bounds()[0].Low < 0 {
			t.Errorf("%q leaves LOW %+v", text, q.Bounds()[0])
		}
	})
}
