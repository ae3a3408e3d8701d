package main

import (
	"math"
	"math/rand/v2"
	"time"
)

// fullEntities is the number of entities in the requirement adr-013. With fewer entities, all rates
// are reduced in proportion.
const fullEntities = 18e6

// simEntity is a simulated entity. Times are in seconds since epoch and may be negative. The fields
// are small, because there are 18 million entities.
type simEntity struct {
	due, claimed, checked int32
	// updated is the time of the last change of the stored content. `knownChange` is a copy of
	// `updated` from the time of the last claim.
	updated, knownChange int32
	outdated             int32 // time from which the stored content is outdated
	next                 int32 // index of the next entity in a due list or the queue; the constant none: there is no next entity
	changes, watched     float32
	reads                float32
	changeRate, readRate float32 // the true rates of the entity, in changes and reads a day
	tier                 int8
}

const (
	never = math.MaxInt32
	none  = -1
)

// world contains all entities and simulates their reads and changes.
//
// The change rates and read rates have log-normal distributions, with few very high values. The
// reason is that an entity is a player, whose activity is a product of many factors (skill, fame).
// Measured changes and views of web pages have such distributions too. The logarithms of the two
// rates have a correlation of 0.7, because active players are read more often. The median change
// rate is one change in 20 days, the mean is 0.37 changes a day.
type world struct {
	all    []simEntity
	alias  []int32
	accept []float32
	reads  float64 // sum of the read rates of all entities, in reads a day
	rng    *rand.Rand
}

const (
	changeMedian          = 0.05 // median change rate of an entity, in changes a day
	changeSigma           = 2.0
	readSigma             = 2.2
	readChangeCorrelation = 0.7
	fullReads             = 2.8e6 // reads a day of fullEntities entities; about two million reads return stale content
)

func newWorld(n int, seed uint64) *world {
	w := &world{all: make([]simEntity, n), rng: rand.New(rand.NewPCG(seed, 1))}
	mean := fullReads / fullEntities
	median := mean / math.Exp(readSigma*readSigma/2)
	for i := range w.all {
		a, b := w.rng.NormFloat64(), w.rng.NormFloat64()
		e := &w.all[i]
		e.changeRate = float32(changeMedian * math.Exp(changeSigma*a))
		e.readRate = float32(median * math.Exp(readSigma*(readChangeCorrelation*a+math.Sqrt(1-readChangeCorrelation*readChangeCorrelation)*b)))
		w.reads += float64(e.readRate)
	}
	w.buildAlias()
	return w
}

// buildAlias builds the tables of the alias method (Walker, Vose). With them nextRead chooses an
// entity in constant time.
func (w *world) buildAlias() {
	n := len(w.all)
	w.alias, w.accept = make([]int32, n), make([]float32, n)
	small, large := make([]int32, 0, n), []int32{}
	for i := range w.all {
		w.accept[i] = float32(float64(w.all[i].readRate) * float64(n) / w.reads)
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

// nextRead returns the index of the entity that is read next. Its probability is proportional to
// its read rate.
func (w *world) nextRead() int32 {
	i := int32(w.rng.IntN(len(w.all)))
	if w.rng.Float32() < w.accept[i] {
		return i
	}
	return w.alias[i]
}

// untilChange returns a random time to the next change in seconds, for a rate of λ changes a day.
func (w *world) untilChange(λ float32) float64 { return w.rng.ExpFloat64() / float64(λ) * 86400 }

// setHistory gives an entity a simulated history of ten days with one check a day. `checked` is the
// time of the last check.
func (w *world) setHistory(e *simEntity, checked int32) {
	e.checked, e.claimed = checked, checked
	e.outdated = secondAfter(checked, w.untilChange(e.changeRate))
	e.updated = int32(math.Max(float64(checked)-w.untilChange(e.changeRate), -1e9))
	e.knownChange = e.updated
	hits, chance := 0.0, -math.Expm1(-float64(e.changeRate))
	for range 10 {
		if w.rng.Float64() < chance {
			hits++
		}
	}
	e.watched = 10
	e.changes = float32(-math.Log1p(-(hits+0.02)/10.5) * 10)
	e.reads = float32(w.poisson(float64(e.readRate) * 2.5))
}

func secondAfter(from int32, seconds float64) int32 {
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

// readIntensity returns the read rate at a second of the day, relative to the mean of the day. It
// is highest at 21:00.
func readIntensity(second int) float64 {
	return 1 + 0.6*math.Cos(2*math.Pi*(float64(second)/86400-21.0/24))
}

// seoul is the time zone of the simulated source.
var seoul = func() *time.Location {
	zone, err := time.LoadLocation("Asia/Seoul")
	if err != nil {
		panic(err)
	}
	return zone
}()

// epoch is the start of every simulation, a midnight in Seoul.
var epoch = time.Date(2026, 5, 4, 0, 0, 0, 0, seoul)

func timeAt(second int32) time.Time { return epoch.Add(time.Duration(second) * time.Second) }
