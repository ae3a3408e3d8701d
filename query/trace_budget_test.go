package query

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/observe"
)

// tracedRequests sends n requests with this trace parent, all in the same second by the server's
// clock.
func (r *rig) tracedRequests(n int, parent string) {
	r.Helper()
	at := time.Now()
	r.server.tracing.budget.now = func() time.Time { return at }
	for range n {
		req := httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/v1/nexon/character/a", http.NoBody)
		req.Header.Set("traceparent", parent)
		r.server.ServeHTTP(httptest.NewRecorder(), req)
	}
}

func TestTraces_OfClientsAreLimited(t *testing.T) {
	notSampled := strings.TrimSuffix(aParent, "01") + "00"
	for _, c := range []struct {
		name   string
		scopes []access.Scope
		parent string
		want   int
	}{
		{"a reader", []access.Scope{access.Read}, aParent, maxClientTraces},
		{"a reader that keeps none", []access.Scope{access.Read}, notSampled, 0},
		{"a client that inspects", []access.Scope{access.Read, access.Inspect}, aParent, 3 * maxClientTraces},
		{"an administrator", []access.Scope{access.Admin}, aParent, 3 * maxClientTraces},
	} {
		r := newRig(t)
		spans := tracetest.NewInMemoryExporter()
		r.server.tracing.tracer = observe.NewTracer(sdk.NewTracerProvider(sdk.WithSyncer(spans), sdk.WithSampler(sdk.ParentBased(sdk.NeverSample()))))
		r.putSnapshot("a", time.Minute)
		r.client.Scopes = c.scopes
		r.tracedRequests(3*maxClientTraces, c.parent)
		if got := len(spans.GetSpans()); got != c.want {
			t.Errorf("%s: got %d traces in a second, want %d", c.name, got, c.want)
		}
	}
}

// If tracing is off in the service, it passes the client's trace parent to workers, where tracing
// may be on. The limit must apply to these trace parents too.
func TestTraces_OfClientsAreLimitedInUpdateRequests(t *testing.T) {
	r := newRig(t)
	r.client.Scopes = []access.Scope{access.Read}
	r.tracedRequests(3*maxClientTraces, aParent)
	sampled := 0
	for _, w := range r.requests {
		if strings.HasSuffix(w.TraceParent, "-01") {
			sampled++
		} else if w.TraceParent != strings.TrimSuffix(aParent, "01")+"00" {
			t.Errorf("got the trace parent %q, want the client's without its sampled flag", w.TraceParent)
		}
	}
	if len(r.requests) != 3*maxClientTraces || sampled != maxClientTraces {
		t.Errorf("got %d of %d update requests to trace, want %d of %d", sampled, len(r.requests), maxClientTraces, 3*maxClientTraces)
	}
}
