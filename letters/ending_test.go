package letters

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// TestAReplayUnderWayDoesNotHoldUpItsProcess when that ends: it stops between two groups of
// requests, nothing of it is in doubt, and another process goes on at once.
func TestAReplayUnderWayDoesNotHoldUpItsProcess(t *testing.T) {
	inBubble(t, func(w *world) {
		w.buryMany(chunkMost)
		p := w.process()
		groups := 0
		p.enqueuer = func(_ context.Context, all []ReplayRequest) []error {
			for _, a := range all {
				w.put(a, time.Now())
			}
			if groups++; groups == 2 {
				p.stop()
			}
			<-time.After(3 * time.Second)
			return make([]error, len(all))
		}
		j := p.start(Order{})
		began := time.Now()
		<-p.run().ended
		if took := time.Since(began); took > 7*time.Second {
			t.Errorf("the process ended after %v", took)
		}
		if is := w.job(j.ID); is.Done != 2*askedAtOnce || !is.ChunkAt.IsZero() || is.Lease.After(time.Now()) {
			t.Errorf("%+v", is)
		}
		began = time.Now()
		w.process().run()
		w.counted(w.ended(j.ID), chunkMost, nil)
		w.eachOnce(chunkMost)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the other went on after %v", took)
		}
	})
}

// TestADoorThatHangsDoesNotHoldUpAProcess for longer than is documented, and what was being
// asked for is looked for by whoever goes on.
func TestADoorThatHangsDoesNotHoldUpAProcess(t *testing.T) {
	inBubble(t, func(w *world) {
		w.buryMany(chunkMost)
		p := w.process()
		p.enqueuer = func(ctx context.Context, all []ReplayRequest) []error {
			for _, a := range all[:len(all)/2] {
				w.put(a, time.Now())
			}
			p.stop()
			<-ctx.Done()
			return slices.Repeat([]error{errors.New("whether Kafka has it is not known")}, len(all))
		}
		j := p.start(Order{})
		began := time.Now()
		<-p.run().ended
		if took := time.Since(began); took > endsWithin+time.Second {
			t.Errorf("the process ended after %v", took)
		}
		w.process().run()
		w.counted(w.ended(j.ID), chunkMost, nil)
		w.eachOnce(chunkMost)
	})
}
