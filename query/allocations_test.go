//go:build !race

// This test runs only without the race detector. With the race detector, sync.Pool drops items at
// random, and each dropped item costs another allocation.

package query

import (
	"testing"

	"github.com/freshet/freshet/observe"
)

// The limit is five allocations per read. Allocations of net/http are not counted.
func TestFreshRead_AllocatesAtMostFiveTimes(t *testing.T) {
	for _, encoding := range []string{"zstd", "gzip", ""} {
		for name, change := range map[string]func(*rig){"without reads": func(*rig) {}, "with reads": func(r *rig) { r.reads = &fakeRecorder{} }} {
			if got := testing.AllocsPerRun(1000, hotRead(t, encoding, observe.Tracer{}, change)); got > 5 {
				t.Errorf("encoding %q, %s recorded: got %v allocations, want at most 5", encoding, name, got)
			}
		}
	}
}
