package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/freshet/freshet/source"
)

// The responses are from GitHub's documentation; the contract's simulator sends only some of them.
// GitHub reports a secondary rate limit with status 403, or in GraphQL with status 200 and an error
// in the body. A 403 that mentions no limit means that a permission is missing.
func TestPresetGitHub_ClassifiesRefusals(t *testing.T) {
	for _, c := range []struct {
		preset, facet, key string
		status             int
		remaining, body    string
		class              source.Class
		block              string
		wait               time.Duration
	}{
		{"github-graphql", "contributions", "a", 200, "4000", `{"data":null,"errors":[{"message":"You have exceeded a secondary rate limit. Please wait."}]}`, source.Quota, source.BlockCredential, time.Minute},
		{"github-graphql", "contributions", "a", 200, "0", `{"data":null,"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded"}]}`, source.Quota, source.BlockResource, 0},
		{"github-graphql", "contributions", "a", 200, "4000", `{"data":{"user":null},"errors":[{"type":"NOT_FOUND","message":"no such login"}]}`, source.NotFound, "", 0},
		{"github-graphql", "contributions", "a", 403, "4000", `{"message":"Resource not accessible by personal access token"}`, source.Permanent, "", 0},
		{"github-rest", "user", "a", 403, "4000", `{"message":"You have exceeded a secondary rate limit."}`, source.Quota, source.BlockCredential, time.Minute},
		{"github-rest", "user", "a", 403, "0", `{"message":"You have exceeded a secondary rate limit."}`, source.Quota, source.BlockCredential, time.Minute},
		{"github-rest", "user", "a", 403, "0", `{"message":"API rate limit exceeded for user"}`, source.Quota, source.BlockResource, 0},
		{"github-rest", "user", "a", 403, "4000", `{"message":"Must have admin rights to Repository."}`, source.Permanent, "", 0},
	} {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-RateLimit-Remaining", c.remaining)
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.body))
		}))
		config := preset(t, c.preset).Config
		config.BaseURL = upstream.URL
		s, err := source.New("github", config, nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := s.Plan(source.Request{Facet: c.facet, Key: c.key})
		if err != nil {
			t.Fatal(err)
		}
		answers, err := s.Fetch(context.Background(), plan, unlimitedPermit{})
		if err != nil {
			t.Fatal(err)
		}
		if o := s.Read(answers, time.Now()); o.Class != c.class || o.Block != c.block || o.Wait != c.wait {
			t.Errorf("%s: %d %s: got %s, stops %q for %v; want %s, %q, %v", c.preset, c.status, c.body, o.Class, o.Block, o.Wait, c.class, c.block, c.wait)
		}
		s.Close()
		upstream.Close()
	}
}

// unlimitedPermit grants every call.
type unlimitedPermit struct{}

func (unlimitedPermit) Acquire(context.Context, source.Call) (source.Permit, error) {
	return unlimitedPermit{}, nil
}
func (unlimitedPermit) Spend(context.Context) error { return nil }
func (unlimitedPermit) Credential() string          { return "" }
func (unlimitedPermit) Release()                    {}
func (unlimitedPermit) Written()                    {}
func (unlimitedPermit) Answered()                   {}
func (unlimitedPermit) Finished(source.CallResult)  {}
