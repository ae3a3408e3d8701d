package status_test

import (
	"testing"

	"github.com/freshet/freshet/status"
)

func TestFormatInt_SeparatesThousands(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 20_000_000: "20,000,000", -123456: "-123,456", -123: "-123"} {
		if got := status.FormatInt(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}
