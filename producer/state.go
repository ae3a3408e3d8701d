package producer

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/schemas"
)

// CoalesceState is a snapshot of an entity's coalescing state, at one moment by the clock of
// Redis. The zero value: no request is in flight, and no hold or cool-down is active.
type CoalesceState struct {
	// Lane, Number and Until describe the entity's lock: the lane and the number of the request that
	// holds it, and when it expires. If Lane is empty, there is no lock. Confirmed means that Kafka
	// has acknowledged the record of the request.
	Lane      schemas.Lane
	Number    int64
	Confirmed bool
	Until     time.Time
	// Issued is the highest number that a request or fetch of the entity has received. If it is
	// above Number, a fetch has begun after the request.
	Issued int64
	// Done is the highest number that a fetch has satisfied. Requests with a number up to Done
	// need no fetch.
	Done int64
	// Hold is the reason why requests are refused until HoldUntil; empty means that there is no hold.
	// Explicit refreshes, retries and replays are not refused.
	Hold      string
	HoldUntil time.Time
	// CooledUntil is when the cool-down ends; until then a USER_REQUEST is refused. Zero means that no
	// cool-down is active.
	CooledUntil time.Time
}

// ReadState returns the coalescing state of an entity. It changes nothing.
func (c *Coalescer) ReadState(ctx context.Context, e schemas.Entity) (CoalesceState, error) {
	reply, err := eval.Once(ctx, c.rdb, lua.CoalesceInspect, eval.Call{Key: key(e)}).Slice()
	if err != nil {
		return CoalesceState{}, fmt.Errorf("read the coalescing state of %s: %w", e, err)
	}
	if len(reply) != 9 {
		return CoalesceState{}, fmt.Errorf("coalesce_inspect returned %d values, not 9", len(reply))
	}
	text := func(i int) string { s, _ := reply[i].(string); return s }
	number := func(i int) int64 { n, _ := reply[i].(int64); return n }
	when := func(i int) time.Time {
		if ms := number(i); ms > 0 {
			return time.UnixMilli(ms).UTC()
		}
		return time.Time{}
	}
	return CoalesceState{
		Lane: schemas.Lane(text(0)), Number: number(1), Until: when(2), Confirmed: text(3) == "CONFIRMED", Issued: number(4),
		Hold: text(5), HoldUntil: when(6), CooledUntil: when(7), Done: number(8),
	}, nil
}
