package schemas

import (
	"math"
	"strings"
	"testing"
)

func TestSettled_KeepsItsEncoding(t *testing.T) {
	const channel, message = "settled:nexon", "1800000000123 character/가 나/{다} 1"
	want := Settled{Entity{"nexon", "character", "가 나/{다} 1"}, 1_800_000_000_123}
	if SettledChannel("nexon") != channel || want.Encode() != message {
		t.Errorf("encoded as %q on %q", want.Encode(), SettledChannel("nexon"))
	}
	if got, err := DecodeSettled(channel, message); got != want || err != nil {
		t.Errorf("decoded: got %+v, %v", got, err)
	}
}

func TestDecodeSettled_RejectsOtherMessages(t *testing.T) {
	for _, c := range []struct{ channel, message string }{
		{"retries:nexon", "1 character/a"},
		{"settled:", "1 character/a"},
		{"settled:{nexon}", "1 character/a"},
		{"settled:nexon", ""},
		{"settled:nexon", "1"},
		{"settled:nexon", "1 character"},
		{"settled:nexon", "1 character/"},
		{"settled:nexon", "1 /a"},
		{"settled:nexon", "1  character/a"},
		{"settled:nexon", " 1 character/a"},
		{"settled:nexon", "-1 character/a"},
		{"settled:nexon", "+1 character/a"},
		{"settled:nexon", "1e3 character/a"},
		{"settled:nexon", "9223372036854775808 character/a"},
		{"settled:nexon", "1 character/a\n"},
		{"settled:nexon", "1 character/\xff"},
		{"settled:nexon", "1 character/" + strings.Repeat("x", MaxKeyBytes+1)},
	} {
		if got, err := DecodeSettled(c.channel, c.message); err == nil {
			t.Errorf("%q on %q was decoded as %+v", c.message, c.channel, got)
		}
	}
}

func FuzzSettled(f *testing.F) {
	f.Add("nexon", "character", "a", int64(0))
	f.Add("n", "0", "가 나/다 1", int64(math.MaxInt64))
	f.Add("github-v3", "repo-2", " /owner/name ", int64(1))
	f.Fuzz(func(t *testing.T, source, facet, key string, number int64) {
		s := Settled{Entity{source, facet, key}, number}
		got, err := DecodeSettled(SettledChannel(source), s.Encode())
		if s.Entity.Check() != nil || number < 0 {
			if err == nil && got.Entity.Check() != nil {
				t.Errorf("%+v was decoded as %+v", s, got)
			}
			return
		}
		if err != nil || got != s {
			t.Errorf("%+v was decoded as %+v, %v", s, got, err)
		}
	})
}
