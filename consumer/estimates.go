package consumer

import "sync"

// estimates tell how many bytes the bodies of a facet's next entity will have: a
// moving average of the last ones.
type estimates struct {
	mu      sync.Mutex
	byFacet map[string]int64
}

// firstEstimate is for a facet of which nothing was seen.
const firstEstimate = 64 << 10

func newEstimates() *estimates { return &estimates{byFacet: map[string]int64{}} }

func (e *estimates) expect(facet string) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n, seen := e.byFacet[facet]; seen {
		return n + n/8
	}
	return firstEstimate
}

func (e *estimates) saw(facet string, n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, seen := e.byFacet[facet]
	if !seen {
		last = n
	}
	e.byFacet[facet] = max(1, last+(n-last)/8)
}
