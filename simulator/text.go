package simulator

import (
	"math/rand/v2"
	"strconv"
	"strings"
)

// jsonText writes JSON from generated words, which need no escaping. It can start in the middle
// of a document: depth and empty describe the position.
type jsonText struct {
	buf    []byte
	depth  int
	pretty bool
	empty  bool // true: the open object or array has no member yet
}

func (j *jsonText) next() {
	if !j.empty {
		j.buf = append(j.buf, ',')
	}
	j.empty = false
	j.line()
}

func (j *jsonText) line() {
	if !j.pretty {
		return
	}
	j.buf = append(j.buf, '\n')
	for range j.depth {
		j.buf = append(j.buf, "  "...)
	}
}

func (j *jsonText) begin(bracket byte) {
	j.buf = append(j.buf, bracket)
	j.depth++
	j.empty = true
}

func (j *jsonText) end(bracket byte) {
	j.depth--
	if !j.empty {
		j.line()
	}
	j.buf = append(j.buf, bracket)
	j.empty = false
}

func (j *jsonText) name(name string) {
	j.next()
	j.buf = append(j.buf, '"')
	j.buf = append(j.buf, name...)
	j.buf = append(j.buf, `":`...)
	if j.pretty {
		j.buf = append(j.buf, ' ')
	}
}

// text writes a string member; an empty value becomes null.
func (j *jsonText) text(name, value string) {
	j.name(name)
	if value == "" {
		j.buf = append(j.buf, "null"...)
		return
	}
	j.buf = append(j.buf, '"')
	j.buf = append(j.buf, value...)
	j.buf = append(j.buf, '"')
}

func (j *jsonText) number(name string, value int) {
	j.name(name)
	j.buf = strconv.AppendInt(j.buf, int64(value), 10)
}

// digits writes a number as a string, as the API does for most fields.
func (j *jsonText) digits(name string, value int) {
	j.name(name)
	j.buf = append(j.buf, '"')
	j.buf = strconv.AppendInt(j.buf, int64(value), 10)
	j.buf = append(j.buf, '"')
}

// words is the generated vocabulary of one seed.
type words struct {
	syllables   []string
	genders     []string
	worlds      []string
	classes     []string
	grades      []string
	slots       []slot
	companions  []string // names of the items of the companion (a dragon or a mechanic)
	enchants    []string
	stats       []string
	unused      string
	used        string
	titles      []string
	description []string
}

// slot is a place on a game character for one item. There are several slots for rings and for pendants.
type slot struct {
	part, name string
}

func makeWords(rng *rand.Rand) words {
	w := words{}
	for range 64 {
		w.syllables = append(w.syllables, syllable(rng))
	}
	list := func(n, shortest, longest int) []string {
		seen := make(map[string]bool)
		var out []string
		for len(out) < n {
			s := w.word(rng, shortest+rng.IntN(longest-shortest+1))
			if !seen[s] {
				seen[s] = true
				out = append(out, s)
			}
		}
		return out
	}
	w.genders = list(2, 1, 1)
	w.worlds = list(12, 2, 4)
	w.classes = list(40, 3, 6)
	w.grades = list(4, 2, 4)
	w.companions = list(4, 3, 5)
	for range 5 {
		w.enchants = append(w.enchants, append(list(2, 2, 2), list(1, 8, 9)...)...)
	}
	w.stats = list(44, 3, 9)
	w.unused, w.used = w.word(rng, 3), w.word(rng, 2)
	w.titles = list(64, 5, 10)
	for range 64 {
		w.description = append(w.description, w.sentence(rng, 30+rng.IntN(20)))
	}
	// There are 20 kinds of items but 24 slots, because there are two slots for pendants and four
	// for rings. The last slot is for a ring.
	parts := list(20, 1, 5)
	for i, p := range parts[:18] {
		name := p
		if i%3 == 0 {
			name = w.word(rng, 6)
		}
		w.slots = append(w.slots, slot{p, name})
	}
	for i, n := range []int{2, 4} {
		for k := range n {
			w.slots = append(w.slots, slot{parts[18+i], parts[18+i] + strconv.Itoa(k+1)})
		}
	}
	return w
}

// syllable returns a random Hangul syllable. One syllable in three has a final consonant.
func syllable(rng *rand.Rand) string {
	final := 0
	if rng.IntN(3) == 0 {
		final = []int{1, 4, 8, 16, 17, 21}[rng.IntN(6)]
	}
	return string(rune(0xAC00 + (rng.IntN(19)*21+rng.IntN(21))*28 + final))
}

func (w *words) word(rng *rand.Rand, syllables int) string {
	var b strings.Builder
	for range syllables {
		b.WriteString(w.syllables[rng.IntN(len(w.syllables))])
	}
	return b.String()
}

// sentence returns random words whose total length is the given number of characters, or up to five
// characters less.
func (w *words) sentence(rng *rand.Rand, characters int) string {
	var b strings.Builder
	for left := characters; left >= 5; {
		n := 2 + rng.IntN(3)
		b.WriteString(w.word(rng, n))
		b.WriteByte(' ')
		left -= n + 1
	}
	return strings.TrimSpace(b.String())
}

const iconHost = "https://static.simulator.example/maplestory/ItemIcon/"

// icon returns a URL of 63 characters that does not exist.
func icon(rng *rand.Rand) string {
	b := []byte(iconHost)
	for len(b) < 63 {
		b = append(b, byte('A'+rng.IntN(26)))
	}
	return string(b)
}

func pick(rng *rand.Rand, from []string) string {
	return from[rng.IntN(len(from))]
}
