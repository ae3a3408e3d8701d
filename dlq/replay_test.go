package dlq

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

func TestReplay_EnqueuesOrRefusesEach(t *testing.T) {
	inBubble(t, func(g *rig) {
		replayed := func(n int) func(*deadletters.DeadLetter, *ReadResult) {
			return func(_ *deadletters.DeadLetter, r *ReadResult) {
				r.DeadLetter.Headers = schemas.ReplayMark{ID: "another", Count: n, Of: "7:7"}.Headers()
			}
		}
		record := func(of schemas.Entity, params map[string]string) func(*deadletters.DeadLetter, *ReadResult) {
			return func(_ *deadletters.DeadLetter, r *ReadResult) { r.DeadLetter.Value = g.value(of, params) }
		}
		const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		entity := schemas.Entity{Source: theSource, Facet: "character", Key: "k"}
		bad, foreign, unknown := entity, entity, entity
		bad.Key, foreign.Source, unknown.Source = "bad", "other", "nobody"
		g.deadLetter(idOf(0, 1), func(_ *deadletters.DeadLetter, r *ReadResult) {
			r.DeadLetter.Headers = []schemas.Header{{Key: schemas.TraceParent, Value: []byte(trace)}}
		})
		g.deadLetter(idOf(0, 2), func(l *deadletters.DeadLetter, r *ReadResult) {
			replayed(schemas.MaxReplays-1)(l, r)
			r.DeadLetter.Headers = append(r.DeadLetter.Headers, schemas.Header{Key: schemas.TraceParent, Value: []byte(strings.Repeat("x", 99))})
		})
		g.deadLetter(idOf(0, 3), replayed(schemas.MaxReplays))
		g.deadLetter(idOf(0, 4), func(_ *deadletters.DeadLetter, r *ReadResult) { r.Err = errors.New("no dead letter") })
		g.deadLetter(idOf(0, 5), func(_ *deadletters.DeadLetter, r *ReadResult) { r.DeadLetter.Value = []byte("{") })
		// This dead letter has only a part of its request, so it must be refused as UNDECODABLE.
		g.deadLetter(idOf(1, 6), func(_ *deadletters.DeadLetter, r *ReadResult) { r.DeadLetter.ValueBytes = 1 << 20 })
		g.deadLetter(idOf(1, 7), record(bad, nil))
		g.deadLetter(idOf(1, 8), record(foreign, nil))
		g.deadLetter(idOf(1, 9), record(unknown, nil))
		g.deadLetter(idOf(2, 10))
		delete(g.records, idOf(2, 10))
		// The request of this dead letter is larger than workers accept, so it must be refused.
		g.deadLetter(idOf(2, 11), func(_ *deadletters.DeadLetter, r *ReadResult) {
			text := string(g.value(entity, map[string]string{"a": strings.Repeat("x", schemas.MaxRequestBytes/2)}))
			r.DeadLetter.Value = []byte(strings.Replace(text, `"a":"`, `"a":"`+strings.Repeat("y", schemas.MaxRequestBytes), 1))
		})
		<-time.After(time.Minute)
		p := g.process().run()
		j := g.waitUntilDone(p.start(JobSpec{Lane: schemas.High}).ID)
		g.wantCounts(j, 2, map[string]int64{RefusedLimit: 1, RefusedUndecodable: 4, RefusedInvalid: 3, RefusedGone: 1})
		g.wantEachEnqueuedOnce(2)
		for _, r := range g.requests {
			want := schemas.ReplayMark{ID: j.ID, Count: 1, Of: r.Mark.Of}
			if r.Mark.Of == "0:2" {
				want.Count = schemas.MaxReplays
			}
			if r.Mark != want || r.Lane != schemas.High || r.TraceParent != map[string]string{"0:1": trace}[r.Mark.Of] || !strings.HasPrefix(r.Request.CorrelationID, "c-") {
				t.Errorf("request: got %+v", r)
			}
		}
		if j.Total != 11 { // j.Total also counts the dead letter that was already replayed MaxReplays times
			t.Errorf("total: got %d, want 11", j.Total)
		}
		again := g.waitUntilDone(p.start(JobSpec{}).ID)
		g.wantCounts(again, 0, j.Refused)
		g.wantEachEnqueuedOnce(2)
	})
}

func TestReplay_HonoursMax(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetter(idOf(0, 5000), func(_ *deadletters.DeadLetter, r *ReadResult) { r.Err = errors.New("no dead letter") })
		g.deadLetterMany(1200)
		p := g.process().run()
		j := g.waitUntilDone(p.start(JobSpec{Max: 700}).ID)
		g.wantCounts(j, 700, map[string]int64{})
		g.wantEachEnqueuedOnce(700)
		if j.Total != 700 {
			t.Errorf("total: got %d, want 700", j.Total)
		}
		if j = g.waitUntilDone(p.start(JobSpec{Kind: deadletters.PurgeJob, Max: 100}).ID); j.Done != 100 || j.Total != 100 {
			t.Errorf("purged %d of %d, want 100", j.Done, j.Total)
		}
	})
}

func TestReplay_HonoursRate(t *testing.T) {
	for name, test := range map[string]struct {
		rate  float64
		count int64
		max   int // the highest number of requests that the job may enqueue within max(1 s, 1/rate) - 1 ms
	}{
		"fifty a second": {50, 400, 50}, "one in two seconds": {0.5, 20, 1}, "a part of one": {1.5, 20, 2}, "thousands": {700, 1100, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(g *rig) {
				g.deadLetterMany(test.count)
				began := time.Now()
				j := g.waitUntilDone(g.process().run().start(JobSpec{Rate: test.rate}).ID)
				g.wantEachEnqueuedOnce(int(test.count))
				took, want := j.EndedAt.Sub(began), time.Duration(float64(test.count)/test.rate*float64(time.Second))
				if took < want-2*time.Second || took > want+want/4+2*time.Second {
					t.Errorf("replay of %d took %v, want %v", test.count, took, want)
				}
				stretch := max(time.Second, time.Duration(float64(time.Second)/test.rate)) - time.Millisecond
				for i := range g.requests {
					n := 0
					for _, r := range g.requests[i:] {
						if r.at.Sub(g.requests[i].at) < stretch {
							n++
						}
					}
					if n > test.max {
						g.Fatalf("%d requests within %v", n, stretch)
					}
				}
			})
		})
	}
}

// TestReplay_SkipsItsOwnDeadLetters: the replay's requests are dead-lettered again at once, some
// of them by a worker whose clock is behind. The job must not replay them again.
func TestReplay_SkipsItsOwnDeadLetters(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(3)
		p := g.process()
		next := int64(100)
		p.enqueueFunc = func(_ context.Context, all []ReplayRequest) []error {
			for _, a := range all {
				g.put(a, time.Now())
				g.deadLetter(idOf(0, next), func(l *deadletters.DeadLetter, r *ReadResult) {
					if r.DeadLetter.Headers = a.Mark.Headers(); next%2 == 0 {
						l.At = time.Now().Add(-time.Minute)
					}
				})
				next++
			}
			return make([]error, len(all))
		}
		j := p.run().start(JobSpec{Rate: 1})
		g.wantCounts(g.waitUntilDone(j.ID), 3, map[string]int64{})
		g.wantEachEnqueuedOnce(3)
	})
}

// TestReplay_SkipsNothingAfterAFailedChunk makes Enqueue fail for some requests of a chunk.
// Between these requests are dead letters that are refused. Every other dead letter must be
// enqueued once.
func TestReplay_SkipsNothingAfterAFailedChunk(t *testing.T) {
	inBubble(t, func(g *rig) {
		for offset := range int64(120) {
			g.deadLetter(idOf(0, offset), func(_ *deadletters.DeadLetter, r *ReadResult) {
				if offset%10 == 3 {
					r.Err = errors.New("no dead letter")
				}
			})
		}
		<-time.After(time.Minute)
		p := g.process()
		calls := 0
		p.enqueueFunc = func(_ context.Context, all []ReplayRequest) []error {
			calls++
			errs := make([]error, len(all))
			for i, a := range all {
				if calls%2 == 1 && i%4 == 2 {
					errs[i] = errUnavailable // the request is not published, and Enqueue returns an error for it
				} else if g.put(a, time.Now()); calls%2 == 1 && i%4 == 3 {
					errs[i] = errUnavailable // the request is published, although Enqueue returns an error for it
				}
			}
			return errs
		}
		j := p.run().start(JobSpec{})
		g.wantCounts(g.waitUntilDone(j.ID), 108, map[string]int64{RefusedUndecodable: 12})
		g.wantEachEnqueuedOnce(108)
	})
}

// TestReplay_SplitsSlowChunks makes reads slow, as if the offsets were far apart, so chunks exceed
// readTimeout. The job must still handle all dead letters.
func TestReplay_SplitsSlowChunks(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(500)
		for offset := range int64(500) {
			if offset%7 == 0 || offset > 490 {
				delete(g.records, idOf(0, offset))
			}
		}
		g.readDelay = 500 * time.Millisecond
		g.wantCounts(g.waitUntilDone(g.process().run().start(JobSpec{}).ID), 420, map[string]int64{RefusedGone: 80})
		g.wantEachEnqueuedOnce(420)
	})
}

// TestJob_ErrorIsSetWhileBlocked makes reads fail for a minute. The job must have an error during
// this minute, and none after it is done.
func TestJob_ErrorIsSetWhileBlocked(t *testing.T) {
	inBubble(t, func(g *rig) {
		g.deadLetterMany(10)
		p := g.process()
		over := time.Now().Add(time.Minute)
		p.faultOf = func(what string) fault {
			if what == "read" && time.Now().Before(over) {
				return refused
			}
			return none
		}
		id := p.run().start(JobSpec{}).ID
		<-time.After(10 * time.Second)
		if j := g.job(id); !strings.Contains(j.Error, errUnavailable.Error()) {
			t.Errorf("error of the blocked job: got %q", j.Error)
		}
		if j := g.waitUntilDone(id); j.Error != "" || time.Now().Before(over) {
			t.Errorf("error of the done job: got %q, want none", j.Error)
		}
		g.wantEachEnqueuedOnce(10)
	})
}
