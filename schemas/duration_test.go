package schemas_test

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

func TestFormatDuration_OmitsZeroUnits(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0s": 0, "1s": time.Second, "1m30s": 90 * time.Second, "10m": 10 * time.Minute, "1h": time.Hour, "1h30m": 90 * time.Minute,
		"1h0m1s": time.Hour + time.Second, "24h": 24 * time.Hour, "-1m": -time.Minute, "1.5s": 1500 * time.Millisecond,
	} {
		if got := schemas.FormatDuration(d); got != want {
			t.Errorf("%d s: got %s, want %s", int(d.Seconds()), got, want)
		}
	}
}

func TestOptionalTime_IsNilForTheZeroTime(t *testing.T) {
	if got := schemas.OptionalTime(time.Time{}); got != nil {
		t.Errorf("zero time: got %v, want nil", got)
	}
	at := time.Unix(1, 0)
	if got := schemas.OptionalTime(at); got == nil || !got.Equal(at) {
		t.Errorf("%v: got %v, want the same time", at, got)
	}
}
