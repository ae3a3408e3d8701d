package problem_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/freshet/freshet/problem"
)

func ExampleHTTPError_Write() {
	p := problem.New(http.StatusTooManyRequests, problem.Cooldown, "Retry after the cool-down.")
	p.After = 1200 * time.Millisecond

	w := httptest.NewRecorder()
	if err := p.Write(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)); err != nil {
		fmt.Println(err)
	}
	fmt.Println(w.Code, w.Header().Get("Retry-After"))
	fmt.Print(w.Body)
	// Output:
	// 429 2
	// {"type":"urn:freshet:problem:cooldown","title":"Too Many Requests","status":429,"detail":"Retry after the cool-down.","code":"cooldown"}
}
