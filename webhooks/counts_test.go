package webhooks

import (
	"slices"
	"testing"
	"time"
)

func TestDeliveries_AddUpAndOrderResults(t *testing.T) {
	var d Deliveries
	d.Add(Counts{Results: map[string]int64{"accepted": 5, "held": 2, "unavailable": 1, "no-key": 0}, LastMS: 2000})
	d.Add(Counts{Results: map[string]int64{"accepted": 1, "bad-signature": 2, "of-another-release": 3}, LastMS: 1000})
	if got := d.Accepted(); got != 6 {
		t.Errorf("accepted: got %d, want 6", got)
	}
	if got, want := d.Last, time.Unix(2, 0).UTC(); !got.Equal(want) {
		t.Errorf("last: got %v, want %v", got, want)
	}
	want := []NotAccepted{{"of-another-release", 3, Ignored}, {"bad-signature", 2, Refused}, {"held", 2, Ignored}, {"unavailable", 1, Failed}}
	if got := d.NotAccepted(); !slices.Equal(got, want) {
		t.Errorf("not accepted: got %+v, want %+v", got, want)
	}
}
