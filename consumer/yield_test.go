package consumer_test

import (
	"testing"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
)

// source40 are the permits of a source of 40 calls a minute, of which so many a second are
// LOW's.
type source40 struct {
	permits
	reserve float64
}

func (source40) HighPerSecond() float64 { return 40.0 / 60 }
func (s source40) LowReserve() float64  { return s.reserve }

// lowWorker starts a worker of LOW with these permits.
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

// LOW yields by the time that HIGH's records wait: 8 records at 40 calls a minute are 12 s.
func TestYield_ScalesWithTheSource(t *testing.T) {
	r := newRig(t)
	r.behind.records.Store(8)
	r.lowWorker(source40{permits{r.limiter}, 0})
	r.work(schemas.High)
	r.wish("low", schemas.Low, schemas.Prefetch)
	r.wish("high", schemas.High, schemas.CacheMiss)
	r.untilStored("high")
	r.untilCommitted(schemas.High)
	if _, stored := r.snapshot("low"); stored {
		t.Error("got a call of LOW while HIGH waits for 12 s, want none")
	}
	r.behind.records.Store(1)
	r.untilStored("low")
}

// Calls of lowReserve pass while LOW yields.
func TestYield_PassesLowReserve(t *testing.T) {
	r := newRig(t)
	r.behind.records.Store(1000)
	r.lowWorker(source40{permits{r.limiter}, 20})
	keys := numbered("low", 3)
	r.wishAll(keys, schemas.Low, schemas.Prefetch)
	r.untilStored(keys...)
	r.untilCommitted(schemas.Low)
}
