package query

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func TestBestEncoding_FollowsTheQuality(t *testing.T) {
	for header, want := range map[string]encoding{
		"":                          identity,
		"zstd":                      zstandard,
		"gzip":                      gzipped,
		"x-gzip":                    gzipped,
		"gzip, deflate, br, zstd":   zstandard,
		"gzip, deflate, br":         gzipped,
		"br":                        identity,
		"GZIP;Q=0.5 , ZSTD ; q=0.4": gzipped,
		"zstd;q=0, gzip":            gzipped,
		"zstd;q=0":                  identity,
		"*":                         zstandard,
		"*;q=0.1, zstd;q=0":         gzipped,
		"*;q=0":                     identity,
		"identity, zstd;q=0.5":      identity,
		"identity;q=0":              identity,
		"zstd;q=x, gzip;q=2":        identity,
		"zstd;q=NaN":                identity,
		";q=1,,":                    identity,
	} {
		if got := bestEncoding([]string{header}); got != want {
			t.Errorf("%q: got %d, want %d", header, got, want)
		}
	}
	if got := bestEncoding([]string{"gzip", "zstd"}); got != zstandard {
		t.Errorf("two headers: got %d, want %d", got, zstandard)
	}
}

// testTexts returns texts with the lengths at which the gzip and zstd formats change their
// structure (for example 128 KiB, the maximum zstd block), and one text of random length.
func testTexts(r *rand.Rand) []string {
	var all []string
	for _, n := range []int{0, 1, 255, 256, 65_535, 65_536, 128 << 10, 128<<10 + 1, r.IntN(300_000)} {
		b := make([]byte, n)
		for i := range b {
			b[i] = "abcdefgh"[r.IntN(8)]
		}
		all = append(all, string(b))
	}
	return all
}

func TestAppendFrame_JoinsAStoredFrame(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()
	for _, before := range testTexts(r) {
		after := strings.ToUpper(before)
		out := appendFrame(nil, before)
		out = encoder.EncodeAll([]byte("stored"), out)
		out = appendFrame(out, after)
		got, err := decoder.DecodeAll(out, nil)
		if err != nil || string(got) != before+"stored"+after {
			t.Errorf("%d bytes: got %.60q, %v, want %.60q", len(before), got, err, before+"stored"+after)
		}
	}
}

func FuzzBestEncoding(f *testing.F) {
	for _, h := range []string{"gzip, zstd;q=0.5", "*;q=0", ";;;,=", "zstd;q=1e400"} {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, header string) {
		if e := bestEncoding([]string{header}); e < identity || e >= encodings {
			t.Errorf("%q: got the encoding %d, want at least %d and below %d", header, e, identity, encodings)
		}
	})
}
