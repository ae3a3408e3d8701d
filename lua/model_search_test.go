package lua_test

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// loss is the shortest sequence of steps to a violation.
type loss struct {
	what  string
	steps []step
}

func (l *loss) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d steps: %s", len(l.steps), l.what)
	for i, st := range l.steps {
		fmt.Fprintf(&b, "\n  %2d  %v", i+1, st)
	}
	return b.String()
}

// search visits at most `most` reachable states in breadth-first order. It returns the shortest
// sequence of steps that violates an invariant (nil: none was found), the number of states and the
// depth.
func (m *model) search(most int) (found *loss, states, deepest int) {
	type from struct {
		parent int32
		by     uint8
	}
	steps := m.steps()
	// A state is identified by its 64-bit hash. In a search of thirty million states, the
	// probability of a hash collision is one in forty thousand.
	seed := maphash.MakeSeed()
	seen := map[uint64]struct{}{maphash.Comparable(seed, state{}): {}}
	came := []from{{-1, 0}}
	path := func(i int32, last uint8) []step {
		path := []step{steps[last]}
		for ; came[i].parent >= 0; i = came[i].parent {
			path = append([]step{steps[came[i].by]}, path...)
		}
		return path
	}
	next := []state{{}}
	for at := int32(0); len(next) > 0; deepest++ {
		present := next
		next = nil
		for i := range present {
			for by, st := range steps {
				s := present[i]
				r, ok := m.apply(&s, st)
				if !ok {
					continue
				}
				if m.onStep != nil {
					m.onStep(&present[i], st)
				}
				s.reduce(m.exact())
				if r.wrong == "" && s.owed > 0 && s.quiet() {
					r.wrong = "an accepted request is lost"
				}
				if r.wrong != "" {
					return &loss{r.wrong, path(at, uint8(by))}, len(came), deepest
				}
				hash := maphash.Comparable(seed, s)
				if _, known := seen[hash]; known {
					continue
				}
				if len(came) >= most {
					return nil, len(came), deepest
				}
				seen[hash] = struct{}{}
				next = append(next, s)
				came = append(came, from{at, uint8(by)})
			}
			at++
		}
	}
	return nil, len(came), deepest - 1
}
