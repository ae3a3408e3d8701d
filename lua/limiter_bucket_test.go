package lua_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/servicetest"
)

const (
	horizon = 150_000
	quiet   = 1_200_000
	second  = 1_000_000
	epoch   = 2_500_000 // in µs; the script ignores a quota that no caller has sent for this time
)

// These constants are the numbers with which the script names the reason for a rejected slot. If a
// section of the quota is the reason, the script returns the section's number instead.
const (
	refusedByBackoff   = -1
	refusedByStop      = -2
	refusedByStateLoss = -3
	refusedByDayCount  = -4
)

// nexonLanes are the interval T (µs) and the burst B of the partitions high, shared and low. They
// use 450 of 500 calls a second, 100 of them for HIGH. The partitions of wideLanes never reject.
var (
	nexonLanes = []int64{10_000, 10, 2_858, 15, 0, 0}
	wideLanes  = []int64{0, 0, 1_000, 100, 0, 0}
)

// windowLog returns the policy of a sliding-window log in the quota, day the policy of a calendar day,
// and partitions the policy of a window with partitions. Each text ends with a comma.
func windowLog(reach, slots, low int64) string {
	return fmt.Sprintf(`{"kind":"windowLog","id":"windowLog %d","reach":%d,"slots":%d,"lowSlots":%d},`, reach, reach, slots, low)
}

func day(limit int64, reserve float64) string {
	return fmt.Sprintf(`{"kind":"day","id":"day","calls":%d,"reserve":%d},`, limit, int64(reserve*1e6))
}

func partitions(window int64, lanes []int64) string {
	return fmt.Sprintf(`{"kind":"partitions","id":"partitions %d","window":%d,"highT":%d,"highB":%d,"sharedT":%d,"sharedB":%d,"lowT":%d,"lowB":%d},`,
		window, window, lanes[0], lanes[1], lanes[2], lanes[3], lanes[4], lanes[5])
}

// bucket is one caller of limiter_acquire with its quota, and the state of one source.
type bucket struct {
	t        *testing.T
	rdb      redis.UniversalClient
	key      string
	lanes    []int64
	more     string           // further policies of the quota
	zone     *time.Location   // time zone of the day policy; nil: no day policy
	clock    func() time.Time // the clock of the caller, not of Redis
	revision int64
	stopped  int
}

type grant struct {
	now                     int64   // time of Redis' clock, in µs
	high, low               []int64 // granted slots, in µs by Redis' clock
	backHigh, backLow       int64   // µs until the caller can call again for the rejected slots of the lane; 0: no slot was rejected
	refusalHigh, refusalLow int64
	used                    int64 // number of calls that count in the current day
}

// all returns the slots of both lanes, in the order of the grants.
func (g grant) all() []int64 { return slices.Concat(g.high, g.low) }

func newBucket(t *testing.T, rdb redis.UniversalClient) bucket {
	key := "quota:{" + servicetest.Name("nexon") + "}:state"
	return bucket{t: t, rdb: rdb, key: key, lanes: nexonLanes, clock: time.Now}
}

func (b bucket) state() string {
	b.t.Helper()
	s, err := b.rdb.Get(b.t.Context(), b.key).Result()
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b bucket) setState(s string) {
	b.t.Helper()
	if err := b.rdb.Set(b.t.Context(), b.key, s, 0).Err(); err != nil {
		b.t.Fatal(err)
	}
}

func (b bucket) forget() {
	b.t.Helper()
	if err := b.rdb.Del(b.t.Context(), b.key).Err(); err != nil {
		b.t.Fatal(err)
	}
}

// digits encodes numbers for the script.
func digits(numbers ...int64) string {
	var out strings.Builder
	for _, n := range numbers {
		fmt.Fprintf(&out, "%16d", n)
	}
	return out.String()
}

// numbers decodes the output of digits.
func (b bucket) numbers(text string) []int64 {
	b.t.Helper()
	var all []int64
	for i := 0; i+16 <= len(text); i += 16 {
		n, err := strconv.ParseInt(strings.TrimSpace(text[i:i+16]), 10, 64)
		if err != nil {
			b.t.Fatalf("%q in the state: %v", text, err)
		}
		all = append(all, n)
	}
	return all
}

// quota returns the encoded quota.
func (b bucket) quota() string {
	policies := b.more
	if b.lanes != nil {
		policies = partitions(second, b.lanes) + policies
	}
	return fmt.Sprintf(`{"revision":%d,"stopped":%t,"horizon":%d,"quiet":%d,"policies":[%s]}`, b.revision, b.stopped == 1, horizon, quiet, strings.TrimSuffix(policies, ","))
}

// events encodes events for the script. An event is written as its name and its numbers.
func events(text string) string {
	if text == "" {
		return ""
	}
	var all [][]any
	for word := range strings.FieldsSeq(text) {
		if n, err := strconv.ParseInt(word, 10, 64); err == nil {
			all[len(all)-1] = append(all[len(all)-1], n)
		} else {
			all = append(all, []any{word})
		}
	}
	encoded, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

// midnights returns three midnights, encoded for the script: the midnight nearest to the caller's
// time, the midnight a day before it and the midnight a day after it.
func (b bucket) midnights() string {
	if b.zone == nil {
		return ""
	}
	nearest := b.clock().In(b.zone).Add(12 * time.Hour)
	year, month, day := nearest.Date()
	at := func(d int) int64 { return time.Date(year, month, d, 0, 0, 0, 0, b.zone).UnixMicro() }
	return fmt.Sprintf("[%d,%d,%d]", at(day-1), at(day), at(day+1))
}

func (b bucket) run(nHigh, nLow int, happened string) ([]int64, error) {
	b.t.Helper()
	args := []any{nHigh, nLow, b.quota(), b.midnights()}
	if happened != "" {
		args = append(args, events(happened))
	}
	return eval.Once(b.t.Context(), b.rdb, lua.LimiterAcquire, eval.Call{Key: b.key, Args: args}).Int64Slice()
}

// look runs the script only to read the limiter's state, and returns the script's reply.
func (b bucket) look() []int64 {
	b.t.Helper()
	call := eval.Call{Key: b.key, Args: []any{0, 0, "", b.midnights()}}
	shown, err := eval.Once(b.t.Context(), b.rdb, lua.LimiterAcquire, call).Int64Slice()
	if err != nil {
		b.t.Fatal(err)
	}
	return shown
}

// acquireAfter calls the script with events, which it applies first, and requests slots in the same
// call.
func (b bucket) acquireAfter(nHigh, nLow int, happened string) grant {
	b.t.Helper()
	reply, err := b.run(nHigh, nLow, happened)
	if err != nil {
		b.t.Fatal(err)
	}
	now := reply[2]
	g := grant{now: now, used: reply[3]}
	if end := len(reply) - 4; len(reply)%3 == 0 { // slots were rejected, so the reply ends with four more numbers: retry times and reasons
		g.backHigh, g.backLow, g.refusalHigh, g.refusalLow = reply[end], reply[end+1], reply[end+2], reply[end+3]
		reply = reply[:end]
	}
	n := int64(0)
	for i := 5; i < len(reply); i += 3 {
		for k := range reply[i] {
			slot := now + reply[i+1] + k*reply[i+2]
			if n++; n <= reply[0] {
				g.high = append(g.high, slot)
			} else {
				g.low = append(g.low, slot)
			}
		}
	}
	if len(g.high) != int(reply[0]) || len(g.low) != int(reply[1]) {
		b.t.Fatalf("reply %v does not add up", reply)
	}
	return g
}

func (b bucket) acquire(nHigh, nLow int) grant {
	b.t.Helper()
	return b.acquireAfter(nHigh, nLow, "")
}

// mostInWindow returns the maximum number of the sorted slots in any closed window of `window`
// µs.
func mostInWindow(slots []int64, window int64) int {
	most, from := 0, 0
	for to, at := range slots {
		for slots[from] < at-window {
			from++
		}
		most = max(most, to-from+1)
	}
	return most
}

// within returns the number of slots at or after `from` and before `to`.
func within(slots []int64, from, to int64) int {
	n := 0
	for _, s := range slots {
		if from <= s && s < to {
			n++
		}
	}
	return n
}

// simulated runs the test on an embedded Redis whose clock is set by the test.
func simulated(t *testing.T, test func(b bucket, clock *clock)) {
	t.Helper()
	rdb, m := servicetest.MiniRedis(t)
	c := &clock{m: m, now: time.UnixMicro(1_800_000_000_000_000)}
	c.advance(0)
	b := newBucket(t, rdb)
	b.clock = func() time.Time { return c.now }
	test(b, c)
}

type clock struct {
	m   *miniredis.Miniredis
	now time.Time
}

func (c *clock) advance(us int64) { c.set(c.now.Add(time.Duration(us) * time.Microsecond)) }

func (c *clock) set(t time.Time) {
	c.now = t
	c.m.SetTime(c.now)
}

func (c *clock) us() int64 { return c.now.UnixMicro() }

// These constants are the lines of the state, and the position at which its named numbers begin.
const (
	numbersLine, tatsLine, breakerLine, logsLine = 0, 1, 2, 5

	atReplid, atProcess, atNumbers = 2, 42, 56
)

var (
	stateTable = regexp.MustCompile(`(?s)local STATE = \{(.*?)\}`)
	quotedName = regexp.MustCompile(`'(\w+)'`)
)

// position returns the byte position of a named number of the state. The names are read from the
// script.
func (b bucket) position(name string) int {
	b.t.Helper()
	for i, m := range quotedName.FindAllStringSubmatch(stateTable.FindString(lua.LimiterAcquire.Source), -1) {
		if m[1] == name {
			return atNumbers + 16*i
		}
	}
	b.t.Fatalf("the state has no number %q", name)
	return 0
}

func (b bucket) number(name string) int64 {
	b.t.Helper()
	at := b.position(name)
	return b.numbers(b.state()[at : at+16])[0]
}

func (b bucket) setNumber(name string, value int64) {
	b.t.Helper()
	b.put(b.position(name), digits(value))
}

func (b bucket) put(at int, text string) {
	b.t.Helper()
	s := b.state()
	b.setState(s[:at] + text + s[at+len(text):])
}

// line returns a line of the state.
func (b bucket) line(n int) string {
	b.t.Helper()
	return strings.Split(b.state(), "\n")[n]
}

func (b bucket) setLine(n int, text string) {
	b.t.Helper()
	lines := strings.Split(b.state(), "\n")
	lines[n] = text
	b.setState(strings.Join(lines, "\n"))
}

// tats returns the TAT of each partition in the state.
func (b bucket) tats() []int64 { return b.numbers(b.line(tatsLine)) }

// windowLogs returns the slots of each sliding-window log in the state.
func (b bucket) windowLogs() [][]int64 {
	b.t.Helper()
	var all [][]int64
	for text := range strings.SplitSeq(b.line(logsLine), ",") {
		all = append(all, b.numbers(text))
	}
	return all
}

// failOver changes the replication ID in the state, as if another server had written it.
func (b bucket) failOver() {
	b.t.Helper()
	other := "f"
	if b.state()[atReplid] == 'f' {
		other = "e"
	}
	b.put(atReplid, strings.Repeat(other, atNumbers-atReplid))
}

// awake ends the quiet period by moving the times in the state into the past. Afterwards all calls
// of the partitions, the logs and the day are free.
func (b bucket) awake() {
	b.t.Helper()
	g := b.acquireAfter(0, 0, "used 0 0 0 0")
	past := g.now - 10*second
	b.setNumber("birth", past)
	b.setLine(tatsLine, strings.Repeat(digits(past), len(b.tats())))
	if logs := b.line(logsLine); logs != "" {
		b.setLine(logsLine, "-"+strings.Repeat(",-", strings.Count(logs, ",")))
	}
}

// process is a caller with waiters. It calls the script again at the time that the last reply
// named.
type process struct {
	high, low int   // number of waiters in each lane
	at        int64 // time at which the process next calls the script, by Redis' clock in µs
}

// play runs the processes until the clock has moved by duration µs. If `refill` is set, a new
// waiter replaces each served one.
func play(b bucket, c *clock, duration int64, refill bool, processes []process) (highSlots, lowSlots []int64, calls int) {
	end := c.us() + duration
	for {
		next := 0
		for i, p := range processes {
			if p.at < processes[next].at {
				next = i
			}
		}
		p := &processes[next]
		if p.at >= end {
			c.advance(end - c.us())
			return highSlots, lowSlots, calls
		}
		c.advance(max(0, p.at-c.us()))
		g := b.acquire(p.high, p.low)
		calls++
		highSlots, lowSlots = append(highSlots, g.high...), append(lowSlots, g.low...)
		back := max(g.backHigh, g.backLow)
		if g.backHigh > 0 && g.backLow > 0 {
			back = min(g.backHigh, g.backLow)
		}
		switch {
		case refill && back == 0 && len(g.low) > 0: // the next waiter arrives when the last slot has passed
			back = max(1, slices.Max(g.low)-g.now)
		case !refill:
			p.high, p.low = p.high-len(g.high), p.low-len(g.low)
		}
		if back == 0 {
			back = 1 << 50
		}
		p.at = g.now + back
	}
}

// saturate runs one process that always has waiters in both lanes, for duration µs.
func saturate(b bucket, c *clock, duration int64) (high, low []int64) {
	high, low, _ = play(b, c, duration, true, []process{{high: 500, low: 500, at: c.us()}})
	return high, low
}
