package harness

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestAtRate_CallsEachOnceAtItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		count := map[int]int{}
		began := time.Now()
		err := AtRate(t.Context(), 300, 2*time.Second, func(n int) {
			<-time.After(time.Millisecond) // the calls take 1 ms each, so a later call may return before an earlier call
			mu.Lock()
			defer mu.Unlock()
			count[n]++
		})
		if took := time.Since(began).Round(100 * time.Millisecond); err != nil || took != 2*time.Second || len(count) != 600 {
			t.Errorf("AtRate: got %d different calls in %v, %v, want 600 in 2s", len(count), took, err)
		}
	})
}
