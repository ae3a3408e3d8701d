package lua_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The results of the model hold for the scripts only if the scripts behave like the model. This test
// makes random walks through the model and runs each step on the scripts too. After each step it
// compares the model's state with the fields lock, ver and done of the hash.
func TestModel_ScriptsAgree(t *testing.T) {
	eachRedis(t, func(e entity) {
		verdicts := map[string]int{}
		for seed := range uint64(80) {
			e.forget()
			m := model{rules: rules{noRows: seed&1 == 0}, most: mostOutstanding, forgets: uint8(seed >> 1 & 3)}
			w := walk{e: e, m: m, real: map[number]int64{}}
			w.run(rand.New(rand.NewPCG(seed, 2)), 100, verdicts)
		}
		e.t.Log(verdicts)
		for _, v := range []string{
			"PUBLISHED", "UPGRADED", "PENDING", "ALREADY_PROCESSING",
			"peek PROCEED", "peek SATISFIED", "peek SUPERSEDED", "begin PROCEED", "begin SATISFIED", "begin SUPERSEDED",
			"confirm true", "confirm false", "rollback true", "rollback false", "settle true", "settle false",
			"covered by a row", "failover", "failover, a lock of another server",
			"PUBLISHED beside a lock of another server", "SUPERSEDED by a lock of another server",
		} {
			if verdicts[v] == 0 {
				e.t.Errorf("no walk reached %s, so it was not compared", v)
			}
		}
	})
}

// elsewhere is the replication ID of another server.
const elsewhere = "0123456789abcdef"

type walk struct {
	e     entity
	m     model
	s     state
	real  map[number]int64 // maps a number of the model to the number that the scripts issued for it
	steps []string
	knew  map[string]string // the hash on a replica that lacks the last writes

	// cutOff disconnects a real replica, promote makes it the primary. If both are nil, a
	// failover is simulated: the test replaces the hash by the replica's version.
	cutOff, promote func()
}

func (w *walk) fatal(format string, args ...any) {
	w.e.t.Helper()
	w.e.t.Fatalf("%s after\n  %s", fmt.Sprintf(format, args...), strings.Join(w.steps, "\n  "))
}

func (w *walk) run(rng *rand.Rand, steps int, verdicts map[string]int) {
	all := w.m.steps()
	for len(w.steps) < steps {
		st := all[rng.IntN(len(all))]
		if st.unheard && rng.IntN(2) != 0 || slices.Contains(faults, st.kind) && rng.IntN(4) != 0 {
			continue // skip most faults, because they would leave too few other steps
		}
		if v, ok := w.take(st); ok {
			verdicts[v]++
		}
	}
}

var faults = []kind{outlive, loseHash, crash, rebalance, loseFormer, loseProducer, failPublish, failEarly, ackUnconfirmed}

// take performs a step in the model and on the scripts, if it is possible.
func (w *walk) take(st step) (verdict string, ok bool) {
	before := w.s
	r, ok := w.m.apply(&w.s, st)
	if !ok {
		w.s = before
		return "", false
	}
	w.steps = append(w.steps, fmt.Sprintf("%v: %s %d", st, r.verdict, r.n))
	if r.wrong != "" {
		w.fatal("%s", r.wrong)
	}
	if st.unheard {
		if w.cutOff != nil {
			w.cutOff()
		}
		w.knew = w.e.rdb.HGetAll(w.e.t.Context(), w.e.key).Val()
	}
	verdict = w.script(st, before, r)
	w.compare()
	return verdict, true
}

// script performs the step on the scripts and compares the results.
func (w *walk) script(st step, before state, r reply) string {
	e := w.e
	var got string
	var n int64
	switch st.kind {
	case enqueue, due:
		var floor int64
		if st.floor {
			floor = w.real[before.stored]
		}
		if st.kind == due {
			st.lane, st.strict = lowLane, true
		}
		v := e.acquire(acquireArgs{lane: st.lane.String(), strict: st.strict, floor: floor})
		got, n = v.outcome, v.number
		if got == "PUBLISHED" || got == "UPGRADED" {
			w.issued(r.n, n)
			if before.lock.foreign && before.lock.state != outlived && got == r.verdict {
				return got + " beside a lock of another server"
			}
		}
	case ack:
		n := before.air[st.i].n
		return w.same("confirm", e.confirm(w.real[n], minute), before.lock.n == n)
	case failPublish, failEarly:
		n := before.air[st.i].n
		return w.same("rollback", e.rollback(w.real[n]), before.lock.n == n && before.lock.state != confirmed)
	case settle:
		own, satisfied := before.work[st.i].own, before.work[st.i].at == written
		// In the model a confirmed lock that has expired does not exist. The script can still
		// find such a lock and delete it.
		return w.same("settle", e.settle(w.real[own], satisfied, "", 0) && before.lock.n != 0, before.lock.n != 0 && before.lock.n <= own)
	case outlive:
		e.set(map[string]string{"lock": w.pastItsLife(e.field("lock"))})
		if before.replica.lock.n == before.lock.n {
			w.knew["lock"] = w.pastItsLife(w.knew["lock"])
		}
		return ""
	case failover:
		if w.promote != nil {
			w.promote()
		} else {
			if before.replica.behind == 0 {
				w.knew = e.rdb.HGetAll(e.t.Context(), e.key).Val()
			}
			if w.knew["lock"] != "" {
				w.knew["server"] = elsewhere
			}
			e.loseData(w.last())
			e.set(w.knew)
		}
		if w.s.lock.n != 0 {
			return "failover, a lock of another server"
		}
		return "failover"
	case loseHash:
		e.loseData(w.last())
		return ""
	case peek:
		l := laneID(st.i)
		n := w.real[before.topic(l)[before.first(l)].n]
		got = e.peek(n, l.String(), w.real[before.stored])
		if got != r.verdict {
			w.fatal("the script peeked %s, the model %s", got, r.verdict)
		}
		if got == "PROCEED" && w.s.work[st.i].at == idle {
			e.settle(n, false, "", 0)
			return "covered by a row"
		}
		if before.lock.foreign && got == "SUPERSEDED" {
			return "SUPERSEDED by a lock of another server"
		}
		return "peek " + got
	case begin:
		at := before.work[st.i]
		v := e.begin(w.real[at.n], at.lane.String(), w.real[at.read])
		if v.outcome != r.verdict {
			w.fatal("the script began with %s, the model with %s", v.outcome, r.verdict)
		}
		if v.outcome == "PROCEED" {
			w.issued(r.n, v.number)
		}
		return "begin " + v.outcome
	default: // steps without a call to Redis
		return ""
	}
	if got != r.verdict || n != w.real[r.n] {
		w.fatal("the script said %s %d, the model %s %d", got, n, r.verdict, w.real[r.n])
	}
	return got
}

// last returns the highest number that the scripts have issued in this walk.
func (w *walk) last() (n int64) {
	for _, given := range w.real {
		n = max(n, given)
	}
	return n
}

func (w *walk) pastItsLife(lock string) string {
	f := strings.Fields(lock)
	if len(f) != 4 {
		w.fatal("the lock is %q", lock)
	}
	return f[0] + " " + f[1] + " 1 " + f[3]
}

func (w *walk) same(what string, script, model bool) string {
	if script != model {
		w.fatal("%s: the script said %v, the model %v", what, script, model)
	}
	return fmt.Sprint(what, " ", script)
}

// issued records that the scripts issued the number `script` where the model issued `model`. It
// checks that `script` is above all numbers that the scripts issued earlier.
func (w *walk) issued(model number, script int64) {
	for _, n := range w.real {
		if script <= n {
			w.fatal("number %d is not above %d", script, n)
		}
	}
	w.real[model] = script
}

// compare checks that the fields of the hash match the model's state.
func (w *walk) compare() {
	e, l := w.e, w.s.lock
	if w.promote == nil && l.n != 0 && l.foreign != (e.field("server") == elsewhere) {
		w.fatal("the lock is of %q, in the model of another server: %v", e.field("server"), l.foreign)
	}
	for name, want := range map[string]number{"ver": w.s.ver, "done": w.s.done} {
		got, _ := strconv.ParseInt(e.field(name), 10, 64) // a missing field counts as 0
		if got != w.real[want] {
			w.fatal("%s is %d, in the model %d", name, got, w.real[want])
		}
	}
	f := strings.Fields(e.field("lock"))
	if len(f) == 4 && f[2] == "1" && f[3] == "CONFIRMED" {
		f = nil // the lock has expired, so it counts as missing
	}
	var want []string
	if l.n != 0 {
		want = []string{l.lane.String(), fmt.Sprint(w.real[l.n]), "", "PENDING"}
		if l.state == confirmed {
			want[3] = "CONFIRMED"
		}
	}
	same := len(f) == len(want)
	if same && len(f) == 4 {
		same = f[0] == want[0] && f[1] == want[1] && f[3] == want[3] && (f[2] == "1") == (l.state == outlived)
	}
	if !same {
		w.fatal("the lock is %q, in the model %q (state %d)", f, want, l.state)
	}
}
