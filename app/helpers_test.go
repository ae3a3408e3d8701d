package app

import (
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eventTimeout bounds every wait for an expected event.
const eventTimeout = 2 * time.Minute

// characters returns n keys: prefix0, prefix1 and so on.
func characters(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = prefix + strconv.Itoa(i)
	}
	return keys
}

// waitFor waits until the function holds returns true, and logs the duration. It fails the test
// after the time limit.
func waitFor(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	began := time.Now()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for !holds() {
		if time.Since(began) > limit {
			t.Fatalf("%s: got nothing within %v, want it", what, limit)
		}
		<-look.C
	}
	t.Logf("%s took %v", what, time.Since(began).Round(time.Millisecond))
}
