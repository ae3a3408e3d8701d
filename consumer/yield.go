package consumer

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
)

// LOW stands back when so many records of HIGH are not committed, until no more
// than so few are (adr-013 §12: the alert and the aim).
const (
	yieldAbove = 5000
	yieldBelow = 1000
	yieldEvery = time.Second
)

// yield has a LOW worker read and call nothing while HIGH lags. A lag that can't
// be measured changes nothing.
func (w *Worker) yield(ctx context.Context) {
	tick := time.NewTicker(yieldEvery)
	defer tick.Stop()
	topic := schemas.RequestTopic(w.source.Name(), w.lane)
	yielding := false
	for {
		lag, known := w.lag.Records(w.source.Name(), schemas.High)
		switch {
		case known && !yielding && lag > yieldAbove:
			yielding = true
			w.kafka.PauseFetchTopics(topic)
			w.gates.set(gateYield, false)
			w.metrics.yielding.Set(1)
			w.log.Warn("LOW stands back: HIGH is behind", "records", lag, "until", yieldBelow)
		case known && yielding && lag <= yieldBelow:
			yielding = false
			w.kafka.ResumeFetchTopics(topic)
			w.gates.set(gateYield, true)
			w.metrics.yielding.Set(0)
			w.log.Info("LOW goes on: HIGH has caught up", "records", lag)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
