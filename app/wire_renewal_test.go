package app

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/renewal"
	"github.com/freshet/freshet/servicetest"
)

// The policy of each case allows one call a second. The second of two renewals waits for the end of
// the window if the policy counts calls of the token endpoint.
func TestSpendOn_ChargesMatchingPolicies(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		match   limiter.Match
		counted bool
	}{
		"all calls":       {limiter.Match{}, true},
		"the method":      {limiter.Match{Methods: []string{http.MethodPost}}, true},
		"the endpoint":    {limiter.Match{Endpoints: []string{"token/app"}}, true},
		"another method":  {limiter.Match{Methods: []string{http.MethodGet}}, false},
		"another's token": {limiter.Match{Endpoints: []string{"token/other"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const window = time.Second
			rdb, _ := servicetest.MiniRedis(t)
			quota := SourceConfig{}
			quota.Quota.Policies = []limiter.Policy{
				{Name: "counted", Limit: 1, Window: limiter.Window(window), Match: test.match},
			}
			if name != "all calls" {
				quota.Quota.Policies = append(quota.Quota.Policies, limiter.Policy{Name: "all", Limit: 100, Window: limiter.Window(window)})
			}
			l, err := limiter.New("a", quota.quota(), limiter.Deps{
				Redis: rdb, Process: "p", Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Unused: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- l.Run(ctx) }()
			defer func() {
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			renew := func() time.Time {
				finished, err := spendOn(l, []renewal.Credential{{Name: "app"}})(ctx, "app")
				if err != nil {
					t.Fatal(err)
				}
				defer finished(http.StatusOK)
				return time.Now()
			}
			for try := 1; ; try++ { // a busy machine can delay a renewal, so the test tries several times
				first := renew()
				between := renew().Sub(first)
				if counted := between >= window/2; counted == test.counted {
					return
				}
				if try == 5 {
					t.Fatalf("time between two renewals: got %v, want the policy to count them: %v", between, test.counted)
				}
			}
		})
	}
}
