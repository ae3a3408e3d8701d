package dlq

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// TestRun_StopsDuringAReplay: Run returns after the current batch, leaves no chunk in flight, and
// another process continues the job at once.
func TestRun_StopsDuringAReplay(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(maxChunk)
		p := g.process()
		groups := 0
		p.enqueueFunc = func(_ context.Context, all []ReplayRequest) []error {
			for _, a := range all {
				g.put(a, time.Now())
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
			t.Errorf("Run returned after %v", took)
		}
		if stored := g.job(j.ID); stored.Done != 2*enqueueBatch || !stored.ChunkStartedAt.IsZero() || stored.Lease.Until.After(time.Now()) {
			t.Errorf("job: got %+v", stored)
		}
		began = time.Now()
		g.process().run()
		g.wantCounts(g.waitUntilDone(j.ID), maxChunk, nil)
		g.wantEachEnqueuedOnce(maxChunk)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the other process continued after %v", took)
		}
	})
}

// TestRun_StopsWhileEnqueueHangs: Run returns within shutdownGrace although Enqueue does not
// return, and the next process reconciles the chunk.
func TestRun_StopsWhileEnqueueHangs(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(maxChunk)
		p := g.process()
		p.enqueueFunc = func(ctx context.Context, all []ReplayRequest) []error {
			for _, a := range all[:len(all)/2] {
				g.put(a, time.Now())
			}
			p.stop()
			<-ctx.Done()
			return slices.Repeat([]error{errors.New("whether Kafka has it is not known")}, len(all))
		}
		j := p.start(JobSpec{})
		began := time.Now()
		<-p.run().ended
		if took := time.Since(began); took > shutdownGrace+time.Second {
			t.Errorf("Run returned after %v", took)
		}
		g.process().run()
		g.wantCounts(g.waitUntilDone(j.ID), maxChunk, nil)
		g.wantEachEnqueuedOnce(maxChunk)
	})
}
