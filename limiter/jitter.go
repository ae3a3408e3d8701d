package limiter

import (
	"slices"
	"sync"
	"time"
)

// jitter measures how much the network delays of calls differ. It is the sum of two parts: the
// delay from the permit until the request is written (99th percentile), and the variation of the
// fastest response in each 100 ms. Slower responses are ignored, because their times also depend on
// the upstream's processing time.
type jitter struct {
	mu      sync.Mutex
	writes  []time.Duration // delays from a permit until its request was written, since the last measurement
	bucket  time.Time       // start of the current period of 100 ms (a bucket)
	fastest time.Duration
	n       int
	floors  []time.Duration
}

const (
	jitterBucket     = 100 * time.Millisecond
	minBucketAnswers = 8     // a bucket (100 ms) with fewer responses is not used
	minFloors        = 50    // number of buckets (100 ms each) that a measurement of the jitter needs
	maxJitterWrites  = 20000 // maximum number of delays that are kept for a measurement
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
			return // ignore the response to a request that was written before the current 100 ms
		}
		if j.n >= minBucketAnswers && len(j.floors) < maxJitterFloors {
			j.floors = append(j.floors, j.fastest)
		}
		j.bucket, j.n, j.fastest = bucket, 0, d
	}
	j.n++
	j.fastest = min(j.fastest, d)
}

// measure returns the jitter since the last measurement that had enough samples. It returns false
// if there are too few samples.
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
