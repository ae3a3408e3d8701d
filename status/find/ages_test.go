package find

import (
	"testing"
	"time"

	"github.com/freshet/freshet/store/prefetched"
)

func TestAges_AreCountedByTierAndPartOfTheInterval(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	entity := func(tier prefetched.Tier, since, interval time.Duration) prefetched.RegisteredEntity {
		return prefetched.RegisteredEntity{Tier: tier, Due: now.Add(interval - since), History: prefetched.History{ClaimedAt: now.Add(-since)}}
	}
	got := agesOf([]prefetched.RegisteredEntity{
		entity(prefetched.Hot, 0, time.Hour), entity(prefetched.Hot, 15*time.Minute, time.Hour), entity(prefetched.Warm, 59*time.Minute, time.Hour),
		entity(prefetched.Cold, time.Hour, time.Hour), entity(prefetched.Cold, 90*time.Minute, time.Hour), entity(prefetched.Cold, -time.Minute, time.Hour),
		{Tier: prefetched.Warm, Due: now},
	}, now)
	want := Ages{Sampled: 7}
	want.Counts[0][prefetched.Hot], want.Counts[1][prefetched.Hot], want.Counts[3][prefetched.Warm] = 1, 1, 1
	want.Counts[4][prefetched.Cold], want.Counts[5][prefetched.Cold], want.Counts[0][prefetched.Cold], want.Counts[6][prefetched.Warm] = 1, 1, 1, 1
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
