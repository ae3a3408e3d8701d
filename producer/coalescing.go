package producer

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/schemas"
)

const (
	// deliveryTimeout bounds how long a record may wait for its acknowledgement.
	deliveryTimeout = 10 * time.Second
	// pendingTTL is a little above it: so long others only report the request.
	pendingTTL = deliveryTimeout + 2*time.Second
	// Once acknowledged, a request covers others for so long (adr-013 §2).
	highLockTTL = 30 * time.Second
	lowLockTTL  = 60 * time.Second
	// hashTTL is how long an entity's hash outlives its last use.
	hashTTL = time.Hour
)

// Coalescer is the state of the requests under way, one Redis hash an entity.
// Each method is one script; what they do together is in ARCHITECTURE.md.
type Coalescer struct {
	rdb      redis.UniversalClient
	refusals *refusalCache
}

// NewCoalescer returns the coalescing state kept in rdb.
func NewCoalescer(rdb redis.UniversalClient) *Coalescer { return &Coalescer{rdb, newRefusalCache()} }

// key puts the entity into a hash tag, so that everything about it lies in one
// slot of a cluster.
func key(e schemas.Entity) string { return "upd:{" + e.String() + "}" }

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// acquire decides for each wish whether it needs a record of its own.
func (c *Coalescer) acquire(ctx context.Context, wishes []Request) []Result {
	calls := make([]eval.Call, len(wishes))
	over := make([]Refusal, len(wishes)) // of wishes whose client Redis refused a moment ago
	for i, w := range wishes {
		var refuse bool
		over[i], refuse = c.refusals.of(w)
		cooldown := time.Duration(0)
		if w.Reason == schemas.UserRequest {
			cooldown = w.Cooldown
		}
		calls[i] = eval.Call{Key: key(w.Entity), Args: []any{
			string(w.Lane), boolToInt(!w.Reason.Relaxed()), w.Floor,
			boolToInt(w.Reason.PassesHolds()),
			cooldown.Milliseconds(), pendingTTL.Milliseconds(), hashTTL.Milliseconds(), boolToInt(refuse),
		}}
	}
	results := make([]Result, len(wishes))
	for i, cmd := range runScript(ctx, c.rdb, lua.CoalesceAcquire, calls) {
		reply, err := cmd.Slice()
		if err == nil {
			results[i], err = decodeAcquire(reply)
		}
		if err == nil && results[i].Outcome == refusedOutcome {
			results[i] = over[i].result()
		}
		if err != nil {
			results[i].Err = fmt.Errorf("coalesce %s: %w", wishes[i].Entity, err)
		}
	}
	return results
}

// runScript runs a script for one call alone or for several in pipelines.
func runScript(ctx context.Context, rdb redis.UniversalClient, s lua.Script, calls []eval.Call) []*redis.Cmd {
	if len(calls) == 1 {
		return []*redis.Cmd{eval.Once(ctx, rdb, s, calls[0])}
	}
	return eval.Each(ctx, rdb, s, calls)
}

func decodeAcquire(reply []any) (Result, error) {
	if len(reply) != 4 {
		return Result{}, fmt.Errorf("coalesce_acquire returned %d values, not 4", len(reply))
	}
	outcome, _ := reply[0].(string)
	number, _ := reply[1].(int64)
	reason, _ := reply[2].(string)
	until, _ := reply[3].(int64)
	r := Result{Outcome: Outcome(outcome), Number: number, HoldReason: reason}
	if until > 0 {
		r.Until = time.UnixMilli(until).UTC()
	}
	switch r.Outcome {
	case Published, Upgraded, AlreadyProcessing, Pending, Held, Cooling, refusedOutcome:
		return r, nil
	case TooManyOutstanding, TooManyNewKeys: // admit's
	}
	return Result{}, fmt.Errorf("coalesce_acquire returned the outcome %q", outcome)
}

// ack is the end of one publish.
type ack struct {
	entity schemas.Entity
	lane   schemas.Lane
	number int64
	client string       // whose count it is; empty: nobody's
	acked  chan<- error // nil: nobody waits for it
	err    error
	// refused: it is beyond its client's bound, and was never published.
	refused bool
}

// confirmOrRollBack confirms the locks of records that Kafka has acknowledged and rolls
// back those of the others. It returns how many were no longer their record's, and
// the first error; an unfinished lock ends by itself within pendingLife.
func (c *Coalescer) confirmOrRollBack(ctx context.Context, acks []ack) (conflicts int, err error) {
	var confirmed, failed []eval.Call
	for _, a := range acks {
		switch {
		case a.err != nil || a.refused:
			failed = append(failed, eval.Call{Key: key(a.entity), Args: []any{a.number}})
		case a.lane == schemas.High:
			confirmed = append(confirmed, eval.Call{Key: key(a.entity), Args: []any{a.number, highLockTTL.Milliseconds()}})
		default:
			confirmed = append(confirmed, eval.Call{Key: key(a.entity), Args: []any{a.number, lowLockTTL.Milliseconds()}})
		}
	}
	for _, batch := range []struct {
		script lua.Script
		calls  []eval.Call
	}{{lua.CoalesceConfirm, confirmed}, {lua.CoalesceRollback, failed}} {
		if len(batch.calls) == 0 {
			continue
		}
		for _, cmd := range runScript(ctx, c.rdb, batch.script, batch.calls) {
			its, failed := cmd.Int()
			switch {
			case failed == nil && its == 0:
				conflicts++
			case failed != nil && err == nil:
				err = fmt.Errorf("%s: %w", batch.script.Name, failed)
			}
		}
	}
	return conflicts, err
}

// Peek says of each request, in one round trip a cluster node, whether it is
// worth queueing for a permit. stored are the versions of the entities'
// snapshots, 0 for none. An error concerns all requests.
func (c *Coalescer) Peek(ctx context.Context, requests []schemas.UpdateRequest, stored []int64) ([]schemas.Verdict, error) {
	if len(requests) == 0 {
		return nil, nil
	}
	calls := make([]eval.Call, len(requests))
	for i, r := range requests {
		calls[i] = eval.Call{Key: key(r.Entity), Args: []any{r.Version, string(r.Lane), stored[i]}}
	}
	verdicts := make([]schemas.Verdict, len(requests))
	for i, cmd := range runScript(ctx, c.rdb, lua.RequestPeek, calls) {
		text, err := cmd.Text()
		if err != nil {
			return nil, fmt.Errorf("peek at %s: %w", requests[i].Entity, err)
		}
		verdicts[i] = schemas.Verdict(text)
	}
	return verdicts, nil
}

// Begin asks once more, directly before a fetch is sent, and gives the fetch its
// own number. Called again before anything was sent, it gives a later one.
func (c *Coalescer) Begin(ctx context.Context, r schemas.UpdateRequest, stored int64) (schemas.Verdict, int64, error) {
	reply, err := eval.Once(ctx, c.rdb, lua.RequestBegin, eval.Call{
		Key: key(r.Entity), Args: []any{r.Version, string(r.Lane), stored, hashTTL.Milliseconds()},
	}).Slice()
	if err != nil {
		return "", 0, fmt.Errorf("begin the fetch of %s: %w", r.Entity, err)
	}
	if len(reply) != 2 {
		return "", 0, fmt.Errorf("request_begin returned %d values, not 2", len(reply))
	}
	verdict, _ := reply[0].(string)
	number, _ := reply[1].(int64)
	return schemas.Verdict(verdict), number, nil
}

// Settle releases the locks of requests whose ends are durable, and tells all who
// follow (see FollowSettled). It is harmless
// to repeat; an error means that some may not be released, and that the offsets
// of all must not be committed yet.
func (c *Coalescer) Settle(ctx context.Context, ends []schemas.End) error {
	if len(ends) == 0 {
		return nil
	}
	calls := make([]eval.Call, len(ends))
	for i, e := range ends {
		calls[i] = eval.Call{Key: key(e.Entity), Args: []any{
			e.Number, boolToInt(e.Satisfied), e.Hold, e.HoldFor.Milliseconds(), hashTTL.Milliseconds(),
			schemas.SettledChannel(e.Entity.Source), schemas.Settled{Entity: e.Entity, Number: e.Number}.Encode(),
		}}
	}
	for i, cmd := range runScript(ctx, c.rdb, lua.RequestSettle, calls) {
		if err := cmd.Err(); err != nil {
			return fmt.Errorf("settle %s: %w", ends[i].Entity, err)
		}
	}
	return nil
}

// ClearHold ends an entity's hold and cool-down, if there are any: nothing of it is stored
// any more that they could follow from.
func (c *Coalescer) ClearHold(ctx context.Context, e schemas.Entity) error {
	return c.rdb.HDel(ctx, key(e), "hold", "cooldown").Err()
}
