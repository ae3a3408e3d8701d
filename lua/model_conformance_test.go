package lua_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// What the search shows of the model holds for the scripts only as long as both
// do the same: random walks through the model are walked on the scripts as well,
// and lock, ver and done compared after each step.
func TestTheScriptsDoAsTheModelDoes(t *testing.T) {
	eachRedis(t, func(e entity) {
		verdicts := map[string]int{}
		for seed := range uint64(60) {
			e.forget()
			w := walk{e, model{rules: rules{noRows: true}, most: mostOutstanding}, state{}, map[number]int64{}, nil}
			w.run(rand.New(rand.NewPCG(seed, 2)), 100, verdicts)
		}
		e.t.Log(verdicts)
		for _, v := range []string{
			"PUBLISHED", "UPGRADED", "PENDING", "ALREADY_PROCESSING",
			"peek PROCEED", "peek SATISFIED", "peek SUPERSEDED", "begin PROCEED", "begin SATISFIED", "begin SUPERSEDED",
			"confirm true", "confirm false", "rollback true", "rollback false", "settle true", "settle false",
		} {
			if verdicts[v] == 0 {
				e.t.Errorf("no walk came to %s, so nothing was compared there", v)
			}
		}
	})
}

type walk struct {
	e     entity
	m     model
	s     state
	real  map[number]int64 // the scripts' number for each of the model's
	steps []string
}

func (w *walk) fatal(format string, args ...any) {
	w.e.t.Helper()
	w.e.t.Fatalf("%s after\n  %s", fmt.Sprintf(format, args...), strings.Join(w.steps, "\n  "))
}

func (w *walk) run(rng *rand.Rand, steps int, verdicts map[string]int) {
	for len(w.steps) < steps {
		st := every[rng.IntN(len(every))]
		switch st.kind {
		case outlive, loseHash, crash, rebalance, loseFormer, loseProducer, failPublish:
			if rng.IntN(4) != 0 {
				continue // else little else happens
			}
		default:
		}
		before := w.s
		r, ok := w.m.apply(&w.s, st)
		if !ok {
			w.s = before
			continue
		}
		w.steps = append(w.steps, fmt.Sprintf("%v: %s %d", st, r.verdict, r.n))
		if r.wrong != "" {
			w.fatal("%s", r.wrong)
		}
		verdicts[w.script(st, before, r)]++
		w.compare()
	}
}

// script does on the scripts what the step did in the model, and compares their
// answers.
func (w *walk) script(st step, before state, r reply) string {
	e := w.e
	var got string
	var n int64
	switch st.kind {
	case ask:
		var floor int64
		if st.floor {
			floor = w.real[before.stored]
		}
		v := e.acquire(wish{lane: st.lane.String(), strict: st.strict, floor: floor})
		got, n = v.outcome, v.number
		if got == "PUBLISHED" || got == "UPGRADED" {
			w.issued(r.n, n)
		}
	case ack:
		n := before.air[st.i].n
		return w.same("confirm", e.confirm(w.real[n], minute), before.lock.n == n)
	case failPublish:
		n := before.air[st.i].n
		return w.same("rollback", e.rollback(w.real[n]), before.lock.n == n && before.lock.state != confirmed)
	case settle:
		own := before.work[st.i].own
		// A confirmed lock past its life is none in the model; the script may still
		// find and delete it.
		return w.same("settle", e.settle(w.real[own], true, "", 0) && before.lock.n != 0, before.lock.n != 0 && before.lock.n <= own)
	case outlive:
		f := strings.Fields(e.field("lock"))
		if len(f) != 4 {
			w.fatal("the lock is %q", f)
		}
		if err := e.rdb.HSet(e.t.Context(), e.key, "lock", f[0]+" "+f[1]+" 1 "+f[3]).Err(); err != nil {
			w.fatal("%v", err)
		}
		return ""
	case loseHash:
		var last int64
		for _, n := range w.real {
			last = max(last, n)
		}
		e.loseData(last)
		return ""
	case peek:
		l := laneID(st.i)
		got = e.peek(w.real[before.topic(l)[before.first(l)].n], l.String(), w.real[before.stored])
		if got != r.verdict {
			w.fatal("the script peeked %s, the model %s", got, r.verdict)
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
	default: // nothing that Redis hears of
		return ""
	}
	if got != r.verdict || n != w.real[r.n] {
		w.fatal("the script said %s %d, the model %s %d", got, n, r.verdict, w.real[r.n])
	}
	return got
}

func (w *walk) same(what string, script, model bool) string {
	if script != model {
		w.fatal("%s: the script said %v, the model %v", what, script, model)
	}
	return fmt.Sprint(what, " ", script)
}

// issued notes a number that the script gave, which must be above all before.
func (w *walk) issued(model number, script int64) {
	for _, n := range w.real {
		if script <= n {
			w.fatal("number %d is not above %d", script, n)
		}
	}
	w.real[model] = script
}

// compare looks at what the scripts have written down.
func (w *walk) compare() {
	e, l := w.e, w.s.lock
	for name, want := range map[string]number{"ver": w.s.ver, "done": w.s.done} {
		got, _ := strconv.ParseInt(e.field(name), 10, 64) // absent is 0
		if got != w.real[want] {
			w.fatal("%s is %d, in the model %d", name, got, w.real[want])
		}
	}
	f := strings.Fields(e.field("lock"))
	if len(f) == 4 && f[2] == "1" && f[3] == "CONFIRMED" {
		f = nil // past its life
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
