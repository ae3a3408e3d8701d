package query

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus/testutil"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/freshet/freshet/observe"
)

const aParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// raw sends a request that does not follow the API, so the response is not checked.
func (r *rig) raw(method, target string) {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/", nil)
	req.Method, req.RequestURI = method, target
	req.URL.Path, req.URL.RawPath = target, target
	req.Header.Set("traceparent", aParent)
	r.server.ServeHTTP(httptest.NewRecorder(), req)
}

func TestMetrics_HaveNoClientValues(t *testing.T) {
	r := newRig(t)
	spans := tracetest.NewInMemoryExporter()
	r.server.tracing.tracer = observe.NewTracer(sdk.NewTracerProvider(sdk.WithSyncer(spans)))
	r.putSnapshot("a", time.Minute)
	before := testutil.CollectAndCount(r.server.metrics.requests)
	long := "/v1/nexon/character/" + strings.Repeat("k", maxPathBytes)
	for _, method := range []string{"MADEUP1", "MADEUP2", "MADEUP3", "get"} {
		r.raw(method, "/v1/nexon/character/a") // the paths accept only GET, so the response is 405
		r.raw(method, long)                    // the response is 414, although the router would respond 404
		r.raw(method, "/nowhere")
	}
	if n := testutil.CollectAndCount(r.server.metrics.requests) - before; n > 3 {
		t.Errorf("got %d label values for invented methods, want at most 3", n)
	}
	for _, target := range []string{"/v1/nexon/character/\xff", "/v1/\xff/character/a", "/v1/nexon/\xff/a", "/v1/nexon/character/%ff", "/v1/nexon/character/a"} {
		r.raw(http.MethodGet, target)
	}
	entities := 0
	for _, s := range spans.GetSpans() {
		if strings.Contains(s.Name, "MADE") || len(s.Name) > 100 {
			t.Errorf("span name: got %q, want at most 100 bytes without MADE", s.Name)
		}
		for _, a := range s.Attributes {
			if v := a.Value.String(); !utf8.ValidString(v) || len(v) > 300 {
				t.Errorf("attribute %s: got %.50q, want valid UTF-8 of at most 300 bytes", a.Key, v)
			}
			if a.Key == "freshet.entity" {
				entities++
			}
		}
	}
	if entities != 1 {
		t.Errorf("spans with an entity: got %d, want 1", entities)
	}
}

func TestTrace_IgnoresUnauthorizedClients(t *testing.T) {
	r := newRig(t)
	spans := tracetest.NewInMemoryExporter()
	r.server.tracing.tracer = observe.NewTracer(sdk.NewTracerProvider(sdk.WithSyncer(spans)))
	r.putSnapshot("a", time.Minute)
	r.client.Scopes = nil
	r.raw(http.MethodGet, "/v1/nexon/character/a")
	r.raw(http.MethodGet, "/nowhere")
	r.raw(http.MethodGet, "/livez")
	if n := len(spans.GetSpans()); n != 0 {
		t.Errorf("spans of unauthorised requests: got %d, want 0", n)
	}
}
