package limiter

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func (q *queue) pushOf(client string) *Permit {
	p := &Permit{client: client}
	q.push(p)
	return p
}

func TestQueue_ServesClientsInTurn(t *testing.T) {
	q := &queue{}
	for range 500 {
		q.pushOf("flood")
	}
	for range 10 {
		q.serve()
	}
	for i := range 20 {
		q.pushOf(fmt.Sprint("reader", i))
	}
	for i := range 21 {
		if p := q.serve(); (p.client == "flood") != (i == 0) {
			t.Fatalf("served %s as number %d, want one flood call and then all readers", p.client, i)
		}
	}
	if p := q.serve(); p.client != "flood" || q.length != 488 {
		t.Errorf("served %s with %d left", p.client, q.length)
	}
}

func TestQueue_KeepsTheOrderOfOneClient(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 29))
		q := &queue{}
		var waiting []*Permit
		order := map[*Permit]int{}
		lastServed := map[string]int{}
		for step := range 400 {
			switch rng.IntN(5) {
			case 0, 1, 2:
				p := &Permit{client: string(rune('a' + rng.IntN(4))), retry: rng.IntN(6) == 0}
				order[p] = step
				q.push(p)
				waiting = append(waiting, p)
			case 3:
				if q.length == 0 {
					continue
				}
				p := q.serve()
				kind := fmt.Sprint(p.client, p.retry)
				if order[p] < lastServed[kind] {
					t.Fatalf("seed %d, step %d: a call of %s was served behind a later one", seed, step, kind)
				}
				lastServed[kind] = order[p]
				waiting = remove(waiting, p)
			default: // one waiter gives up its wait
				if len(waiting) > 0 {
					p := waiting[rng.IntN(len(waiting))]
					q.remove(p)
					waiting = remove(waiting, p)
				}
			}
			n := 0
			for p := q.fresh.first; p != nil; p = p.after {
				if p.after != nil && p.after.turn < p.turn {
					t.Fatalf("seed %d, step %d: the list is not sorted by turn", seed, step)
				}
				n++
			}
			for p := q.retries.first; p != nil; p = p.after {
				n++
			}
			if n != len(waiting) || q.length != n {
				t.Fatalf("seed %d, step %d: %d in the lists, %d counted, want %d", seed, step, n, q.length, len(waiting))
			}
		}
	}
}

func remove(all []*Permit, p *Permit) []*Permit {
	for i := range all {
		if all[i] == p {
			return append(all[:i:i], all[i+1:]...)
		}
	}
	return all
}

func TestQueue_LetsALapsedCallGoFirst(t *testing.T) {
	q := &queue{}
	q.pushOf("a")
	q.pushOf("b")
	q.serve()
	lapsed := &Permit{client: "a"}
	q.pushFront(lapsed)
	q.pushOf("c")
	if got := q.serve(); got != lapsed {
		t.Errorf("served %s, want the call whose permit expired", got.client)
	}
}

func TestQueue_ForgetsClientsThatDoNotWait(t *testing.T) {
	q := &queue{}
	for i := range 1000 {
		q.pushOf(fmt.Sprint(i))
		q.serve()
	}
	if n := len(q.fresh.fair.last); n > 1 {
		t.Errorf("remembers %d clients, want the last", n)
	}
	q.pushOf("never served")
	for i := range 3 * maxFairClients {
		q.pushOf(fmt.Sprint(i))
		q.serve()
	}
	if n := len(q.fresh.fair.last); n > maxFairClients {
		t.Errorf("remembers %d clients while one waits, want %d at most", n, maxFairClients)
	}
}

func BenchmarkQueue_OfOneClient(b *testing.B) {
	q := &queue{}
	for range 500 {
		q.pushOf("")
	}
	p := &Permit{}
	b.ReportAllocs()
	for b.Loop() {
		q.push(p)
		p = q.serve()
	}
}
