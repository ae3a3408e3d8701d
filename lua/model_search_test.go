package lua_test

import (
	"fmt"
	"strings"
)

// loss is the shortest way to something that must not happen.
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

// search looks at every state that can be reached, nearest first, up to most of
// them. It returns the shortest loss, if there is one, and how many there were.
func (m *model) search(most int) (found *loss, states, deepest int) {
	type from struct {
		parent int32
		by     uint8
	}
	seen := map[state]struct{}{{}: {}}
	queue := []state{{}}
	came := []from{{-1, 0}}
	path := func(i int32, last uint8) []step {
		steps := []step{every[last]}
		for ; came[i].parent >= 0; i = came[i].parent {
			steps = append([]step{every[came[i].by]}, steps...)
		}
		return steps
	}
	level := 1 // states of the present depth end here
	for i := 0; i < len(queue); i++ {
		if i == level {
			level = len(queue)
			deepest++
		}
		for by, st := range every {
			s := queue[i]
			r, ok := m.apply(&s, st)
			if !ok {
				continue
			}
			s.reduce(m.counts)
			if r.wrong == "" && s.owed > 0 && s.quiet() {
				r.wrong = "an accepted request is lost"
			}
			at, step := int32(i), uint8(by)
			if r.wrong != "" {
				return &loss{r.wrong, path(at, step)}, len(queue), deepest
			}
			if _, known := seen[s]; known {
				continue
			}
			if len(queue) >= most {
				return nil, len(queue), deepest
			}
			seen[s] = struct{}{}
			queue = append(queue, s)
			came = append(came, from{at, step})
		}
		queue[i] = state{} // it is not needed again
	}
	return nil, len(queue), deepest
}
