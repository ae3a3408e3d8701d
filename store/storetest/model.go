package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

func testDuplicates(b suite) {
	b.write([]store.Result{store.Superseded, store.Changed, store.Superseded},
		content(entity, 5, "x"), content(entity, 7, "z"), content(entity, 6, "y"))
	b.wantSnapshot(entity, "z", 7, 7, 7, 7)
}

// model is a simple in-memory implementation of a store. The tests compare the results of the store
// with the results of the model.
type model map[schemas.Entity]*row

type row struct {
	version, fetched, checked, updated int64
	text                               string
	extract                            int64
	notFound                           bool
	visibility                         string
	manual                             bool
	failed                             int64 // version of the stored status; 0 if none is stored
}

// fail records that the fetch with version n failed.
func (m model) fail(e schemas.Entity, n int64) {
	r := m[e]
	if r == nil {
		r = &row{}
		m[e] = r
	}
	if n > r.version {
		r.failed = max(r.failed, n)
	}
}

// write applies one write and returns its expected result.
func (m model) write(w store.Write, text string) store.Result {
	result := m.writeState(w, text)
	if r := m[w.Entity]; result.Stored() && r.failed <= w.Version {
		r.failed = 0
	}
	return result
}

func (m model) writeState(w store.Write, text string) store.Result {
	r := m[w.Entity]
	if r == nil {
		if w.Kind == store.NotModified {
			return store.BaseMissing
		}
		r = &row{}
		m[w.Entity] = r
	}
	n := w.Version
	same := r.text == text && r.extract == w.ExtractVersion
	switch {
	case w.Kind == store.NotModified && (!same || n < r.version || (r.visibility != "" && r.visibility != w.Visibility)):
		return store.BaseMissing
	case n < r.version:
		return store.Superseded
	case w.Kind == store.KindNotFound:
		if r.visibility != w.Visibility {
			*r = row{failed: r.failed}
		}
		r.version, r.checked, r.notFound, r.visibility, r.manual = n, n, true, w.Visibility, w.Manual
		return store.NotFoundStored
	case same:
		r.version, r.checked, r.notFound, r.visibility, r.manual = n, n, false, w.Visibility, w.Manual
		if w.Kind == store.Content {
			r.fetched = n
		}
		return store.Touched
	}
	result := store.Changed
	if r.text != "" && (r.text == text || r.extract != w.ExtractVersion) {
		result = store.Rewritten
	} else {
		r.updated = n
	}
	r.version, r.fetched, r.checked, r.text, r.extract, r.notFound, r.visibility, r.manual = n, n, n, text, w.ExtractVersion, false, w.Visibility, w.Manual
	return result
}

func (m model) check(b suite, what string) {
	b.Helper()
	for e, r := range m {
		if failed := b.status(e); failed.Version != r.failed || (failed.State == "") != (r.failed == 0) {
			b.Fatalf("%s: %s: got status %+v, model %+v", what, e, failed, *r)
		}
		s, err := b.store.Get(b.Context(), e)
		if r.version == 0 {
			if !errors.Is(err, store.ErrNotFound) {
				b.Fatalf("%s: %s: got %+v, %v, want not found", what, e, s, err)
			}
			continue
		}
		if err != nil {
			b.Fatalf("%s: %s: %v", what, e, err)
		}
		text := ""
		if s.HasContent() {
			json, err := s.Decode(nil)
			if err != nil {
				b.Fatalf("%s: %s: %v", what, e, err)
			}
			text = string(json)
		}
		want := ""
		if r.text != "" {
			want = `{"doc":"` + r.text + `"}`
		}
		seconds := func(n int64) int64 {
			if n == 0 {
				return 0
			}
			return at(n).UnixMicro()
		}
		micros := func(s store.State) [3]int64 {
			var out [3]int64
			for i, t := range []int64{s.FetchedAt.UnixMicro(), s.CheckedAt.UnixMicro(), s.UpdatedAt.UnixMicro()} {
				out[i] = max(t, 0) // a zero time lies before 1970; the model has 0 for it
			}
			return out
		}
		if text != want || s.Version != r.version || s.NotFound != r.notFound || s.ExtractVersion != r.extract || s.Visibility != r.visibility || s.Manual != r.manual ||
			micros(s.State) != [3]int64{seconds(r.fetched), seconds(r.checked), seconds(r.updated)} {
			b.Fatalf("%s: %s: got %+v with %s, model %+v", what, e, s.State, text, *r)
		}
	}
}

func randomWrite(rng *rand.Rand, e schemas.Entity, n int64) (store.Write, string) {
	text := []string{"x", "y", "z"}[rng.IntN(3)]
	w := content(e, n, text)
	switch rng.IntN(6) {
	case 0:
		w = notFound(e, n)
	case 1:
		w = notModified(e, n, text)
	}
	if w.Kind != store.KindNotFound && rng.IntN(8) == 0 {
		w.ExtractVersion = 8
	}
	return w, text
}

func testModel(b suite) {
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 5))
		m := model{}
		for round := range 30 {
			var writes []store.Write
			var want []store.Result
			for key := range 12 {
				e := schemas.Entity{Source: fmt.Sprint("s", seed), Facet: "f", Key: fmt.Sprint(key)}
				n := int64(1 + round*3 + rng.IntN(12))
				switch rng.IntN(6) {
				case 0:
					b.fail(failing(e, n))
					m.fail(e, n)
					continue
				case 1:
					continue
				}
				if m[e] != nil && m[e].version == n {
					n++ // the entity has this version already, and two fetches never have the same version
				}
				w, text := randomWrite(rng, e, n)
				w.Visibility, w.Manual = []string{"", "", "partner", "staff"}[rng.IntN(4)], rng.IntN(2) == 0
				writes = append(writes, w)
				want = append(want, m.write(w, text))
			}
			rng.Shuffle(len(writes), func(i, j int) {
				writes[i], writes[j] = writes[j], writes[i]
				want[i], want[j] = want[j], want[i]
			})
			got, err := b.store.Write(b.Context(), writes)
			if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
				b.Fatalf("seed %d, round %d: got %v, %v, model %v", seed, round, got, err, want)
			}
		}
		m.check(b, fmt.Sprint("seed ", seed))
	}
}

// testConcurrent writes overlapping batches in different orders. In any interleaving the write
// with the highest version of each entity must remain.
func testConcurrent(b suite) {
	const writers, rounds, keys = 8, 10, 40
	var wg sync.WaitGroup
	for writer := range writers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(writer), 6))
			for round := range rounds {
				var writes []store.Write
				for _, key := range rng.Perm(keys)[:keys/2] {
					e := schemas.Entity{Source: "s", Facet: "f", Key: fmt.Sprint(key)}
					n := int64(1 + round*writers + writer)
					writes = append(writes, content(e, n, fmt.Sprint(n)))
				}
				if _, err := b.store.Write(b.Context(), writes); err != nil {
					b.Error(err)
				}
			}
			// At the end each writer writes every entity. The writer with the highest number has the
			// highest version.
			var writes []store.Write
			for _, key := range rng.Perm(keys) {
				e := schemas.Entity{Source: "s", Facet: "f", Key: fmt.Sprint(key)}
				n := int64(1000 + writer)
				writes = append(writes, content(e, n, fmt.Sprint(n)))
			}
			if _, err := b.store.Write(b.Context(), writes); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	for key := range keys {
		e := schemas.Entity{Source: "s", Facet: "f", Key: fmt.Sprint(key)}
		n := int64(1000 + writers - 1)
		b.wantSnapshot(e, fmt.Sprint(n), n, n, n, n)
	}
}
