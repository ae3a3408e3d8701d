package limiter

import (
	"slices"
	"sync"
	"time"
)

// jitter measures by how much the way to the upstream spreads calls that were
// let go at their slots. It has two parts: what passes between the permit and the
// request being written, which is this process' own; and by how much the fastest
// answers of a tenth of a second differ from those of another. The spread of all
// answers would say nothing: it is the upstream's own work.
type jitter struct {
	mu      sync.Mutex
	writes  []time.Duration // of the last window
	bucket  time.Time       // of the answers that are being looked at
	fastest time.Duration
	n       int
	floors  []time.Duration
}

const (
	jitterStep       = 5 * time.Millisecond
	jitterBucket     = 100 * time.Millisecond
	minBucketAnswers = 8     // answers, for their fastest to mean something
	minFloors        = 50    // buckets, for their spread to mean something
	maxJitterWrites  = 20000 // kept at most
	maxJitterFloors  = 600
	jitterQuantile   = 0.95
)

func (j *jitter) wrote(d time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.writes) < maxJitterWrites {
		j.writes = append(j.writes, d)
	}
}

func (j *jitter) answered(written time.Time, d time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if bucket := written.Truncate(jitterBucket); !bucket.Equal(j.bucket) {
		if bucket.Before(j.bucket) {
			return // the answer of a slow call
		}
		if j.n >= minBucketAnswers && len(j.floors) < maxJitterFloors {
			j.floors = append(j.floors, j.fastest)
		}
		j.bucket, j.n, j.fastest = bucket, 0, d
	}
	j.n++
	j.fastest = min(j.fastest, d)
}

// measure returns the jitter since it was measured last, or false while too
// little was seen to tell.
func (j *jitter) measure() (time.Duration, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.floors) < minFloors || len(j.writes) == 0 {
		return 0, false
	}
	slices.Sort(j.writes)
	slices.Sort(j.floors)
	at := func(all []time.Duration, q float64) time.Duration { return all[int(q*float64(len(all)-1))] }
	spread := at(j.writes, 0.99) + at(j.floors, jitterQuantile) - at(j.floors, 1-jitterQuantile)
	j.writes, j.floors = j.writes[:0], j.floors[:0]
	return spread, true
}
