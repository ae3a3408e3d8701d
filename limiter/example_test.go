package limiter_test

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

func reference() limiter.Config {
	return limiter.Config{
		Jitter: 10 * time.Millisecond,
		Policies: []limiter.Policy{
			{Name: "second", Limit: 500, Window: limiter.Window(time.Second), Target: 450, HighReserve: limiter.Reserve{Calls: 100}},
			{Name: "day", Limit: 20_000_000, Window: limiter.Day, TimeZone: "Asia/Seoul"},
		},
	}
}

// NewQuota proves that the upstream can never receive more calls than its limit.
func ExampleNewQuota() {
	quota, err := limiter.NewQuota(reference())
	if err != nil {
		fmt.Println(err)
		return
	}
	b := quota.Bounds()[0]
	fmt.Printf("%s: limit %d, at most %d; %.0f calls per window, LOW %.0f\n", b.Name, b.Limit, b.Max, b.PerWindow, b.Low)
	// Output: second: limit 500, at most 497; 450 calls per window, LOW 350
}

// A target that is too high is rejected with the rate that would fit.
func ExampleNewQuota_rejected() {
	config := reference()
	config.Policies[0].Target = 500
	_, err := limiter.NewQuota(config)
	fmt.Println(err)
	// Output: policies[0] "second": target: with 500, up to 550 calls could reach the upstream within 1s, but its limit is 500 (a permit lives 40ms, the jitter is 10ms); lower the target, or omit it to use 454.3
}

// MaxCalls returns the number of calls that all policies together allow in a period, if the quota
// is unused at its start.
func ExampleQuota_MaxCalls() {
	quota, err := limiter.NewQuota(reference())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		fmt.Println(lane, quota.MaxCalls(lane, time.Second), quota.MaxCalls(lane, time.Minute))
	}
	// Output:
	// HIGH 474 27018
	// LOW 231 13888
}

// With applies the changes of an operator to a copy of the configuration.
func ExampleConfig_With() {
	target := 400
	changed, err := reference().With(limiter.Override{Policies: map[string]limiter.PolicyOverride{"second": {Target: &target}}})
	fmt.Println(changed.Policies[0].Target, err)
	_, err = reference().With(limiter.Override{Policies: map[string]limiter.PolicyOverride{"hour": {Target: &target}}})
	fmt.Println(err)
	// Output:
	// 400 <nil>
	// there is no policy "hour"; the quota has second, day
}

func ExampleParseRate() {
	for _, text := range []string{"25/s", "90/m", "5000/h", "fast"} {
		rate, err := limiter.ParseRate(text)
		fmt.Printf("%.3g %v\n", float64(rate), err)
	}
	// Output:
	// 25 <nil>
	// 1.5 <nil>
	// 1.39 <nil>
	// 0 "fast" must be a rate as in 25/s, 90/m or 5000/h
}

// A call behind 900 other calls waits 7 s: the delay of 5 s, and 2 s for 900 calls at 450 per second.
func ExampleWaitEstimate_Wait() {
	e := limiter.WaitEstimate{Delay: 5 * time.Second}.AtMost(450)
	fmt.Println(e.Wait(900, 0, 0))
	// Output: 7s
}
