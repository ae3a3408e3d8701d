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

// asker asks Redis for slots, once.
type asker func(ctx context.Context, d demand) (grant, error)

// demand is what one call to Redis asks for, and tells.
type demand struct {
	high, low int
	events    bool   // there is something to tell
	happened  string // what it is, as the script takes it
	terms     terms

	classes []classDemand // of a source with buckets
	buckets []happening   // to be told of them
	tickets string        // what the tickets of this call begin with
	process string
}

// wanted reports whether there is a reason to call.
func (d demand) wanted() bool { return d.asks() || d.events }

// asks reports whether it asks for slots.
func (d demand) asks() bool { return d.high > 0 || d.low > 0 || len(d.classes) > 0 }

// terms is a quota as the script takes it.
type terms struct {
	text, name         string
	midnights, ceiling string // midnights go along when they are asked for
}

// grant is what it answers: waits until the slots, from Redis' now, and in how
// long to come back for what was refused (0: nothing was), and by whom. While a
// probing stop is in force, by whom is whyProbing, though nothing was refused.
type grant struct {
	high, low         []time.Duration
	backHigh, backLow time.Duration
	whyHigh, whyLow   why
	now               int64 // Redis' clock in us
	used              int64 // calls of the day

	classes []classGrant // in the order of the demand's
	states  map[*bucket]bucketState
}

// why is what refused demand: a section of the quota, or one of these.
type why int

const (
	whyNothing   why = 0
	whyBrake     why = -1
	whyStopped   why = -2
	whyLost      why = -3
	whyUncounted why = -4
	whyCeiling   why = -5
	whyProbing   why = -6
)

const (
	// askTimeout bounds one call to Redis: a stopped one is noticed in time.
	askTimeout = 150 * time.Millisecond
	// askMost bounds the slots of one call, and with it the script's time.
	askMost = 1000
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
	for _, l := range q.lanes {
		out.WriteByte('L')
		digits(&out, l.window.Microseconds())
		for _, lane := range l.lanes {
			digits(&out, lane.interval.Microseconds(), int64(lane.burst))
		}
	}
	for _, r := range q.rings {
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

// sections names the policies in the order of their sections.
func (q Quota) sections() []string {
	var names []string
	for _, l := range q.lanes {
		names = append(names, l.policy.Name)
	}
	for _, r := range q.rings {
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

// reason says in a word what refused demand.
func (q Quota) reason(w why) string {
	switch w {
	case whyNothing:
		return ""
	case whyBrake:
		return "brake"
	case whyStopped:
		return "stopped"
	case whyLost:
		return "state lost"
	case whyUncounted:
		return "day not counted yet"
	case whyCeiling:
		return "ceiling"
	case whyProbing:
		return "probing"
	}
	if names := q.sections(); int(w) <= len(names) {
		return names[w-1]
	}
	return "policy of another release"
}

func stateKey(source string) string { return "quota:{" + source + "}:lanes" }

// script returns the asker that runs limiter_acquire.
func script(source string, rdb redis.UniversalClient) asker {
	key := stateKey(source)
	return func(ctx context.Context, d demand) (grant, error) {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
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
		if of.all != nil {
			return decodeScopes(reply, d, of)
		}
		return decodeGrant(reply)
	}
}

// call returns the run of the script for a demand.
func (d demand) call(key, source string) (eval.Call, asked) {
	args := append(make([]any, 0, 13), d.high, d.low, d.terms.text, d.terms.name, "")
	if len(d.classes)+len(d.buckets) > 0 {
		of := d.scopes()
		args = append(args, d.terms.ceiling, d.happened, of.buckets, of.happened, of.classes, d.tickets, d.process, wakesKey(source))
		return eval.Call{Key: key, More: of.keys, Args: args}, of
	}
	if d.terms.ceiling != "" || d.happened != "" {
		args = append(args, d.terms.ceiling)
	}
	if d.happened != "" {
		args = append(args, d.happened)
	}
	return eval.Call{Key: key, Args: args}, asked{}
}

// wakesKey is the channel on which a process is told that it may have a place.
func wakesKey(source string) string { return "quota:{" + source + "}:wakes" }

func decodeGrant(reply []int64) (grant, error) {
	bad := func() (grant, error) {
		return grant{}, fmt.Errorf("limiter_acquire returned %v, which does not add up", reply)
	}
	if len(reply) < 4 || len(reply)%3 == 0 || len(reply) == 5 || reply[0] < 0 || reply[1] < 0 || reply[0]+reply[1] > 2*askMost {
		return bad()
	}
	total := reply[0] + reply[1]
	g := grant{now: reply[2], used: reply[3]}
	runs := reply[4:]
	if len(runs)%3 == 1 { // something was refused
		var refused []int64
		runs, refused = runs[:len(runs)-4], runs[len(runs)-4:]
		g.backHigh, g.backLow = micros(refused[0]), micros(refused[1])
		g.whyHigh, g.whyLow = why(refused[2]), why(refused[3])
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
