package e2e

import (
	"context"
	"crypto/rand"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/freshet/freshet/e2e/harness"
)

// Two query services share a limit of 50 requests an hour, so no token is added during the test. Without
// Redis, the limit applies in each of them separately.
func TestLimits_AreSharedByTwoQueryServices(t *testing.T) {
	t.Parallel()
	const limit = 50
	f := newSite(t)
	f.Token = rand.Text() + rand.Text()
	f.Env = []string{"FRESHET_ACCESS_LIMITS_REQUESTS=50/h", "FRESHET_ACCESS_LIMITS_SHARED=true"}
	f.prepare()
	f.check(f.UseProxies(f.Context()))
	one := f.query()
	token, err := f.CreateKey(f.Context(), one, "reader", "read")
	f.check(err)
	apis := []string{one, f.query()}
	reader := &http.Client{Transport: harness.Bearer{Token: token}, Timeout: timeout}
	// grants sends n concurrent requests to the query services in turn. It returns the number of
	// requests that each of them allowed.
	grants := func(n int, apis ...string) []int64 {
		t.Helper()
		allowed := make([]atomic.Int64, len(apis))
		var all sync.WaitGroup
		free := make(chan bool, 16)
		for i := range n {
			free <- true
			all.Go(func() {
				defer func() { <-free }()
				switch status := statusOf(f.Context(), reader, apis[i%len(apis)]+"/v1/"+f.Source); status {
				case http.StatusOK:
					allowed[i%len(apis)].Add(1)
				case http.StatusTooManyRequests:
				default:
					t.Errorf("status of a request: got %d, want 200 or 429", status)
				}
			})
		}
		all.Wait()
		counts := make([]int64, len(apis))
		for i := range allowed {
			counts[i] = allowed[i].Load()
		}
		return counts
	}
	together := grants(2*limit, apis...)
	t.Logf("granted requests: %d and %d", together[0], together[1])
	equal(t, "requests that both query services granted", together[0]+together[1], limit)

	f.RedisProxy.Refuse(true)
	f.RedisProxy.Cut()
	for i, api := range apis {
		equal(t, "requests that one query service granted in total, with and without Redis", together[i]+grants(limit+50, api)[0], limit)
	}
}

// statusOf sends a GET request and returns the status; 0: there was no response.
func statusOf(ctx context.Context, c *http.Client, url string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
