package consumer

import (
	"context"
	"math"
	"time"

	"github.com/freshet/freshet/schemas"
)

// yieldAbove and yieldBelow control when LOW yields to HIGH. While LOW yields, it makes only the
// calls that the quota reserves for LOW. LOW yields when a new HIGH record would wait longer than
// yieldAbove. LOW continues when a new HIGH record would wait at most yieldBelow. The wait is
// computed for one call for each record, at the rate that the quota's windows allow for HIGH. At
// the rate of adr-013 §12, 500 calls a second, the limits are 5,000 and 1,000 waiting HIGH records.
// A source with only a concurrency limit has no such rate; there LOW never yields, and HIGH gets
// the next free slot.
const (
	yieldAbove = 10 * time.Second
	yieldBelow = 2 * time.Second
	yieldEvery = time.Second
)

// highWait returns how long a new record waits behind the given number of HIGH records, if HIGH
// makes perSecond calls a second.
func highWait(records int64, perSecond float64) time.Duration {
	if records <= 0 {
		return 0
	}
	seconds := min(float64(records)/perSecond, float64(math.MaxInt64)/float64(2*time.Second))
	return time.Duration(seconds * float64(time.Second))
}

// yielder lets the LOW worker of a process yield to HIGH.
type yielder struct {
	*base
	group *group
	gates *gates
	rates Rates
	lag   Lag
}

// run stops the calls of a LOW worker while HIGH is behind, except for calls at the rate that
// the quota reserves for LOW. Each process makes calls at that rate. While the lag is unknown, the
// worker neither begins nor ceases to yield.
func (y *yielder) run(ctx context.Context) {
	tick, pass := time.NewTicker(yieldEvery), time.NewTicker(yieldEvery)
	defer tick.Stop()
	defer pass.Stop()
	topic := schemas.RequestTopic(y.source.Name(), y.lane)
	yielding, reserve := false, 0.0
	for {
		lag, known := y.lag.Records(y.source.Name(), schemas.High)
		wait := highWait(lag, y.rates.HighPerSecond())
		switch {
		case known && !yielding && wait > yieldAbove:
			yielding = true
			if reserve = y.rates.LowReserve(); reserve > 0 {
				pass.Reset(time.Duration(float64(time.Second) / reserve))
			} else {
				y.group.client.PauseFetchTopics(topic)
			}
			y.gates.set(gateYield, false)
			y.metrics.yielding.Set(1)
			y.log.Warn("LOW lane yields, because HIGH records wait too long", "records", lag, "wait", wait, "until", yieldBelow)
		case known && yielding && wait <= yieldBelow:
			yielding, reserve = false, 0
			y.group.client.ResumeFetchTopics(topic)
			y.gates.set(gateYield, true)
			y.metrics.yielding.Set(0)
			y.log.Info("LOW lane resumes, because HIGH has caught up", "records", lag)
		}
		for ticked := false; !ticked; {
			select {
			case <-ctx.Done():
				return
			case <-pass.C:
				if yielding && reserve > 0 {
					y.gates.passLow()
				}
			case <-tick.C:
				ticked = true
			}
		}
	}
}
