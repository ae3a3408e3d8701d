package announced_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/freshet/freshet/source/announced"
)

func ExampleRules_Read() {
	rules, err := announced.Compile([]announced.Rule{{
		Policy: "primary", Limit: "X-RateLimit-Limit", Remaining: "X-RateLimit-Remaining", Reset: "X-RateLimit-Reset",
	}})
	if err != nil {
		panic(err)
	}
	header := http.Header{
		"Date":                  {"Mon, 02 Mar 2026 12:00:05 GMT"},
		"X-Ratelimit-Limit":     {"5000"},
		"X-Ratelimit-Remaining": {"42"},
		"X-Ratelimit-Reset":     {"1772452865"},
	}
	now := time.Date(2026, 3, 2, 12, 0, 0, 400e6, time.UTC)
	for _, n := range rules.Read(header, nil, now) {
		fmt.Println(n.Policy, n.Remaining, "of", n.Limit, "remain; reset in", n.Reset, "to", n.Reset+n.Slack)
	}
	// Output: primary 42 of 5000 remain; reset in 1m0s to 1m2s
}

func ExampleRetryAfter() {
	exhausted := http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"30"}}
	fmt.Println(announced.RetryAfter(true, exhausted, time.Now()))  // true: the call was refused, so the reset header counts
	fmt.Println(announced.RetryAfter(false, exhausted, time.Now())) // false: the call succeeded, so only Retry-After counts
	fmt.Println(announced.RetryAfter(false, http.Header{"Retry-After": {"3"}}, time.Now()))
	// Output:
	// 30s
	// 0s
	// 3s
}
