package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
)

// logBuffer is an in-memory log.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (n *logBuffer) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

func (n *logBuffer) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

// lines returns the log records with this message.
func (n *logBuffer) lines(t *testing.T, message string) (all []map[string]any) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for line := range strings.Lines(n.text.String()) {
		var one map[string]any
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if one["msg"] == message {
			all = append(all, one)
		}
	}
	return all
}

// traced runs a query service and a worker that share only Kafka, Redis and the database. Spans,
// metrics and logs are separate for the two.
type traced struct {
	*testing.T
	api          string
	upstream     *simulator.Simulator
	reads, works *tracetest.InMemoryExporter
	notes        logBuffer // log output of the worker
}

func newTraced(t *testing.T, sample float64) *traced {
	t.Helper()
	tr := &traced{T: t, reads: tracetest.NewInMemoryExporter(), works: tracetest.NewInMemoryExporter(), upstream: simulator.New(simulator.Config{})}
	t.Cleanup(tr.upstream.Close)
	server := httptest.NewServer(tr.upstream)
	t.Cleanup(server.Close)
	p := NewProcess(nil, t.Output(), t.Output())
	config, err := loadConfig("", nil, builtInSources)
	if err != nil {
		t.Fatal(err)
	}
	facets := config.Sources["nexon"].Facets
	character := facets["character-by-ocid"] // a fetch of the facet "character-by-ocid" makes only one call
	character.Retry = []time.Duration{50 * time.Millisecond}
	facets["character"] = character
	background := newGroup(context.WithoutCancel(t.Context()))
	made, closeAll, err := p.startEmbedded(t.Context(), DevOptions{Upstream: server.URL}, config, background)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeAll)
	t.Cleanup(func() {
		if err := background.stop(); err != nil {
			t.Error(err)
		}
	})
	process := func(spans *tracetest.InMemoryExporter, log *slog.Logger) parts {
		own := made.parts
		own.registry, own.reg = newRegistry("freshet")
		own.log, own.trace = log, observe.NewTracer(TracingConfig{SampleRatio: sample}.newProvider(sdk.WithSyncer(spans)))
		return own
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tr.api = "http://" + l.Addr().String()
	both := newGroup(t.Context())
	query := process(tr.reads, slog.New(slog.DiscardHandler))
	worker := process(tr.works, slog.New(observe.TraceHandler(slog.NewJSONHandler(&tr.notes, nil))))
	both.run(func(ctx context.Context) error { return query.run(ctx, serving(l)) })
	both.run(func(ctx context.Context) error {
		return worker.run(ctx, working([]schemas.Lane{schemas.High}, func() {}))
	})
	t.Cleanup(func() {
		if err := both.stop(); err != nil {
			t.Error(err)
		}
	})
	if err := waitForOK(t.Context(), tr.api+"/readyz"); err != nil {
		t.Fatal(err)
	}
	return tr
}

// read requests an entity with the trace context of a client.
func (tr *traced) read(method, path, parent string) (status int) {
	tr.Helper()
	req, err := http.NewRequestWithContext(tr.Context(), method, tr.api+path, http.NoBody)
	if err != nil {
		tr.Fatal(err)
	}
	req.Header.Set("traceparent", parent)
	req.Header.Set("X-Correlation-Id", "the-correlation")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		tr.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// spansOfTrace returns the last span of each name in a trace, and the number of all spans in the
// trace.
func spansOfTrace(id string, exporters ...*tracetest.InMemoryExporter) (all map[string]tracetest.SpanStub, n int) {
	all = map[string]tracetest.SpanStub{}
	for _, e := range exporters {
		for _, s := range e.GetSpans() {
			if s.SpanContext.TraceID().String() == id {
				all[s.Name] = s
				n++
			}
		}
	}
	return all, n
}

func attributeOf(s tracetest.SpanStub, name string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == name {
			return a.Value.String()
		}
	}
	return ""
}

func TestTracing_OneTraceAcrossProcesses(t *testing.T) {
	tr := newTraced(t, 1e-9) // the sampling ratio is so low that only traces that the client samples are sampled
	const id = "0af7651916cd43dd8448eb211c80319c"
	key := "somebody"
	if status := tr.read(http.MethodGet, "/v1/nexon/character/"+key, "00-"+id+"-b7ad6b7169203331-01"); status != http.StatusAccepted {
		t.Fatalf("status: got %d, want 202", status)
	}
	topic := schemas.RequestTopic("nexon", schemas.High)
	below := map[string]string{
		"GET /v1/:source/:facet/:key": "",
		"enqueue update request":      "GET /v1/:source/:facet/:key",
		topic + " publish":            "enqueue update request",
		topic + " receive":            topic + " publish",
		"refresh":                     topic + " receive",
		"wait for a permit":           "refresh",
		"call the upstream":           "refresh",
		"store":                       "refresh",
	}
	servicetest.WaitFor(t, eventTimeout, "all spans of the request", func() bool { all, _ := spansOfTrace(id, tr.reads, tr.works); return len(all) >= len(below) })
	spans, n := spansOfTrace(id, tr.reads, tr.works)
	for name, parent := range below {
		s, found := spans[name]
		if !found {
			t.Errorf("span %q: got only %v, want one", name, slices.Sorted(maps.Keys(spans)))
			continue
		}
		want := "b7ad6b7169203331" // span ID of the client's span
		if parent != "" {
			want = spans[parent].SpanContext.SpanID().String()
		}
		if got := s.Parent.SpanID().String(); got != want {
			t.Errorf("parent of %q: got %s, want %s, which is %q", name, got, want, parent)
		}
	}
	if n != len(below) {
		t.Errorf("spans: got %d, want %d: %v", n, len(below), slices.Sorted(maps.Keys(spans)))
	}
	if s := spans["refresh"]; attributeOf(s, "freshet.entity") != "nexon/character/"+key || attributeOf(s, "freshet.correlation_id") != "the-correlation" || attributeOf(s, "freshet.end") != "changed" {
		t.Errorf("attributes of the refresh: got %v, want entity %s, correlation ID the-correlation, end changed",
			s.Attributes, "nexon/character/"+key)
	}
	if s := spans["call the upstream"]; attributeOf(s, "http.response.status_code") != "200" || s.SpanKind != trace.SpanKindClient {
		t.Errorf("the call: got attributes %v, kind %v; want status code 200, kind %v", s.Attributes, s.SpanKind, trace.SpanKindClient)
	}
	// The span of the batch write and the span of the request link to each other.
	write := slices.IndexFunc(tr.works.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name == "write snapshots" })
	store := spans["store"]
	if write < 0 || len(store.Links) != 1 || len(tr.works.GetSpans()[write].Links) != 1 {
		t.Fatalf("write: got index %d, links of its result %v; want a write and a result, each with 1 link", write, store.Links)
	}
	if batch := tr.works.GetSpans()[write]; store.Links[0].SpanContext.SpanID() != batch.SpanContext.SpanID() ||
		batch.Links[0].SpanContext.SpanID() != store.SpanContext.SpanID() || batch.Parent.IsValid() {
		t.Errorf("got links %v of the batch, %v of its result; want a link to each other, no parent of the batch", batch.Links, store.Links)
	}
	for _, s := range slices.Concat(tr.reads.GetSpans(), tr.works.GetSpans()) {
		if text := fmt.Sprintf("%+v", s); strings.Contains(text, "http://") && strings.Contains(text, "ocid") {
			t.Errorf("%q: got %s, want a text without the upstream's URL", s.Name, text)
		}
	}
	// If the client does not sample a trace, no span of the trace must be exported.
	tr.reads.Reset()
	tr.works.Reset()
	if status := tr.read(http.MethodPost, "/v1/nexon/character/"+key+"/refresh?wait=5s", "00-1af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00"); status != http.StatusOK {
		t.Errorf("status: got %d, want 200", status)
	}
	if n := len(tr.reads.GetSpans()) + len(tr.works.GetSpans()); n != 0 {
		t.Errorf("spans of an unsampled trace: got %d, want 0", n)
	}
}

func TestTracing_RetryLinksToFirstTrace(t *testing.T) {
	tr := newTraced(t, 1e-9)
	const id = "2af7651916cd43dd8448eb211c80319e"
	// Another entity succeeds first, so the upstream counts as healthy. The following failure is
	// therefore a failure of its entity and not of the source, and a retry is scheduled.
	if status := tr.read(http.MethodGet, "/v1/nexon/character/known?wait=10s", ""); status != http.StatusOK {
		t.Fatalf("read of another key: got status %d, want 200", status)
	}
	three := 3
	faults := []simulator.Fault{{Key: "^unlucky$", Kind: simulator.InternalError, Count: &three}}
	if err := tr.upstream.Control(simulator.Control{Faults: faults}); err != nil {
		t.Fatal(err)
	}
	if status := tr.read(http.MethodGet, "/v1/nexon/character/unlucky", "00-"+id+"-b7ad6b7169203331-01"); status != http.StatusAccepted {
		t.Fatalf("status: got %d, want 202", status)
	}
	servicetest.WaitFor(t, eventTimeout, "a scheduled retry", func() bool { return len(tr.notes.lines(t, "retry scheduled")) > 0 })
	line := tr.notes.lines(t, "retry scheduled")[0]
	if line["trace_id"] != id || line["correlation_id"] != "the-correlation" || line["span_id"] == "" {
		t.Errorf("trace in the log line: got %v, want trace ID %s, correlation ID the-correlation, a span ID", line, id)
	}
	var retry tracetest.SpanStub
	servicetest.WaitFor(t, eventTimeout, "the retry's own trace", func() bool {
		all := tr.works.GetSpans()
		i := slices.IndexFunc(all, func(s tracetest.SpanStub) bool {
			return s.Name == "enqueue update request" && attributeOf(s, "freshet.reason") == "RETRY"
		})
		if i >= 0 {
			retry = all[i]
		}
		return i >= 0
	})
	before, _ := spansOfTrace(id, tr.works)
	failed := before["refresh"]
	if attributeOf(failed, "freshet.end") != "retrying" {
		t.Errorf("attributes of the failed refresh: got %v, want end retrying", failed.Attributes)
	}
	if retry.Parent.IsValid() || len(retry.Links) != 1 || retry.Links[0].SpanContext.SpanID() != failed.SpanContext.SpanID() {
		t.Errorf("link of the retry: got %v, want %v", retry.Links, failed.SpanContext)
	}
	servicetest.WaitFor(t, eventTimeout, "the spans of the retry", func() bool {
		after, _ := spansOfTrace(retry.SpanContext.TraceID().String(), tr.works)
		return attributeOf(after["refresh"], "freshet.end") == "changed"
	})
}

func TestTracing_FlushesSpansAtShutdown(t *testing.T) {
	var paths sync.Map
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths.Store(r.URL.Path, r.Header.Get("Content-Type"))
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(collector.Close)
	tracer, flush, err := TracingConfig{Endpoint: collector.URL, SampleRatio: 1}.newTracer(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil || !tracer.Enabled() {
		t.Fatal(err)
	}
	_, span := tracer.Start(t.Context(), "x")
	span.End()
	flush()
	if kind, found := paths.Load("/v1/traces"); !found || kind != "application/x-protobuf" {
		t.Errorf("content type of the spans at the collector: got %v, want application/x-protobuf", kind)
	}

	off, flush, err := TracingConfig{SampleRatio: 1}.newTracer(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil || off.Enabled() || off.Kafka() != nil {
		t.Errorf("without an endpoint: got enabled: %v, Kafka hooks %v, %v; want false, none, no error", off.Enabled(), off.Kafka(), err)
	}
	flush()
}

func TestTracing_LogsLostSpansRateLimited(t *testing.T) {
	var n logBuffer
	lost := &tracingErrorHandler{log: slog.New(slog.NewJSONHandler(&n, nil))}
	for range 3 {
		lost.Handle(context.DeadlineExceeded)
	}
	if all := n.lines(t, "spans lost; check the collector and tracing.endpoint"); len(all) != 1 {
		t.Errorf("lines: got %d, want 1", len(all))
	}
	lost.last = lost.last.Add(-tracingErrorInterval)
	lost.Handle(context.DeadlineExceeded)
	if all := n.lines(t, "spans lost; check the collector and tracing.endpoint"); len(all) != 2 {
		t.Errorf("lines after a minute: got %d, want 2", len(all))
	}
}

func TestTracing_RejectsUnsafeEndpoint(t *testing.T) {
	for endpoint, want := range map[string]string{
		"": "", "http://localhost:4318": "", "https://collector.example/otlp/": "",
		"localhost:4318": "must be the URL", "ftp://x": "must be the URL", "https://": "must be the URL",
		"https://user:s3cret@x": "must not have a user", "https://x/?api-key=s3cret": "must not have a user", "https://x/#s3cret": "must not have a user",
	} {
		err := TracingConfig{Endpoint: endpoint, SampleRatio: 0.5}.check()
		if (err == nil) != (want == "") || (err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret"))) {
			t.Errorf("%s: got %v, want an error that contains %q, without the password", endpoint, err, want)
		}
	}
	for _, sample := range []float64{0, -1, 1.1, math.NaN(), math.Inf(1)} {
		if err := (TracingConfig{SampleRatio: sample}).check(); err == nil {
			t.Errorf("sample ratio %v: got no error, want one", sample)
		}
	}
}
