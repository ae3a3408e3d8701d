package store

import (
	"testing"
	"testing/synctest"
)

// All tests share one encoder and one decoder, which must therefore work both inside and outside
// of synctest bubbles.
func TestEncode_WorksInsideAndOutsideSynctest(t *testing.T) {
	check := func(t *testing.T, want string) {
		t.Helper()
		got, err := Snapshot{State: State{Encoding: Zstd}, Payload: Encode([]byte(want)).Bytes}.Decode(nil)
		if err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	synctest.Test(t, func(t *testing.T) { check(t, `{"in":"a bubble"}`) })
	check(t, `{"outside":"of it"}`)
}
