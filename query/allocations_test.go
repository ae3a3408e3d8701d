//go:build !race

// The race detector lets sync.Pool drop items at random, so this test runs without it.

package query

import (
	"testing"

	"github.com/freshet/freshet/observe"
)

// The limit is five allocations in addition to the allocations of net/http.
func TestFreshRead_AllocatesAtMostFiveTimes(t *testing.T) {
	for _, encoding := range []string{"zstd", "gzip", ""} {
		for name, change := range map[string]func(*rig){"without reads": func(*rig) {}, "with reads": func(r *rig) { r.reads = &fakeRecorder{} }} {
			if got := testing.AllocsPerRun(1000, hotRead(t, encoding, observe.Tracer{}, change)); got > 5 {
				t.Errorf("encoding %q, %s recorded: got %v allocations, want at most 5", encoding, name, got)
			}
		}
	}
}
