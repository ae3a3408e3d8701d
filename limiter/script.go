package limiter

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
)

// acquireFunc makes one call to Redis for slots.
type acquireFunc func(ctx context.Context, d demand) (grant, error)

// demand is the content of one call to Redis: the slots wanted and the events to apply.
type demand struct {
	high, low int
	hasEvents bool // events must be sent, even if no slots are wanted
	events    []event
	terms     terms

	queues       []queueDemand // the slots wanted for each queue, in sources with buckets
	bucketEvents []bucketEvent // the events of single buckets that this call sends
	tickets      string        // prefix of the tickets of the calls for which this demand gets slots
	process      string
}

// needed reports whether a call to Redis is needed, for slots or for events.
func (d demand) needed() bool { return d.wantsSlots() || d.hasEvents }

// wantsSlots reports whether the demand requests slots.
func (d demand) wantsSlots() bool { return d.high > 0 || d.low > 0 || len(d.queues) > 0 }

// terms is the quota, encoded for the script (quotaTerms).
type terms struct {
	text       string
	scopedFrom int    // number of policies before the first scoped policy
	midnights  string // the midnights, encoded; they are sent only if the script requests them
}

// grant is the reply of the script. For each granted slot it contains the time from now (the time that
// Redis' clock shows) until the slot. If a lane did not get all requested slots, it also contains the
// time until the next call to Redis (back…) and the reason of the rejection (refusal…). While the
// circuit breaker is open, the reason is refusedByBreaker, even if no slot was rejected.
type grant struct {
	high, low               []time.Duration
	backHigh, backLow       time.Duration
	refusalHigh, refusalLow refusal
	now                     int64 // time of Redis' clock, in µs
	used                    int64 // number of calls that were granted in the current day
	birth                   int64 // time by Redis' clock at which the source's state in Redis began, in µs

	queues []queueGrant // grants of the queues, in the order of demand.queues
	states map[*bucket]bucketState
}

// refusal is the reason why slots were rejected: the number of a policy in Quota.named, or one of the
// constants below.
type refusal int

const (
	notRefused         refusal = 0
	refusedByBackoff   refusal = -1
	refusedByStop      refusal = -2
	refusedByStateLoss refusal = -3
	refusedByDayCount  refusal = -4
	refusedByBreaker   refusal = -5
)

const (
	// redisTimeout is the timeout of one call to Redis. It is short, so that a server that hangs
	// is detected early.
	redisTimeout = 150 * time.Millisecond
	// maxSlotsPerCall limits the slots that one call to Redis requests, and so the script's run
	// time.
	maxSlotsPerCall = 1000
)

func stateKey(source string) string { return "quota:{" + source + "}:state" }

// script returns an acquireFunc that runs limiter_acquire.
func script(source string, rdb redis.UniversalClient) acquireFunc {
	key := stateKey(source)
	return func(ctx context.Context, d demand) (grant, error) {
		ctx, cancel := context.WithTimeout(ctx, redisTimeout)
		defer cancel()
		call, of := d.call(key, source)
		reply, err := eval.Ints(ctx, rdb, lua.LimiterAcquire, call)
		// A reply of one number means that the script needs d.terms.midnights.
		if err == nil && len(reply) == 1 && d.terms.midnights != "" {
			call.Args[3] = d.terms.midnights
			reply, err = eval.Ints(ctx, rdb, lua.LimiterAcquire, call)
		}
		if err != nil {
			return grant{}, err
		}
		if d.usesScopes() {
			return decodeScopes(reply, d, of)
		}
		return decodeGrant(reply)
	}
}

// usesScopes reports whether the demand has queues or bucket events. A queue has no bucket if no scoped
// policy counts its calls.
func (d demand) usesScopes() bool { return len(d.queues)+len(d.bucketEvents) > 0 }

// call returns the arguments of limiter_acquire for a demand.
func (d demand) call(key, source string) (eval.Call, encodedBuckets) {
	args := append(make([]any, 0, 11), d.high, d.low, d.terms.text, "")
	if d.usesScopes() {
		of := d.encodeScopes(source)
		args = append(args, encodeEvents(d.events), of.text)
		return eval.Call{Key: key, More: of.keys, Args: args}, of
	}
	if len(d.events) > 0 {
		args = append(args, encodeEvents(d.events))
	}
	return eval.Call{Key: key, Args: args}, encodedBuckets{}
}

// wakeUpChannel is the Pub/Sub channel on which the script names the process that can take a
// free in-flight slot.
func wakeUpChannel(source string) string { return "quota:{" + source + "}:wakes" }

func decodeGrant(reply []int64) (grant, error) {
	bad := func() (grant, error) {
		return grant{}, fmt.Errorf("limiter_acquire returned a malformed reply: %v", reply)
	}
	if len(reply) < 5 || len(reply)%3 == 1 || len(reply) == 6 || reply[0] < 0 || reply[1] < 0 || reply[0]+reply[1] > 2*maxSlotsPerCall {
		return bad()
	}
	total := reply[0] + reply[1]
	g := grant{now: reply[2], used: reply[3], birth: reply[4]}
	runs := reply[5:]
	if len(runs)%3 == 1 { // slots were rejected, so the reply ends with four more numbers: retry times and reasons
		var refused []int64
		runs, refused = runs[:len(runs)-4], runs[len(runs)-4:]
		g.backHigh, g.backLow = micros(refused[0]), micros(refused[1])
		g.refusalHigh, g.refusalLow = refusal(refused[2]), refusal(refused[3])
	}
	waits := make([]time.Duration, 0, total)
	for ; len(runs) > 0; runs = runs[3:] {
		n, first, interval := runs[0], micros(runs[1]), micros(runs[2])
		if n < 1 || int64(len(waits))+n > total {
			return bad()
		}
		for k := range n {
			waits = append(waits, first+time.Duration(k)*interval)
		}
	}
	if int64(len(waits)) != total {
		return bad()
	}
	g.high, g.low = waits[:reply[0]:reply[0]], waits[reply[0]:]
	return g, nil
}
