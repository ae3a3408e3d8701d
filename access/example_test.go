package access_test

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
)

func ExampleClientLimiter() {
	limiter := access.NewClientLimiter(access.Limits{Requests: "2/m"}, prometheus.NewRegistry())
	for range 3 {
		err := limiter.AllowRequests("key:abc dashboard", 1)
		if p, ok := errors.AsType[*problem.HTTPError](err); ok {
			fmt.Println(p.Status, p.Code)
			continue
		}
		fmt.Println("allowed")
	}
	// Output:
	// allowed
	// allowed
	// 429 too-many-requests
}

func ExampleConfig_Check() {
	config := access.DefaultConfig()
	config.Require = "sometimes"
	config.Limits.Requests = "100/day"
	fmt.Println(config.Check())
	// Output:
	// require: "sometimes" must be auto, always or never
	// limits.requests: "100/day" must be a whole number per second, minute or hour, as in 100/s or 2000/m, or 0 for no limit
}

func ExampleClient_Sees() {
	partner := access.Client{Scopes: []access.Scope{access.Read, access.See("partners")}}
	fmt.Println(partner.Sees(""), partner.Sees("partners"), partner.Sees("staff"))
	// Output: true true false
}

func ExampleRate_Parse() {
	calls, window := access.Rate("2000/m").Parse()
	fmt.Println(calls, window)
	// Output: 2000 1m0s
}
