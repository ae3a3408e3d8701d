package producer

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/schemas"
)

// CoalesceState is what Redis knows of an entity's requests at one moment, by its own clock. The zero
// value: nothing is under way, and nothing keeps a request back.
type CoalesceState struct {
	// Lane, Number and Until are those of the request that covers others; no lane: there is
	// none. Confirmed: Kafka has acknowledged it; otherwise its publish is in the air.
	Lane      schemas.Lane
	Number    int64
	Confirmed bool
	Until     time.Time
	// Issued is the last number that was given: above Number it is that of a fetch which
	// has begun behind the request.
	Issued int64
	// Done is the last number that was satisfied: up to it nothing waits any more.
	Done int64
	// Hold is why relaxed requests are refused until HoldUntil; empty: they are not.
	Hold      string
	HoldUntil time.Time
	// CooledUntil is until when a USER_REQUEST is refused; zero: it is not.
	CooledUntil time.Time
}

// ReadState returns what is under way for an entity, and changes nothing.
func (c *Coalescer) ReadState(ctx context.Context, e schemas.Entity) (CoalesceState, error) {
	reply, err := eval.Once(ctx, c.rdb, lua.CoalesceInspect, eval.Call{Key: key(e)}).Slice()
	if err != nil {
		return CoalesceState{}, fmt.Errorf("look at what is under way for %s: %w", e, err)
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
