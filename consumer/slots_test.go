package consumer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
)

func taskOfClient(client string, offset int) *task {
	t := &task{client: client}
	t.request.Key = fmt.Sprint(client, offset)
	return t
}

// nextTask assigns a slot to the next task and returns the task, or nil if no slot is free or no
// task waits.
func nextTask(q *slotQueue) *task {
	one, _ := q.next()
	return one.task
}

func TestSlotQueue_ServesClientWithFewestSlots(t *testing.T) {
	q := newSlotQueue(4)
	for i := range 10 {
		q.add(taskOfClient("flood", i), nil)
	}
	for i := range 3 {
		if got := nextTask(q); got.request.Key != fmt.Sprint("flood", i) {
			t.Fatalf("got %s, want the records of one client in their order", got.request.Key)
		}
	}
	q.add(taskOfClient("a", 0), nil)
	q.add(taskOfClient("b", 0), nil)
	if got := nextTask(q); got.client != "a" {
		t.Fatalf("got %s, want a: it has no slot and was read before b", got.request.Key)
	}
	if got := nextTask(q); got != nil {
		t.Fatalf("task without a free slot: got %s, want none", got.request.Key)
	}
	q.release("flood")
	if got := nextTask(q); got.client != "b" {
		t.Errorf("got %s, want b", got.request.Key)
	}
	q.release("a")
	if got := nextTask(q); got.request.Key != "flood3" {
		t.Errorf("got %s, want flood3: no other client waits", got.request.Key)
	}
}

// Records come in any order. No slot may be lost, and no record may be lost or granted twice. The
// records of a client must keep their order. A slot must not go to a client while another waiting
// client has fewer slots.
func TestSlotQueue_LosesNothing(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 23))
		slots := 1 + rng.IntN(8)
		q := newSlotQueue(slots)
		added, given := map[string]int{}, map[string]int{}
		var held []string
		for range 500 {
			switch rng.IntN(3) {
			case 0:
				client := string(rune('a' + rng.IntN(5)))
				q.add(taskOfClient(client, added[client]), nil)
				added[client]++
			case 1:
				least := slots + 1
				for client := range added {
					if added[client] > given[client] {
						least = min(least, q.held[client])
					}
				}
				got := nextTask(q)
				if (got == nil) != (len(held) == slots || least > slots) {
					t.Fatalf("seed %d: got %v with %d of %d slots held, want a task only if a client may have one more",
						seed, got, len(held), slots)
				}
				if got == nil {
					continue
				}
				if want := fmt.Sprint(got.client, given[got.client]); got.request.Key != want || q.held[got.client]-1 != least {
					t.Fatalf("seed %d: got %s of a client with %d slots, want %s, and of one with %d", seed, got.request.Key, q.held[got.client]-1, want, least)
				}
				given[got.client]++
				held = append(held, got.client)
			default:
				if len(held) > 0 {
					i := rng.IntN(len(held))
					q.release(held[i])
					held = append(held[:i], held[i+1:]...)
				}
			}
		}
		for _, client := range held {
			q.release(client)
		}
		if q.free != slots || len(q.held) != 0 {
			t.Errorf("seed %d: free slots: got %d and %v held, want %d and none", seed, q.free, q.held, slots)
		}
	}
}

func TestMemoryBudget_ServesClientsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBudget(10)
		if err := b.acquire(t.Context(), "", 10); err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 10)
		for _, client := range []string{"flood", "flood", "flood", "flood", "a", "b", "a"} {
			go func() {
				if err := b.acquire(t.Context(), client, 10); err == nil {
					order <- client
				}
			}()
			synctest.Wait()
		}
		for i, want := range []string{"flood", "a", "b", "flood", "a", "flood", "flood"} {
			b.resize(10, 0)
			synctest.Wait()
			if got := <-order; got != want {
				t.Errorf("admitted: got %s as number %d, want %s", got, i, want)
			}
		}
	})
}

func TestEnds_AreBounded(t *testing.T) {
	d := newEnds(nil, nil, nil)
	for i := range maxReleases + 5 {
		d.add(taskOfClient("a", i))
	}
	d.add(taskOfClient("", 1))
	first := d.requests.take()
	if len(first) != maxReleases {
		t.Fatalf("kept: got %d, want %d", len(first), maxReleases)
	}
	d.add(taskOfClient("a", 1))
	d.requests.putBack(first)
	if got := len(d.requests.take()); got != maxReleases {
		t.Errorf("kept after they were given back: got %d, want %d", got, maxReleases)
	}
	(*ends)(nil).add(taskOfClient("a", 1)) // a task without a record has no queues (nil), and add must accept nil
}

func TestSlotQueue_PreemptsForClientsWithFewerSlots(t *testing.T) {
	q := newSlotQueue(8)
	for i := range 8 {
		q.add(taskOfClient("flood", i), nil)
		q.next()
	}
	if q.preempt("flood", 0) {
		t.Error("no record waits: got a preemption, want none")
	}
	q.add(taskOfClient("flood", 8), nil)
	if q.preempt("flood", 0) {
		t.Error("only a record of the same client waits: got a preemption, want none")
	}
	q.add(taskOfClient("a", 0), nil)
	if !q.preempt("flood", 0) {
		t.Error("a record of another client waits: got no preemption, want one")
	}
	if q.preempt("flood", 0) {
		t.Error("one record waits and one was preempted: got another preemption, want none")
	}
	q.release("flood")
	q.preempted()
	if got := nextTask(q); got.client != "a" {
		t.Errorf("the free slot: got %s, want a", got.client)
	}
	if q.add(taskOfClient("flood", 9), nil); q.preempt("a", 0) {
		t.Error("a client with fewer slots: got a preemption, want none")
	}
	if !q.preempt("flood", 1) {
		t.Error("a record of another client waits for memory: got no preemption, want one")
	}
}
