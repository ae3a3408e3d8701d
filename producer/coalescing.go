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
	// deliveryTimeout is how long a record may wait for its acknowledgement by Kafka.
	deliveryTimeout = 10 * time.Second
	// pendingTTL is the TTL of a lock whose record Kafka has not acknowledged. It is longer than
	// deliveryTimeout, so the lock does not expire while the publish may still succeed.
	pendingTTL = deliveryTimeout + 2*time.Second
	// highLockTTL and lowLockTTL are the TTLs of a lock whose record Kafka has acknowledged
	// (adr-013 §2).
	highLockTTL = 30 * time.Second
	lowLockTTL  = 60 * time.Second
	// hashTTL is how long an entity's Redis hash is kept after its last use.
	hashTTL = time.Hour
)

// Coalescer reads and changes the coalescing state: one Redis hash per entity. Each change of a hash
// is one atomic script or command. See the package documentation for the states of a lock. The
// methods of Coalescer may be called concurrently.
type Coalescer struct {
	rdb      redis.UniversalClient
	refusals *refusalCache
	begins   *begins
}

// NewCoalescer returns a Coalescer that keeps its state in rdb.
func NewCoalescer(rdb redis.UniversalClient) *Coalescer {
	return &Coalescer{rdb, newRefusalCache(), &begins{rdb: rdb}}
}

// announcedNumber returns the number of the request for the settle message. If the entity waits for its
// alias, it returns a lower number, so that waiting clients continue to wait.
func announcedNumber(e schemas.End) int64 {
	if e.Hold == schemas.HoldAlias && e.Number > 1 {
		return e.Number - 1
	}
	return e.Number
}

// key returns the Redis key of an entity's hash. The braces make the entity the hash tag, by which
// Redis Cluster selects the node of a key.
func key(e schemas.Entity) string { return "upd:{" + e.String() + "}" }

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// acquire decides for each request whether the request needs its own record. If so, it takes the
// lock of the entity.
func (c *Coalescer) acquire(ctx context.Context, requests []Request) []Result {
	calls := make([]eval.Call, len(requests))
	cachedRefusals := make([]Refusal, len(requests)) // cached refusals, by index of the request
	for i, req := range requests {
		var refuse bool
		cachedRefusals[i], refuse = c.refusals.of(req)
		cooldown := time.Duration(0)
		if req.Reason == schemas.UserRequest {
			cooldown = req.Cooldown
		}
		calls[i] = eval.Call{Key: key(req.Entity), Args: []any{
			string(req.Lane), boolToInt(!req.Reason.Relaxed()), req.Floor,
			boolToInt(req.Reason.PassesHolds()),
			cooldown.Milliseconds(), pendingTTL.Milliseconds(), hashTTL.Milliseconds(), boolToInt(refuse),
		}}
	}
	results := make([]Result, len(requests))
	for i, cmd := range runScript(ctx, c.rdb, lua.CoalesceAcquire, calls) {
		reply, err := cmd.Slice()
		if err == nil {
			results[i], err = decodeAcquire(reply)
		}
		if err == nil && results[i].Outcome == refusedOutcome {
			results[i] = cachedRefusals[i].result()
		}
		if err != nil {
			results[i].Err = fmt.Errorf("coalesce %s: %w", requests[i].Entity, err)
		}
	}
	return results
}

// runScript runs a script once, or in pipelines if there are several calls.
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
	case TooManyOutstanding, TooManyNewKeys: // a reply with one of these two outcomes is an error: only admit may return them, not the script coalesce_acquire
	}
	return Result{}, fmt.Errorf("coalesce_acquire returned the unknown outcome %q", outcome)
}

// ack says whether Kafka has acknowledged the record of one update request.
type ack struct {
	entity schemas.Entity
	lane   schemas.Lane
	number int64
	client string       // client whose outstanding count includes the request; empty means none
	acked  chan<- error // receives the error of the publish, or nil, when the publish has ended; nil means that no caller waits
	err    error
	// refused is true if the request exceeded a limit of its client and was never published.
	refused bool
}

// confirmOrRollBack confirms the locks of records that Kafka acknowledged and rolls back the locks of
// all other records. `conflicts` counts the locks that were left unchanged because a worker had
// already settled the request, or a later request had replaced the lock. `err` is the first error. A
// lock that was not changed because of an error expires within pendingTTL.
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

// Peek decides for each request whether a fetch still seems necessary, before a worker waits for a
// permit. It takes one round trip per cluster node. `stored` has the version of each entity's
// snapshot; 0 means that there is none. An error applies to all requests.
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
			return nil, fmt.Errorf("check whether the request for %s still needs a fetch: %w", requests[i].Entity, err)
		}
		verdicts[i] = schemas.Verdict(text)
	}
	return verdicts, nil
}

// Settle releases the locks of requests that have ended and whose outcome is stored durably. It
// publishes each end to the subscribers of SubscribeSettled. It is idempotent. After an error
// some locks may not be released, and the caller must not commit the offset of any of these
// requests.
func (c *Coalescer) Settle(ctx context.Context, ends []schemas.End) error {
	if len(ends) == 0 {
		return nil
	}
	calls := make([]eval.Call, len(ends))
	for i, e := range ends {
		calls[i] = eval.Call{Key: key(e.Entity), Args: []any{
			e.Number, boolToInt(e.Satisfied), e.Hold, e.HoldFor.Milliseconds(), hashTTL.Milliseconds(),
			schemas.SettledChannel(e.Entity.Source), schemas.Settled{Entity: e.Entity, Number: announcedNumber(e)}.Encode(),
		}}
	}
	for i, cmd := range runScript(ctx, c.rdb, lua.RequestSettle, calls) {
		if err := cmd.Err(); err != nil {
			return fmt.Errorf("settle %s: %w", ends[i].Entity, err)
		}
	}
	return nil
}

// ClearHold deletes an entity's hold and cool-down. It is called when the entity is deleted: the
// data that justified them no longer exists.
func (c *Coalescer) ClearHold(ctx context.Context, e schemas.Entity) error {
	return c.rdb.HDel(ctx, key(e), "hold", "cooldown").Err()
}
