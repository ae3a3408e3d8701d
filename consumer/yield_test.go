package consumer_test

import (
	"testing"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
)

// source40 grants the permits of a source with a quota of 40 calls a minute. `reserve` is the
// number of calls a second that are reserved for LOW.
type source40 struct {
	permits
	reserve float64
}

func (source40) HighPerSecond() float64 { return 40.0 / 60 }
func (s source40) LowReserve() float64  { return s.reserve }

// lowWorker starts a LOW worker with these permits.
func (r *rig) lowWorker(p consumer.Permits) {
	r.Helper()
	deps := r.deps()
	deps.Permits = p
	w, err := consumer.New(consumer.DefaultConfig(schemas.Low), r.source, schemas.Low, deps)
	if err != nil {
		r.Fatal(err)
	}
	r.run(w.Run)
}

// Whether LOW yields depends on the wait of HIGH records, not on their number: at 40 calls a
// minute, 8 records wait 12 s, which is above yieldAbove.
func TestYield_ScalesWithTheSource(t *testing.T) {
	r := newRig(t)
	r.behind.records.Store(8)
	r.lowWorker(source40{permits{r.limiter}, 0})
	r.work(schemas.High)
	r.enqueue("low", schemas.Low, schemas.Prefetch)
	r.enqueue("high", schemas.High, schemas.CacheMiss)
	r.untilStored("high")
	r.untilCommitted(schemas.High)
	if _, stored := r.snapshot("low"); stored {
		t.Error("got a call of LOW while HIGH waits for 12 s, want none")
	}
	r.behind.records.Store(1)
	r.untilStored("low")
}

// While LOW yields, the calls that the quota reserves for LOW are made nevertheless.
func TestYield_PassesLowReserve(t *testing.T) {
	r := newRig(t)
	r.behind.records.Store(1000)
	r.lowWorker(source40{permits{r.limiter}, 20})
	keys := keysOf("low", 3)
	r.enqueueAll(keys, schemas.Low, schemas.Prefetch)
	r.untilStored(keys...)
	r.untilCommitted(schemas.Low)
}

func TestYield_LowWaitsWhileHighIsBehind(t *testing.T) {
	r := newRig(t)
	rate := r.limiter.HighPerSecond() // the test limiter allows HIGH about 5,000 calls a second
	r.behind.records.Store(int64(10*rate) + 1)
	r.work(schemas.Low)
	r.work(schemas.High)
	r.enqueue("low", schemas.Low, schemas.Prefetch)
	r.enqueue("high", schemas.High, schemas.CacheMiss)
	r.untilStored("high")
	r.untilCommitted(schemas.High)
	if _, stored := r.snapshot("low"); stored {
		t.Error("got a LOW call while HIGH is behind, want none")
	}
	r.behind.records.Store(int64(2*rate) + 1)
	r.enqueue("high-2", schemas.High, schemas.CacheMiss)
	r.untilStored("high-2")
	if _, stored := r.snapshot("low"); stored {
		t.Error("got a LOW call between the two thresholds, want none")
	}
	r.behind.records.Store(int64(2 * rate))
	r.untilStored("low")
}
