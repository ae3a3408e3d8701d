package limiter

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

// If no response reports the remaining units, the configured limit applies to each window.
func TestReported_WithoutReportsTheConfiguredLimitApplies(t *testing.T) {
	window := &fixedWindow{limit: 60, length: 20 * time.Second}
	answers := func(c atUpstream) answered {
		ok := window.take(c.at, 1)
		return answered{status: 200, refused: !ok, takes: 100 * ms}
	}
	config := scopedConfig(Policy{Name: "core", Limit: 60, Window: Window(20 * time.Second), Reported: true})
	inCallers(t, 1, 2, config, answers, func(f *callers) {
		for _, m := range f.members {
			f.wait(m, 10, schemas.Low, Call{Endpoint: "f/d", Key: "k"})
		}
		f.passed(65 * time.Second)
		calls, refused := f.since(time.Time{})
		if refused > 0 {
			t.Errorf("calls above the limit: got %d, want 0", refused)
		}
		if got, want := len(calls), 3*60; got < want {
			t.Errorf("calls in three windows: got %d, want at least %d", got, want)
		}
	})
}
