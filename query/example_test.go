package query_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// emptyStore is a database without snapshots.
type emptyStore struct{}

func (emptyStore) Get(context.Context, schemas.Entity) (store.Snapshot, error) {
	return store.Snapshot{}, store.ErrNotFound
}

func (emptyStore) GetAll(_ context.Context, of []schemas.Entity) ([]store.Snapshot, error) {
	return make([]store.Snapshot, len(of)), nil
}

func (emptyStore) EntityParams(_ context.Context, of []schemas.Entity) ([]map[string]string, error) {
	return make([]map[string]string, len(of)), nil
}

func (emptyStore) Items(context.Context, schemas.Entity, collection.Range) ([]collection.Item, error) {
	return nil, nil
}

// characters is a source with the facet character.
type characters struct{}

func (characters) Facet(name string) (source.Facet, bool) {
	return source.Facet{FreshFor: time.Hour}, name == "character"
}

func (characters) FacetNames() []string { return []string{"character"} }

func (characters) Visibilities() []string { return []string{""} }

func (characters) CheckKey(string, string) error { return nil }

func (characters) MissingParams(string, string, map[string]string) []string { return nil }

func (characters) Visibility(string) string { return "" }

// printer is an Enqueuer that prints the update requests.
type printer struct{}

func (printer) Enqueue(_ context.Context, requests []query.UpdateRequest) []query.EnqueueResult {
	results := make([]query.EnqueueResult, len(requests))
	for i, r := range requests {
		fmt.Println("enqueue", r.Entity, r.Reason)
		results[i] = query.EnqueueResult{Queued: true, Number: 1}
	}
	return results
}

func (p printer) EnqueueAndWait(ctx context.Context, requests []query.UpdateRequest) []query.EnqueueResult {
	return p.Enqueue(ctx, requests)
}

// stub is a SettleSubscriber, a WaitEstimator and an Authenticator with fixed results.
type stub struct{}

func (stub) Subscribe(ctx context.Context, _ func(schemas.Settled), onConnected func(bool)) error {
	onConnected(true)
	<-ctx.Done()
	return nil
}

func (stub) Blocked(string) (query.RefreshReason, time.Time) { return "", time.Time{} }

func (stub) EstimateWait(string, int64) (time.Duration, time.Time, bool) {
	return 1500 * time.Millisecond, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), true
}

func (stub) Authenticate(*http.Request, string) (access.Client, error) {
	return access.Client{Name: "key:abc dashboard", Scopes: []access.Scope{access.Read}}, nil
}

// The first read of an entity returns 202 and enqueues an update request.
func ExampleServer() {
	server, err := query.New(query.Config{Memory: 1 << 20}, query.Deps{
		Store: emptyStore{}, Sources: map[string]query.Source{"nexon": characters{}}, Enqueuer: printer{},
		SettleSubscriber: stub{}, WaitEstimator: stub{}, Authenticator: stub{}, ClientLimiter: (*access.ClientLimiter)(nil),
		Ops: http.NotFoundHandler(), Admin: http.NotFoundHandler(),
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	w := httptest.NewRecorder()
	server.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/v1/nexon/character/1234", nil))
	fmt.Println(w.Code, "Retry-After:", w.Header().Get("Retry-After"))
	fmt.Println(w.Body)
	// Output:
	// enqueue nexon/character/1234 CACHE_MISS
	// 202 Retry-After: 2
	// {"freshness":"UPDATING","refresh":{"queued":true,"estimatedWaitMs":1500,"measuredAt":"2026-01-02T03:04:05Z"}}
}
