package limiter

import (
	"context"
	"crypto/sha1" //nolint:gosec // names a quota, as Redis names a script
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
)

// acquireFunc asks Redis for slots, once.
type acquireFunc func(ctx context.Context, d demand) (grant, error)

// demand is what one call to Redis asks for, and tells.
type demand struct {
	high, low int
	hasEvents bool   // there is something to tell
	events    string // what it is, as the script takes it
	terms     terms

	queues       []queueDemand // of a source with buckets
	bucketEvents []bucketEvent // to be told of them
	tickets      string        // what the tickets of this call begin with
	process      string
}

// needed reports whether there is a reason to call.
func (d demand) needed() bool { return d.wantsSlots() || d.hasEvents }

// wantsSlots reports whether it asks for slots.
func (d demand) wantsSlots() bool { return d.high > 0 || d.low > 0 || len(d.queues) > 0 }

// terms is a quota as the script takes it.
type terms struct {
	text, name         string
	midnights, rateCap string // midnights go along when they are asked for
}

// grant is what it answers: waits until the slots, from Redis' now, and in how
// long to come back for what was refused (0: nothing was), and by whom. While a
// probing stop is in force, by whom is whyProbing, though nothing was refused.
type grant struct {
	high, low               []time.Duration
	backHigh, backLow       time.Duration
	refusalHigh, refusalLow refusal
	now                     int64 // Redis' clock in us
	used                    int64 // calls of the day

	queues []queueGrant // in the order of the demand's
	states map[*bucket]bucketState
}

// refusal is what refused demand: a section of the quota, or one of these.
type refusal int

const (
	notRefused         refusal = 0
	refusedByBackoff   refusal = -1
	refusedByStop      refusal = -2
	refusedByStateLoss refusal = -3
	refusedByDayCount  refusal = -4
	refusedByRateCap   refusal = -5
	refusedByBreaker   refusal = -6
)

const (
	// redisTimeout bounds one call to Redis: a stopped one is noticed in time.
	redisTimeout = 150 * time.Millisecond
	// maxSlotsPerCall bounds the slots of one call, and with it the script's time.
	maxSlotsPerCall = 1000
)

// digits writes numbers as the script takes them.
func digits(out *strings.Builder, numbers ...int64) {
	for _, n := range numbers {
		fmt.Fprintf(out, "%16d", n)
	}
}

// encode returns the quota as the script takes it.
func (q Quota) encode(revision int64, stopped bool) (text, name string) {
	var out strings.Builder
	digits(&out, revision)
	out.WriteByte(map[bool]byte{false: '0', true: '1'}[stopped])
	digits(&out, horizon.Microseconds(), q.quiet().Microseconds())
	for _, l := range q.partitioned {
		out.WriteByte('L')
		digits(&out, l.window.Microseconds())
		for _, lane := range l.partitions {
			digits(&out, lane.interval.Microseconds(), int64(lane.burst))
		}
	}
	for _, r := range q.windowLogs {
		for _, numbers := range r.sections() {
			out.WriteByte('R')
			digits(&out, numbers[:]...)
		}
	}
	if q.day != nil {
		out.WriteByte('D')
		digits(&out, int64(q.day.policy.Limit), int64(q.day.reserve*1e6))
	}
	for _, scoped := range q.scoped {
		out.WriteByte(byte(scoped.kind))
		digits(&out, nameNumber(scoped.policy.Name))
		digits(&out, scoped.numbers...)
	}
	sum := sha1.Sum([]byte(out.String())) //nolint:gosec // see the import
	return out.String(), hex.EncodeToString(sum[:13])
}

// sectionNames names the policies in the order of their sections.
func (q Quota) sectionNames() []string {
	var names []string
	for _, l := range q.partitioned {
		names = append(names, l.policy.Name)
	}
	for _, r := range q.windowLogs {
		for range r.sections() {
			names = append(names, r.policy.Name)
		}
	}
	if q.day != nil {
		names = append(names, q.day.policy.Name)
	}
	for _, scoped := range q.scoped {
		names = append(names, scoped.policy.Name)
	}
	return names
}

// refusalText says in a word what refused demand.
func (q Quota) refusalText(w refusal) string {
	switch w {
	case notRefused:
		return ""
	case refusedByBackoff:
		return "backoff"
	case refusedByStop:
		return "stopped"
	case refusedByStateLoss:
		return "state lost"
	case refusedByDayCount:
		return "day not counted yet"
	case refusedByRateCap:
		return "rate cap"
	case refusedByBreaker:
		return "breaker open"
	}
	if names := q.sectionNames(); int(w) <= len(names) {
		return names[w-1]
	}
	return "policy of another release"
}

func stateKey(source string) string { return "quota:{" + source + "}:state" }

// script returns the asker that runs limiter_acquire.
func script(source string, rdb redis.UniversalClient) acquireFunc {
	key := stateKey(source)
	return func(ctx context.Context, d demand) (grant, error) {
		ctx, cancel := context.WithTimeout(ctx, redisTimeout)
		defer cancel()
		call, of := d.call(key, source)
		reply, err := eval.Ints(ctx, rdb, lua.LimiterAcquire, call)
		if err == nil && len(reply) == 1 && d.terms.midnights != "" { // a day begins
			call.Args[4] = d.terms.midnights
			reply, err = eval.Ints(ctx, rdb, lua.LimiterAcquire, call)
		}
		if err != nil {
			return grant{}, err
		}
		if of.bucketList != nil {
			return decodeScopes(reply, d, of)
		}
		return decodeGrant(reply)
	}
}

// call returns the run of the script for a demand.
func (d demand) call(key, source string) (eval.Call, scopeArgs) {
	args := append(make([]any, 0, 13), d.high, d.low, d.terms.text, d.terms.name, "")
	if len(d.queues)+len(d.bucketEvents) > 0 {
		of := d.encodeScopes()
		args = append(args, d.terms.rateCap, d.events, of.buckets, of.events, of.queues, d.tickets, d.process, wakeUpChannel(source))
		return eval.Call{Key: key, More: of.keys, Args: args}, of
	}
	if d.terms.rateCap != "" || d.events != "" {
		args = append(args, d.terms.rateCap)
	}
	if d.events != "" {
		args = append(args, d.events)
	}
	return eval.Call{Key: key, Args: args}, scopeArgs{}
}

// wakeUpChannel is the channel on which a process is told that it may have a place.
func wakeUpChannel(source string) string { return "quota:{" + source + "}:wakes" }

func decodeGrant(reply []int64) (grant, error) {
	bad := func() (grant, error) {
		return grant{}, fmt.Errorf("limiter_acquire returned %v, which does not add up", reply)
	}
	if len(reply) < 4 || len(reply)%3 == 0 || len(reply) == 5 || reply[0] < 0 || reply[1] < 0 || reply[0]+reply[1] > 2*maxSlotsPerCall {
		return bad()
	}
	total := reply[0] + reply[1]
	g := grant{now: reply[2], used: reply[3]}
	runs := reply[4:]
	if len(runs)%3 == 1 { // something was refused
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
