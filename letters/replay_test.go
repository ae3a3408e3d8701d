package letters

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

func TestEachLetterIsAskedForOnceOrStaysOpenForAReason(t *testing.T) {
	inBubble(t, func(w *world) {
		replayed := func(n int) func(*store.Letter, *Read) {
			return func(_ *store.Letter, r *Read) {
				r.Letter.Headers = schemas.ReplayMark{ID: "another", Count: n, Of: "7:7"}.Headers()
			}
		}
		record := func(of schemas.Entity, params map[string]string) func(*store.Letter, *Read) {
			return func(_ *store.Letter, r *Read) { r.Letter.Value = w.value(of, params) }
		}
		const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		entity := schemas.Entity{Source: theSource, Facet: "character", Key: "k"}
		bad, foreign, unknown := entity, entity, entity
		bad.Key, foreign.Source, unknown.Source = "bad", "other", "nobody"
		w.bury(idOf(0, 1), func(_ *store.Letter, r *Read) {
			r.Letter.Headers = []schemas.Header{{Key: schemas.TraceParent, Value: []byte(trace)}}
		})
		w.bury(idOf(0, 2), func(l *store.Letter, r *Read) {
			replayed(schemas.MaxReplays-1)(l, r)
			r.Letter.Headers = append(r.Letter.Headers, schemas.Header{Key: schemas.TraceParent, Value: []byte(strings.Repeat("x", 99))})
		})
		w.bury(idOf(0, 3), replayed(schemas.MaxReplays))
		w.bury(idOf(0, 4), func(_ *store.Letter, r *Read) { r.Err = errors.New("no letter") })
		w.bury(idOf(0, 5), func(_ *store.Letter, r *Read) { r.Letter.Value = []byte("{") })
		w.bury(idOf(1, 6), func(_ *store.Letter, r *Read) { r.Letter.ValueBytes = 1 << 20 }) // cut
		w.bury(idOf(1, 7), record(bad, nil))
		w.bury(idOf(1, 8), record(foreign, nil))
		w.bury(idOf(1, 9), record(unknown, nil))
		w.bury(idOf(2, 10))
		delete(w.letters, idOf(2, 10))
		w.bury(idOf(2, 11), func(_ *store.Letter, r *Read) { // larger than any worker takes
			text := string(w.value(entity, map[string]string{"a": strings.Repeat("x", schemas.MaxRequestBytes/2)}))
			r.Letter.Value = []byte(strings.Replace(text, `"a":"`, `"a":"`+strings.Repeat("y", schemas.MaxRequestBytes), 1))
		})
		<-time.After(time.Minute)
		p := w.process().run()
		j := w.ended(p.start(Order{Lane: schemas.High}).ID)
		w.counted(j, 2, map[string]int64{RefusedLimit: 1, RefusedUndecodable: 4, RefusedInvalid: 3, RefusedGone: 1})
		w.eachOnce(2)
		for _, r := range w.requests {
			want := schemas.ReplayMark{ID: j.ID, Count: 1, Of: r.Mark.Of}
			if r.Mark.Of == "0:2" {
				want.Count = schemas.MaxReplays
			}
			if r.Mark != want || r.Lane != schemas.High || r.TraceParent != map[string]string{"0:1": trace}[r.Mark.Of] || !strings.HasPrefix(r.Request.CorrelationID, "c-") {
				t.Errorf("%+v", r)
			}
		}
		if j.Total != 11 { // all that were chosen, also those of which it is known that they stay open
			t.Errorf("%d letters were chosen, want 11", j.Total)
		}
		again := w.ended(p.start(Order{}).ID)
		w.counted(again, 0, j.Refused)
		w.eachOnce(2)
	})
}

func TestNoMoreAreAskedForThanWasOrdered(t *testing.T) {
	inBubble(t, func(w *world) {
		w.bury(idOf(0, 5000), func(_ *store.Letter, r *Read) { r.Err = errors.New("no letter") })
		w.buryMany(1200)
		p := w.process().run()
		j := w.ended(p.start(Order{Most: 700}).ID)
		w.counted(j, 700, map[string]int64{})
		w.eachOnce(700)
		if j.Total != 700 {
			t.Errorf("%d letters were chosen, want 700", j.Total)
		}
		if j = w.ended(p.start(Order{Kind: store.PurgeJob, Most: 100}).ID); j.Done != 100 || j.Total != 100 {
			t.Errorf("%d of %d were purged, want 100", j.Done, j.Total)
		}
	})
}

func TestRequestsAreAskedForAtTheRateThatWasOrdered(t *testing.T) {
	for name, test := range map[string]struct {
		rate    float64
		letters int64
		most    int // in any stretch of almost a second, or of the time between two
	}{
		"fifty a second": {50, 400, 50}, "one in two seconds": {0.5, 20, 1}, "a part of one": {1.5, 20, 2}, "thousands": {700, 1100, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.buryMany(test.letters)
				began := time.Now()
				j := w.ended(w.process().run().start(Order{Rate: test.rate}).ID)
				w.eachOnce(int(test.letters))
				took, want := j.EndedAt.Sub(began), time.Duration(float64(test.letters)/test.rate*float64(time.Second))
				if took < want-2*time.Second || took > want+want/4+2*time.Second {
					t.Errorf("%d letters took %v, want %v", test.letters, took, want)
				}
				stretch := max(time.Second, time.Duration(float64(time.Second)/test.rate)) - time.Millisecond
				for i := range w.requests {
					n := 0
					for _, r := range w.requests[i:] {
						if r.at.Sub(w.requests[i].at) < stretch {
							n++
						}
					}
					if n > test.most {
						w.Fatalf("%d requests within %v", n, stretch)
					}
				}
			})
		})
	}
}

// TestWhatDiesAgainByAReplayIsNotItsOwn: what it has asked for fails once more, at once; also
// at a worker whose clock is behind.
func TestWhatDiesAgainByAReplayIsNotItsOwn(t *testing.T) {
	inBubble(t, func(w *world) {
		w.buryMany(3)
		p := w.process()
		next := int64(100)
		p.enqueuer = func(_ context.Context, all []ReplayRequest) []error {
			for _, a := range all {
				w.put(a, time.Now())
				w.bury(idOf(0, next), func(l *store.Letter, r *Read) {
					if r.Letter.Headers = a.Mark.Headers(); next%2 == 0 {
						l.At = time.Now().Add(-time.Minute)
					}
				})
				next++
			}
			return make([]error, len(all))
		}
		j := p.run().start(Order{Rate: 1})
		w.counted(w.ended(j.ID), 3, map[string]int64{})
		w.eachOnce(3)
	})
}

// TestTroubleInTheMiddleOfAChunkPassesOverNothing has the door refuse some once, between
// letters that stay open.
func TestTroubleInTheMiddleOfAChunkPassesOverNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		for offset := range int64(120) {
			w.bury(idOf(0, offset), func(_ *store.Letter, r *Read) {
				if offset%10 == 3 {
					r.Err = errors.New("no letter")
				}
			})
		}
		<-time.After(time.Minute)
		p := w.process()
		calls := 0
		p.enqueuer = func(_ context.Context, all []ReplayRequest) []error {
			calls++
			errs := make([]error, len(all))
			for i, a := range all {
				if calls%2 == 1 && i%4 == 2 {
					errs[i] = errAway // refused
				} else if w.put(a, time.Now()); calls%2 == 1 && i%4 == 3 {
					errs[i] = errAway // it has arrived all the same
				}
			}
			return errs
		}
		j := p.run().start(Order{})
		w.counted(w.ended(j.ID), 108, map[string]int64{RefusedUndecodable: 12})
		w.eachOnce(108)
	})
}

// TestLettersThatTakeLongToReadAreReplayedFewAtATime: as those that lie far apart.
func TestLettersThatTakeLongToReadAreReplayedFewAtATime(t *testing.T) {
	inBubble(t, func(w *world) {
		w.buryMany(500)
		for offset := range int64(500) {
			if offset%7 == 0 || offset > 490 {
				delete(w.letters, idOf(0, offset))
			}
		}
		w.pace = 500 * time.Millisecond
		w.counted(w.ended(w.process().run().start(Order{}).ID), 420, map[string]int64{RefusedGone: 80})
		w.eachOnce(420)
	})
}

// TestWhyAJobWaitsIsToldUntilItGoesOn keeps letters from being read for a minute.
func TestWhyAJobWaitsIsToldUntilItGoesOn(t *testing.T) {
	inBubble(t, func(w *world) {
		w.buryMany(10)
		p := w.process()
		over := time.Now().Add(time.Minute)
		p.befalls = func(what string) fault {
			if what == "read" && time.Now().Before(over) {
				return refused
			}
			return none
		}
		id := p.run().start(Order{}).ID
		<-time.After(10 * time.Second)
		if j := w.job(id); !strings.Contains(j.Error, errAway.Error()) {
			t.Errorf("it waits because of %q", j.Error)
		}
		if j := w.ended(id); j.Error != "" || time.Now().Before(over) {
			t.Errorf("it has ended, and waits because of %q", j.Error)
		}
		w.eachOnce(10)
	})
}
