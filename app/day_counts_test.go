package app

import (
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/store/sqlite"
)

func TestDayCounts_ReturnStoredCount(t *testing.T) {
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	counts := dayCounts{db}
	stored := limiter.Count{DayEnd: time.Unix(1_800_000_000, 0).UTC(), Calls: 5, At: time.Unix(1_799_999_999, 0).UTC()}
	for _, want := range []limiter.Count{{}, stored} {
		if want != (limiter.Count{}) {
			if err := counts.SetUsed(t.Context(), "nexon", "day", want); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := counts.Used(t.Context(), "nexon", "day"); err != nil || got != want {
			t.Errorf("stored count: got %+v, %v, want %+v", got, err, want)
		}
	}
}
