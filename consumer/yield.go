package consumer

import (
	"context"
	"math"
	"time"

	"github.com/freshet/freshet/schemas"
)

// LOW yields when a new record of HIGH would wait for yieldAbove, at one call a record and at
// the rate that the quota's windows give HIGH, until it would wait for yieldBelow at most. These
// are the 5,000 and 1,000 records of adr-013 §12 at its 500 calls a second. A source that only a
// concurrency limit bounds has no such rate: there LOW does not yield, and HIGH has the next
// free slot.
const (
	yieldAbove = 10 * time.Second
	yieldBelow = 2 * time.Second
	yieldEvery = time.Second
)

// highWait returns how long a record waits behind so many of HIGH, at that many calls a second.
func highWait(records int64, perSecond float64) time.Duration {
	if records <= 0 {
		return 0
	}
	seconds := min(float64(records)/perSecond, float64(math.MaxInt64)/float64(2*time.Second))
	return time.Duration(seconds * float64(time.Second))
}

// yieldLoop has a LOW worker fetch nothing while HIGH is behind, but for what lowReserve keeps for
// LOW: that much passes in each process. A lag that can't be measured changes nothing.
func (w *Worker) yieldLoop(ctx context.Context) {
	tick, pass := time.NewTicker(yieldEvery), time.NewTicker(yieldEvery)
	defer tick.Stop()
	defer pass.Stop()
	topic := schemas.RequestTopic(w.source.Name(), w.lane)
	yielding, reserve := false, 0.0
	for {
		lag, known := w.lag.Records(w.source.Name(), schemas.High)
		wait := highWait(lag, w.permits.HighPerSecond())
		switch {
		case known && !yielding && wait > yieldAbove:
			yielding = true
			if reserve = w.permits.LowReserve(); reserve > 0 {
				pass.Reset(time.Duration(float64(time.Second) / reserve))
			} else {
				w.kafka.PauseFetchTopics(topic)
			}
			w.gates.set(gateYield, false)
			w.metrics.yielding.Set(1)
			w.log.Warn("LOW stands back: HIGH is behind", "records", lag, "wait", wait, "until", yieldBelow)
		case known && yielding && wait <= yieldBelow:
			yielding, reserve = false, 0
			w.kafka.ResumeFetchTopics(topic)
			w.gates.set(gateYield, true)
			w.metrics.yielding.Set(0)
			w.log.Info("LOW goes on: HIGH has caught up", "records", lag)
		}
		for again := true; again; {
			select {
			case <-ctx.Done():
				return
			case <-pass.C:
				if yielding && reserve > 0 {
					w.gates.passLow()
				}
			case <-tick.C:
				again = false
			}
		}
	}
}
