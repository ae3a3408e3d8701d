package find

import (
	"testing"
	"time"

	"github.com/freshet/freshet/store"
)

func TestAges_AreCountedByTierAndPartOfTheInterval(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	entity := func(tier store.Tier, since, interval time.Duration) store.RegisteredEntity {
		return store.RegisteredEntity{Tier: tier, Due: now.Add(interval - since), History: store.History{ClaimedAt: now.Add(-since)}}
	}
	got := agesOf([]store.RegisteredEntity{
		entity(store.Hot, 0, time.Hour), entity(store.Hot, 15*time.Minute, time.Hour), entity(store.Warm, 59*time.Minute, time.Hour),
		entity(store.Cold, time.Hour, time.Hour), entity(store.Cold, 90*time.Minute, time.Hour), entity(store.Cold, -time.Minute, time.Hour),
		{Tier: store.Warm, Due: now},
	}, now)
	want := Ages{Sampled: 7}
	want.Counts[0][store.Hot], want.Counts[1][store.Hot], want.Counts[3][store.Warm] = 1, 1, 1
	want.Counts[4][store.Cold], want.Counts[5][store.Cold], want.Counts[0][store.Cold], want.Counts[6][store.Warm] = 1, 1, 1, 1
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
