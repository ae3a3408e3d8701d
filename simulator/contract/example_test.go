package contract_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/freshet/freshet/simulator/contract"
)

func ExampleNew() {
	upstream, err := contract.New("shopify-rest", contract.Options{})
	if err != nil {
		panic(err)
	}
	for range 40 {
		request := httptest.NewRequest(http.MethodGet, "/products/1.json", http.NoBody)
		upstream.ServeHTTP(httptest.NewRecorder(), request)
	}
	last := httptest.NewRecorder()
	for last.Code == http.StatusOK { // repeat until a refusal: the bucket restores 2 calls a second meanwhile
		last = httptest.NewRecorder()
		upstream.ServeHTTP(last, httptest.NewRequest(http.MethodGet, "/products/1.json", http.NoBody))
	}
	fmt.Println(last.Code, last.Header().Get("Retry-After"), upstream.Stats().Refusals)
	// Output: 429 2.0 map[calls:1]
}
