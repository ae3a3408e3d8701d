package limiter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// ringRig asks the script for slots of one exact ring.
type ringRig struct {
	*testing.T
	redis   *miniredis.Miniredis
	run     asker
	limiter *Limiter
	line    *queue
	ring    *bucket
	reach   time.Duration
	calls   int
}

func newRingRig(t *testing.T, units int) *ringRig {
	_, m := servicetest.MiniRedis(t)
	r := &ringRig{T: t, redis: m, run: script("s", patiently(t, m.Addr()))}
	config := scopedConfig(Policy{Name: "ring", Limit: units, Window: Window(time.Second), Scope: "all"})
	var err error
	if r.limiter, err = newLimiter("s", config, r.run, quietly(Needs{})); err != nil {
		t.Fatal(err)
	}
	r.line = r.limiter.line(schemas.High, Call{Endpoint: "f/d", Key: "k"})
	for _, c := range r.line.class.ways[0].charges {
		if s := r.limiter.quota.scoped[c.section]; s.kind == ringKind {
			r.ring, r.reach = c.bucket, time.Duration(s.numbers[0])*time.Microsecond
		}
	}
	return r
}

// ask gives these slots back, and asks for n. Slots are moments in us.
func (r *ringRig) ask(at time.Time, n int, back ...int64) (slots []int64) {
	r.Helper()
	r.calls++
	d := demand{terms: r.limiter.terms, tickets: fmt.Sprint(r.calls, "-"), process: "p", classes: []classDemand{{r.line, n}}}
	for _, slot := range back {
		d.buckets = append(d.buckets, happening{r.ring, 'w', fmt.Sprintf("%d 1", slot)})
	}
	r.redis.SetTime(at)
	g, err := r.run(r.Context(), d)
	if err != nil {
		r.Fatal(err)
	}
	for _, s := range g.classes[0].slots {
		slots = append(slots, g.now+s.wait)
	}
	return slots
}

// For a slot that is yet to come the ring forgot one that is in its reach until then. That
// another was given back in between, whose call was free, must not hide it.
func TestASlotGivenBackBeforeItsTimeBringsBackWhatWasForgottenForIt(t *testing.T) {
	r := newRingRig(t, 2)
	at := time.UnixMilli(1_700_000_000_000)
	r.ask(at, 1)
	at = at.Add(time.Minute)
	first := r.ask(at, 2)
	at = at.Add(r.reach - 50*ms)
	ahead := r.ask(at, 1)
	if len(first) != 2 || len(ahead) != 1 || ahead[0] <= at.UnixMicro() {
		t.Fatalf("slots %v and then %v, at %d", first, ahead, at.UnixMicro())
	}
	if again := r.ask(at.Add(ms), 2, first[0], ahead[0]); len(again) != 2 || again[1] < ahead[0] {
		t.Errorf("slots %v where one of %v is charged and the reach is %v", again, first, r.reach)
	}
}

// An exact ring holds in every window, whatever is given back of it and in whatever order:
// what turned out to be free, and slots of which nothing was sent, before they had come and
// after.
func TestARingHoldsWhateverIsGivenBack(t *testing.T) {
	const units = 5
	r := newRingRig(t, units)
	for seed := range uint64(10) {
		r.redis.FlushAll()
		chance := rand.New(rand.NewPCG(seed, 11))
		at := time.UnixMilli(1_700_000_000_000)
		var slots []int64 // of what counts upstream
		for range 500 {
			at = at.Add(time.Duration(chance.IntN(1+chance.IntN(200))) * ms)
			var back []int64
			for range max(0, chance.IntN(12)-8) { // of the last ones, some of which are yet to come
				if i := len(slots) - 1 - chance.IntN(units); i >= 0 && slots[i] > at.Add(-r.reach).UnixMicro() {
					back = append(back, slots[i])
					slots = slices.Delete(slots, i, i+1)
				}
			}
			slots = append(slots, r.ask(at, 1+chance.IntN(units), back...)...)
			slices.Sort(slots)
		}
		times := make([]time.Time, len(slots))
		for i, s := range slots {
			times[i] = time.UnixMicro(s)
		}
		if most := mostWithin(times, r.reach-time.Microsecond); most > units || len(slots) < 20 {
			t.Errorf("seed %d: %d slots, %d within its reach", seed, len(slots), most)
		}
	}
}
