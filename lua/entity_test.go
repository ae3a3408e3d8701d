package lua_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/servicetest"
)

const (
	minute = 60_000
	hour   = 60 * minute
	dead   = 0 // a TTL of 0: the lock expires at once
)

// entity runs the scripts on one entity's hash, and fails the test on any error of Redis.
type entity struct {
	t   *testing.T
	rdb redis.UniversalClient
	key string
}

func newEntity(t *testing.T, rdb redis.UniversalClient) entity {
	return entity{t, rdb, "upd:{" + servicetest.Name("nexon") + "/character/a}"}
}

func (e entity) run(s lua.Script, args ...any) *redis.Cmd {
	e.t.Helper()
	cmd := eval.Once(e.t.Context(), e.rdb, s, eval.Call{Key: e.key, Args: args})
	if cmd.Err() != nil {
		e.t.Fatalf("%s: %v", s.Name, cmd.Err())
	}
	return cmd
}

type verdict struct {
	outcome string
	number  int64
	reason  string
	until   int64
}

// acquireArgs holds arguments of coalesce_acquire. A zero value means the default of these tests.
type acquireArgs struct {
	lane     string
	strict   bool
	floor    int64
	passes   bool
	cooldown int64
	life     int64 // TTL of the pending lock in ms; -1: it expires at once
}

func boolArg(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (e entity) acquire(w acquireArgs) verdict {
	e.t.Helper()
	if w.life == 0 {
		w.life = minute
	}
	reply := e.run(lua.CoalesceAcquire, w.lane, boolArg(w.strict), w.floor, boolArg(w.passes), w.cooldown, max(w.life, 0), hour)
	v, err := reply.Slice()
	if err != nil || len(v) != 4 {
		e.t.Fatalf("coalesce_acquire returned %v, %v", v, err)
	}
	return verdict{v[0].(string), v[1].(int64), v[2].(string), v[3].(int64)}
}

// mustAcquire runs coalesce_acquire and returns the request's number. The test fails unless the
// script returns the expected outcome.
func (e entity) mustAcquire(w acquireArgs, outcome string) int64 {
	e.t.Helper()
	v := e.acquire(w)
	if v.outcome != outcome {
		e.t.Fatalf("acquire %+v gave %+v, want %s", w, v, outcome)
	}
	return v.number
}

func (e entity) confirm(number int64, life int) bool {
	e.t.Helper()
	n, err := e.run(lua.CoalesceConfirm, number, life).Int()
	if err != nil {
		e.t.Fatal(err)
	}
	return n == 1
}

func (e entity) rollback(number int64) bool {
	e.t.Helper()
	n, err := e.run(lua.CoalesceRollback, number).Int()
	if err != nil {
		e.t.Fatal(err)
	}
	return n == 1
}

func (e entity) peek(version int64, lane string, stored int64) string {
	e.t.Helper()
	s, err := e.run(lua.RequestPeek, version, lane, stored).Text()
	if err != nil {
		e.t.Fatal(err)
	}
	return s
}

func (e entity) begin(version int64, lane string, stored int64) verdict {
	e.t.Helper()
	v, err := e.run(lua.RequestBegin, version, lane, stored, hour).Slice()
	if err != nil || len(v) != 2 {
		e.t.Fatalf("request_begin returned %v, %v", v, err)
	}
	return verdict{outcome: v[0].(string), number: v[1].(int64)}
}

func (e entity) mustBegin(version int64, lane string) int64 {
	e.t.Helper()
	v := e.begin(version, lane, 0)
	if v.outcome != "PROCEED" || v.number <= version {
		e.t.Fatalf("begin %d gave %+v, want PROCEED with a higher number", version, v)
	}
	return v.number
}

func (e entity) settle(number int64, satisfied bool, hold string, holdMs int) bool {
	e.t.Helper()
	return e.settleTelling("settled:"+e.key, fmt.Sprint(number), number, satisfied, hold, holdMs)
}

func (e entity) settleTelling(channel, message string, number int64, satisfied bool, hold string, holdMs int) bool {
	e.t.Helper()
	n, err := e.run(lua.RequestSettle, number, boolArg(satisfied), hold, holdMs, hour, channel, message).Int()
	if err != nil {
		e.t.Fatal(err)
	}
	return n == 1
}

// published runs coalesce_acquire and coalesce_confirm, and returns the request's number.
func (e entity) published(w acquireArgs) int64 {
	e.t.Helper()
	v := e.acquire(w)
	if v.outcome != "PUBLISHED" && v.outcome != "UPGRADED" {
		e.t.Fatalf("acquire %+v gave %+v", w, v)
	}
	if !e.confirm(v.number, minute) {
		e.t.Fatalf("number %d was not confirmed", v.number)
	}
	return v.number
}

func (e entity) field(name string) string {
	e.t.Helper()
	s, err := e.rdb.HGet(e.t.Context(), e.key, name).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		e.t.Fatal(err)
	}
	return s
}

// lifetime returns the hash's TTL in ms, or a negative number if the hash has no TTL.
func (e entity) lifetime() int64 {
	e.t.Helper()
	d, err := e.rdb.PTTL(e.t.Context(), e.key).Result()
	if err != nil {
		e.t.Fatal(err)
	}
	return d.Milliseconds()
}

func (e entity) set(fields map[string]string) {
	e.t.Helper()
	if len(fields) == 0 {
		return // Redis has no empty hashes, so there is nothing to write
	}
	if err := e.rdb.HSet(e.t.Context(), e.key, fields).Err(); err != nil {
		e.t.Fatal(err)
	}
}

func (e entity) forget() {
	e.t.Helper()
	if err := e.rdb.Del(e.t.Context(), e.key).Err(); err != nil {
		e.t.Fatal(err)
	}
}

// loseData deletes the hash, like a restart of Redis without its data. A restart takes time, so
// loseData waits until Redis' clock (in ms) is above `numbers`, the highest issued number.
func (e entity) loseData(numbers int64) {
	e.t.Helper()
	e.forget()
	for {
		now, err := e.rdb.Time(e.t.Context()).Result()
		if err != nil {
			e.t.Fatal(err)
		}
		if now.UnixMilli() > numbers {
			return
		}
	}
}

// eachRedis runs the test on every kind of Redis with a new entity.
func eachRedis(t *testing.T, test func(e entity)) {
	t.Helper()
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) { test(newEntity(t, rdb)) })
}

func TestScripts_DocumentArgumentsAndResults(t *testing.T) {
	for _, s := range []lua.Script{
		lua.CoalesceAcquire, lua.CoalesceConfirm, lua.CoalesceRollback,
		lua.RequestPeek, lua.RequestBegin, lua.RequestSettle, lua.LimiterAcquire, lua.ClientAdmit, lua.ClientRelease,
	} {
		if !strings.HasPrefix(s.Source, "-- "+s.Name+": ") {
			t.Errorf("%s does not begin with its name and purpose", s.Name)
		}
		head, body, _ := strings.Cut(s.Source, "\n\n")
		for _, word := range []string{"KEYS[1]", "ARGV[1]", "Returns ", "Atomic"} {
			if !strings.Contains(head, word) && !strings.Contains(s.Source[:strings.Index(s.Source, "\nlocal ")], word) {
				t.Errorf("the head of %s does not document %s", s.Name, word)
			}
		}
		// The scripts use only features that every Redis has, and only the key that they declare.
		for _, word := range []string{"struct.", "cmsgpack", "bit.", "#!", "redis.setresp", "KEYS[2]", "KEYS[1] ..", "KEYS[i]"} {
			if strings.HasPrefix(s.Name, "client_") && word == "KEYS[2]" {
				continue // client_admit can use KEYS[2]: it declares several keys of a client, and these share a hash tag
			}
			if strings.Contains(body, word) {
				t.Errorf("%s uses %s", s.Name, word)
			}
		}
	}
}

func TestEval_LoadsUnknownScripts(t *testing.T) {
	eachRedis(t, func(e entity) {
		s := lua.Script{Name: "test", Source: "return ARGV[1] .. '" + servicetest.Name("x") + "'"}
		s.SHA1 = redis.NewScript(s.Source).Hash()
		var calls []eval.Call
		for i := range 50 {
			calls = append(calls, eval.Call{Key: fmt.Sprintf("%s:%d", e.key, i), Args: []any{i}})
		}
		for round := range 2 {
			for i, r := range eval.Each(e.t.Context(), e.rdb, s, calls) {
				if got, err := r.Text(); err != nil || !strings.HasPrefix(got, fmt.Sprint(i)+"x-") {
					e.t.Fatalf("round %d, call %d: %q, %v", round, i, got, err)
				}
			}
		}
		if got, err := eval.Once(e.t.Context(), e.rdb, s, calls[7]).Text(); err != nil || !strings.HasPrefix(got, "7x-") {
			e.t.Fatalf("%q, %v", got, err)
		}
	})
}
