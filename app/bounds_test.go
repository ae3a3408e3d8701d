package app

import (
	_ "embed"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
)

//go:embed testdata/bounded.yaml
var bounded string

func TestClientBounds_FollowTheQuota(t *testing.T) {
	for name, test := range map[string]struct {
		limits, policies string
		one, two         producer.Bound
	}{
		"two seconds of HIGH, and a quarter of the day": {
			policies: "{name: second, limit: 60, window: 1s}, {name: day, limit: 86400, window: day, timeZone: UTC}",
			one:      producer.Bound{Outstanding: 120, Window: 2 * time.Second, Lease: 230 * time.Second, NewKeys: 900, NewKeyInterval: 4 * time.Second},
			two:      producer.Bound{Outstanding: 60, Window: 2 * time.Second, Lease: 230 * time.Second, NewKeys: 450, NewKeyInterval: 8 * time.Second},
		},
		"a slow source has the floor": {
			policies: "{name: minute, limit: 6, window: 1m}",
			one:      producer.Bound{Outstanding: producer.MinOutstanding, Window: 2 * time.Second, Lease: 200 * time.Second, NewKeys: 1, NewKeyInterval: 40 * time.Second},
			two:      producer.Bound{Outstanding: producer.MinOutstanding, Window: 2 * time.Second, Lease: 400 * time.Second, NewKeys: 1, NewKeyInterval: 80 * time.Second},
		},
		"no policy counts by time": {
			policies: "{name: seats, limit: 3, window: in-flight}",
			one:      producer.Bound{Outstanding: 512, Window: 2 * time.Second, Lease: minLease},
			two:      producer.Bound{Outstanding: 512, Window: 2 * time.Second, Lease: minLease},
		},
		"as it is said": {
			limits: "outstanding: 6s, newKeys: 60/m", policies: "{name: second, limit: 60, window: 1s}",
			one: producer.Bound{Outstanding: 360, Window: 6 * time.Second, Lease: minLease, NewKeys: 60, NewKeyInterval: time.Second},
			two: producer.Bound{Outstanding: 180, Window: 6 * time.Second, Lease: minLease, NewKeys: 60, NewKeyInterval: time.Second},
		},
		"off": {
			limits: "outstanding: 0s, newKeys: 0", policies: "{name: hour, limit: 5000, window: 1h}",
			one: producer.Bound{Lease: minLease}, two: producer.Bound{Lease: minLease},
		},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := loadConfig(write(t, strings.NewReplacer("LIMITS", test.limits, "POLICIES", test.policies).Replace(bounded)), nil, OptionalSources)
			if err != nil {
				t.Fatal(err)
			}
			all, err := config.clientBounds()
			if err != nil {
				t.Fatal(err)
			}
			for facet, want := range map[string]producer.Bound{"one": test.one, "two": test.two} {
				got := all["api"][facet]
				// Round the results. A sliding-window log covers its window plus the lifetime of a permit
				// (40 ms), so the limits differ a little from the expected values.
				got.Lease, got.NewKeyInterval = got.Lease.Round(10*time.Second), got.NewKeyInterval.Round(time.Second)
				if near := got.Outstanding - want.Outstanding; near < 0 && near > -want.Outstanding/10 {
					got.Outstanding = want.Outstanding
				}
				if near := got.NewKeys - want.NewKeys; near < 0 && near > -want.NewKeys/10-1 {
					got.NewKeys = want.NewKeys
				}
				if got != want {
					t.Errorf("%s: got %+v, want %+v", facet, got, want)
				}
			}
		})
	}
}

func TestHighEnqueuer_CarryTheClientAndItsBound(t *testing.T) {
	request := query.UpdateRequest{Entity: schemas.Entity{Source: "api", Facet: "one", Key: "k"}, Reason: schemas.CacheMiss, Client: "c", New: true}
	bound := producer.Bound{Outstanding: 7}
	got := highEnqueuer{bounds: &liveBounds{current: map[string]map[string]producer.Bound{"api": {"one": bound}}}}.toRequest(request)
	if got.Client != "c" || !got.New || got.Bound != bound || got.Lane != schemas.High {
		t.Errorf("got %+v, want the client, a new key and its bound", got)
	}
	if got := (highEnqueuer{}).toRequest(request); got.Client != "" || got.Bound != (producer.Bound{}) {
		t.Errorf("got %+v where no client is bounded, want none", got)
	}
}

func TestToEnqueueResult_SaysWhichBoundIsReached(t *testing.T) {
	for outcome, want := range map[producer.Outcome]query.EnqueueResult{
		producer.TooManyOutstanding: {Reason: "TOO_MANY_OUTSTANDING", Refused: &access.Refusal{Max: 45, After: 3 * time.Second}},
		producer.TooManyNewKeys:     {Reason: "TOO_MANY", Refused: &access.Refusal{NewKeys: true, Max: 45, Window: time.Minute, After: 3 * time.Second}},
	} {
		r := producer.Refusal{Outcome: outcome, Max: 45, After: 3 * time.Second}
		if want.Refused.NewKeys {
			r.Window = time.Minute
		}
		got := toEnqueueResult(producer.Result{Outcome: outcome, Refusal: &r})
		if got.Queued || got.Pending || got.Reason != want.Reason || *got.Refused != *want.Refused {
			t.Errorf("%s: got %+v with %+v, want %+v", outcome, got, got.Refused, want.Refused)
		}
	}
}
