package consumer_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// gauge returns the value of a gauge of the worker that was created last.
func (r *rig) gauge(name string) float64 {
	r.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	r.Fatalf("metric %s: got none, want one", name)
	return 0
}

// The upstream's first body is small, so the worker reserves little memory for the large bodies that
// follow. The memory of all bodies must stay bounded nevertheless.
func TestWorker_BoundsMemoryForSuddenLargeBodies(t *testing.T) {
	r := newRig(t)
	const limit, maxBody, body, entities = 8 << 20, 4 << 20, 3 << 20, 12
	large := append(append([]byte(`{"x":"`), bytes.Repeat([]byte("x"), body)...), `"}`...)
	arrived := make(chan struct{}, entities)
	all := make(chan struct{})
	r.upstreamOf(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Get("ocid") == "small" {
			_, _ = w.Write([]byte(`{"x":1}`))
			return
		}
		arrived <- struct{}{}
		<-all
		if len(req.URL.Query().Get("ocid"))%2 == 0 { // some responses have a Content-Length, the others have none
			w.Header().Set("Content-Length", fmt.Sprint(len(large)))
		}
		_, _ = w.Write(large)
	}, func(c *source.Config) { c.MaxBody, c.Timeout = maxBody, waitTimeout })
	r.work(schemas.High, func(c *consumer.Config) { c.MaxBodyBytes, c.MaxInFlight = limit, entities })
	r.enqueue("small", schemas.High, schemas.CacheMiss)
	r.untilStored("small")
	for i := range entities {
		r.enqueue(fmt.Sprint("large", i), schemas.High, schemas.CacheMiss)
	}
	for range entities {
		<-arrived
	}
	close(all)
	most, deadline := 0., time.Now().Add(waitTimeout)
	for r.db.wrote.Load() < 1+entities {
		most = max(most, r.gauge("upstream_body_bytes"))
		if time.Now().After(deadline) {
			t.Fatalf("stored entities: got %d, want %d", r.db.wrote.Load(), 1+entities)
		}
	}
	if want := float64(limit + 2*maxBody); most > want || most < body {
		t.Errorf("memory of bodies: got %v bytes at most, want at most %v", most, want)
	}
}

func TestWorker_BoundsMemoryForGrowingAnswers(t *testing.T) {
	r := newRig(t)
	const size, bound = 1 << 20, 4 << 20
	body := []byte(`{"x":"` + strings.Repeat("x", size) + `"}`)
	var inFlight, most atomic.Int64
	r.upstreamOf(func(w http.ResponseWriter, _ *http.Request) {
		n := inFlight.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		_, _ = w.Write(body)
		inFlight.Add(-1)
	}, func(c *source.Config) { c.MaxBody = 2 << 20 })
	keys := keysOf("k", 40)
	r.enqueueAll(keys, schemas.High, schemas.CacheMiss)
	c := consumer.DefaultConfig(schemas.High)
	c.MaxBodyBytes = bound
	r.run(r.worker(c, r.db, permits{r.limiter}).Run)
	r.untilStored(keys...)
	if most.Load() > bound/size+1 {
		t.Errorf("concurrent answers of 1 MiB within a limit of 4 MiB: got %d, want at most %d", most.Load(), bound/size+1)
	}
}
