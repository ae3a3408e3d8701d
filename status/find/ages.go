package find

import (
	"context"
	"time"

	"github.com/freshet/freshet/store/prefetched"
)

// AgeLabels are the labels of the age classes of Ages: the time since the last due time, as a part of
// the interval until the next one. An entity that was never due is in the last class.
var AgeLabels = [...]string{"0–25 %", "25–50 %", "50–75 %", "75–100 %", "100–150 %", "over 150 %", "never due"}

// Ages counts sampled entities by age class and tier (indexed by prefetched.Tier). Sampled is their total.
type Ages struct {
	Counts  [len(AgeLabels)][3]int64 `json:"counts"`
	Sampled int64                    `json:"sampled"`
}

// maxAgesSampled is the maximum number of entities whose ages are counted.
const maxAgesSampled = 2000

// Ages counts the ages of a sample of the enabled entities of a source.
func (r ItemReader) Ages(ctx context.Context, source string) (Ages, error) {
	all, err := r.SampleEntities(ctx, source, maxAgesSampled)
	if err != nil {
		return Ages{}, err
	}
	return agesOf(all, r.Now()), nil
}

func agesOf(all []prefetched.RegisteredEntity, now time.Time) (a Ages) {
	for _, e := range all {
		a.Counts[ageClass(e, now)][e.Tier]++
		a.Sampled++
	}
	return a
}

func ageClass(e prefetched.RegisteredEntity, now time.Time) int {
	from := e.History.ClaimedAt
	interval := e.Due.Sub(from)
	if from.IsZero() || interval <= 0 {
		return len(AgeLabels) - 1
	}
	switch part := float64(now.Sub(from)) / float64(interval); {
	case part < 1:
		return max(0, int(4*part))
	case part < 1.5:
		return 4
	}
	return 5
}
