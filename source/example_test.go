package source_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/freshet/freshet/source"
)

// unlimited issues every permit at once. In a worker, package limiter issues the permits instead,
// and a call waits until the quota allows it.
type unlimited struct{}

func (unlimited) Acquire(context.Context, source.Call) (source.Permit, error) {
	return unlimited{}, nil
}
func (unlimited) Spend(context.Context) error { return nil }
func (unlimited) Credential() string          { return "" }
func (unlimited) Release()                    {}
func (unlimited) Written()                    {}
func (unlimited) Answered()                   {}
func (unlimited) Finished(source.CallResult)  {}

// fetch fetches one entity of the facet "user" and prints the outcome.
func fetch(s *source.Source, key string) {
	plan, err := s.Plan(source.Request{Facet: "user", Key: key})
	if err != nil {
		fmt.Println(err)
		return
	}
	responses, err := s.Fetch(context.Background(), plan, unlimited{})
	if err != nil {
		fmt.Println(err) // no result, because ctx ended or Permits returned an error
		return
	}
	outcome := s.Read(responses, time.Now())
	if outcome.Class != source.OK {
		fmt.Println(outcome.Class, outcome.RetryAfter)
		return
	}
	defer outcome.Content.Release()
	fmt.Println(outcome.Class, string(outcome.Content.Bytes))
}

func ExampleSource_Fetch() {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/users/alice":
			_, _ = w.Write([]byte(`{"name": "Alice", "id": 7}`))
		case "/users/bob":
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer upstream.Close()

	facet := source.DefaultFacet()
	facet.Documents = map[string]source.Document{"user": {Path: "/users/{key}"}}
	config := source.DefaultConfig()
	config.BaseURL = upstream.URL
	config.Facets = map[string]source.Facet{"user": facet}
	s, err := source.New("example", config, nil, 1)
	if err != nil {
		panic(err)
	}
	defer s.Close()

	fetch(s, "alice")
	fetch(s, "bob")
	fetch(s, "carol")
	fetch(s, "../admin")
	// Output:
	// ok {"user":{"id":7,"name":"Alice"}}
	// quota 3s
	// not-found 0s
	// the key does not match the keyPattern of example/user: [0-9A-Za-z_-]{1,80}
}

func ExampleFacet_Shrunk() {
	facet := source.Facet{ShrinkGuard: 0.5}
	fmt.Println(facet.Shrunk(4_000, 10_000), facet.Shrunk(6_000, 10_000))
	// Output: true false
}

func ExampleBytes_UnmarshalText() {
	var size source.Bytes
	if err := size.UnmarshalText([]byte("16MiB")); err != nil {
		panic(err)
	}
	fmt.Println(int64(size))
	// Output: 16777216
}
