package dlq

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// TestRun_StopsDuringAReplay when that ends: it stops between two groups of
// requests, nothing of it is in doubt, and another process goes on at once.
func TestRun_StopsDuringAReplay(t *testing.T) {
	inBubble(t, func(w *rig) {
		w.deadLetterMany(maxChunk)
		p := w.process()
		groups := 0
		p.enqueueFunc = func(_ context.Context, all []ReplayRequest) []error {
			for _, a := range all {
				w.put(a, time.Now())
			}
			if groups++; groups == 2 {
				p.stop()
			}
			<-time.After(3 * time.Second)
			return make([]error, len(all))
		}
		j := p.start(JobSpec{})
		began := time.Now()
		<-p.run().ended
		if took := time.Since(began); took > 7*time.Second {
			t.Errorf("the process ended after %v", took)
		}
		if is := w.job(j.ID); is.Done != 2*enqueueBatch || !is.ChunkStartedAt.IsZero() || is.LeaseUntil.After(time.Now()) {
			t.Errorf("%+v", is)
		}
		began = time.Now()
		w.process().run()
		w.wantCounts(w.waitUntilDone(j.ID), maxChunk, nil)
		w.wantEachEnqueuedOnce(maxChunk)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the other went on after %v", took)
		}
	})
}

// TestRun_StopsWhileEnqueueHangs for longer than is documented, and what was being
// asked for is looked for by whoever goes on.
func TestRun_StopsWhileEnqueueHangs(t *testing.T) {
	inBubble(t, func(w *rig) {
		w.deadLetterMany(maxChunk)
		p := w.process()
		p.enqueueFunc = func(ctx context.Context, all []ReplayRequest) []error {
			for _, a := range all[:len(all)/2] {
				w.put(a, time.Now())
			}
			p.stop()
			<-ctx.Done()
			return slices.Repeat([]error{errors.New("whether Kafka has it is not known")}, len(all))
		}
		j := p.start(JobSpec{})
		began := time.Now()
		<-p.run().ended
		if took := time.Since(began); took > shutdownGrace+time.Second {
			t.Errorf("the process ended after %v", took)
		}
		w.process().run()
		w.wantCounts(w.waitUntilDone(j.ID), maxChunk, nil)
		w.wantEachEnqueuedOnce(maxChunk)
	})
}
