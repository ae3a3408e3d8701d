package simulator_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/freshet/freshet/simulator"
)

func Example() {
	upstream := simulator.New(simulator.Config{Limits: []simulator.Limit{{Limit: 2, Window: time.Hour}}})
	server := httptest.NewServer(upstream)
	defer server.Close()
	defer upstream.Close()

	const path = "/maplestory/v1/character/item-equipment?ocid="
	for _, ocid := range []string{"someone", "notfound-1", "one-too-many"} {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, server.URL+path+ocid, http.NoBody)
		if err != nil {
			panic(err)
		}
		response, err := server.Client().Do(request)
		if err != nil {
			panic(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			panic(err)
		}
		_ = response.Body.Close()
		fmt.Println(response.StatusCode, len(body) > 200_000)
	}
	seen := upstream.Stats()
	fmt.Println(seen.Arrivals, seen.Refused, seen.MaxPerWindow[0].Max)
	// Output:
	// 200 true
	// 400 false
	// 429 false
	// 3 1 3
}
