package main

import (
	"math"
	"math/rand/v2"
	"time"
)

// full is the number of entities at which rates are those of adr-013.
const full = 18e6

// one is an entity; times are in seconds from the begin, which may lie before it. It is
// small, for there are eighteen million.
type one struct {
	due, claimed, checked int32
	updated, remembered   int32 // the last change stored, and known to its history
	outdated              int32 // when the content changed that is stored
	next                  int32 // in its second's list, or in the queue
	changes, watched      float32
	reads                 float32
	λ, r                  float32 // changes and reads a day, in truth
	tier                  int8
}

const (
	never = math.MaxInt32
	none  = -1
)

// world is all entities, and their readers.
//
// Rates are log-normal: activity is a product of many things (how long somebody plays,
// how good he is, who knows him), and both how often pages change and how often they are
// looked at have been found so heavy in the tail. Of two correlated normal numbers
// (0.7: who plays is looked up) one is the change rate's logarithm, with a median of one
// change in 20 days and a mean of 0.37 a day, and one that of the reads'.
type world struct {
	all    []one
	alias  []int32
	accept []float32
	reads  float64 // a day
	rng    *rand.Rand
}

const (
	changeMedian = 0.05 // a day
	changeSigma  = 2.0
	readSigma    = 2.2
	together     = 0.7
	readsOfFull  = 2.8e6 // a day; about two million find what has to be refreshed
)

func newWorld(n int, seed uint64) *world {
	w := &world{all: make([]one, n), rng: rand.New(rand.NewPCG(seed, 1))}
	mean := readsOfFull / full
	median := mean / math.Exp(readSigma*readSigma/2)
	for i := range w.all {
		a, b := w.rng.NormFloat64(), w.rng.NormFloat64()
		e := &w.all[i]
		e.λ = float32(changeMedian * math.Exp(changeSigma*a))
		e.r = float32(median * math.Exp(readSigma*(together*a+math.Sqrt(1-together*together)*b)))
		w.reads += float64(e.r)
	}
	w.buildAlias()
	return w
}

// buildAlias prepares to choose an entity by its reads in one step (Walker, Vose).
func (w *world) buildAlias() {
	n := len(w.all)
	w.alias, w.accept = make([]int32, n), make([]float32, n)
	small, large := make([]int32, 0, n), []int32{}
	for i := range w.all {
		w.accept[i] = float32(float64(w.all[i].r) * float64(n) / w.reads)
		if w.accept[i] < 1 {
			small = append(small, int32(i))
		} else {
			large = append(large, int32(i))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		w.alias[s] = l
		w.accept[l] -= 1 - w.accept[s]
		if w.accept[l] < 1 {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	for _, rest := range [][]int32{small, large} {
		for _, i := range rest {
			w.accept[i], w.alias[i] = 1, i
		}
	}
}

// reader returns whom the next read is of.
func (w *world) reader() int32 {
	i := int32(w.rng.IntN(len(w.all)))
	if w.rng.Float32() < w.accept[i] {
		return i
	}
	return w.alias[i]
}

// wait returns how many seconds pass until the next change.
func (w *world) wait(λ float32) float64 { return w.rng.ExpFloat64() / float64(λ) * 86400 }

// remember gives an entity the history of ten days on which it was checked once.
func (w *world) remember(e *one, checked int32) {
	e.checked, e.claimed = checked, checked
	e.outdated = until(checked, w.wait(e.λ))
	e.updated = int32(math.Max(float64(checked)-w.wait(e.λ), -1e9))
	e.remembered = e.updated
	hits, chance := 0.0, -math.Expm1(-float64(e.λ))
	for range 10 {
		if w.rng.Float64() < chance {
			hits++
		}
	}
	e.watched = 10
	e.changes = float32(-math.Log1p(-(hits+0.02)/10.5) * 10)
	e.reads = float32(w.poisson(float64(e.r) * 2.5))
}

func until(from int32, seconds float64) int32 {
	if at := float64(from) + seconds; at < 1e9 {
		return int32(at)
	}
	return never
}

func (w *world) poisson(mean float64) float64 {
	if mean > 500 {
		return math.Max(0, math.Round(mean+math.Sqrt(mean)*w.rng.NormFloat64()))
	}
	n := 0.0
	for at := w.rng.ExpFloat64(); at < mean; at += w.rng.ExpFloat64() {
		n++
	}
	return n
}

// visitors returns how many readers there are at a second of the day, beside the mean:
// most of them in the evening.
func visitors(second int) float64 {
	return 1 + 0.6*math.Cos(2*math.Pi*(float64(second)/86400-21.0/24))
}

// begin is when all worlds begin: a midnight in Seoul.
var seoul = func() *time.Location {
	zone, err := time.LoadLocation("Asia/Seoul")
	if err != nil {
		panic(err)
	}
	return zone
}()

var begin = time.Date(2026, 5, 4, 0, 0, 0, 0, seoul)

func moment(second int32) time.Time { return begin.Add(time.Duration(second) * time.Second) }
