package consumer

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// BenchmarkObservability measures the cost of the metrics of one event. It also measures the cost
// of the event's spans in three cases: tracing is disabled, spans are dropped, and spans are
// recorded.
func BenchmarkObservability(b *testing.B) {
	b.Run("metrics", func(b *testing.B) {
		m := newMetrics("nexon", schemas.High, prometheus.NewRegistry())
		asked := time.Now()
		took := []time.Duration{time.Millisecond}
		b.ReportAllocs()
		for b.Loop() {
			m.callsEnded(source.OK, took)
			m.batchWritten(20, time.Millisecond, []store.Result{})
			m.requestStored(store.Touched, asked)
			m.duration.Observe(time.Since(asked).Seconds())
		}
	})
	for name, tracer := range map[string]observe.Tracer{
		"spans-off":      {},
		"spans-not-kept": observe.NewTracer(sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample()))),
		"spans-kept":     observe.NewTracer(sdk.NewTracerProvider(sdk.WithBatcher(tracetest.NewNoopExporter()))),
	} {
		b.Run(name, func(b *testing.B) {
			w := &base{tracer: tracer, lane: schemas.High}
			batch := []*item{{task: &task{record: &kgo.Record{Context: context.Background()}, request: schemas.UpdateRequest{
				Entity: schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}, Reason: schemas.Stale, Version: 1,
			}}}}
			b.ReportAllocs()
			for b.Loop() {
				startSpans(w, batch)
			}
		})
	}
}

// startSpans starts and ends all spans of a record whose result is written in a batch of its own.
func startSpans(b *base, batch []*item) {
	t := batch[0].task
	ctx, hard, span := b.startSpan(context.Background(), context.Background(), t)
	_, wait := b.tracer.Start(ctx, "wait for a permit")
	wait.End()
	endCallSpan(b.startCallSpan(t), http.StatusOK, nil)
	_, batch[0].span = b.tracer.Start(hard, "store")
	_, write := b.startBatchSpan(hard, batch)
	write.End()
	endStoreSpan(batch[0].span, store.Touched)
	t.traceEnd("touched")
	span.End()
}

func TestTracing_DisabledAllocatesNothing(t *testing.T) {
	w := &base{lane: schemas.High}
	batch := []*item{{task: &task{record: &kgo.Record{Context: context.Background()}}}}
	if n := testing.AllocsPerRun(100, func() { startSpans(w, batch) }); n != 0 {
		t.Errorf("allocations: got %v, want 0", n)
	}
}
