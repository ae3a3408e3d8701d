package query

import (
	"encoding/binary"
	"hash/crc32"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/flate"
)

// encoding is how an answer's bytes travel.
type encoding int

const (
	identity encoding = iota
	gzipped
	zstandard
	encodings // how many there are
)

// The headers that say so, ready to be put into an answer.
var contentEncoding = [encodings][]string{gzipped: {"gzip"}, zstandard: {"zstd"}}

// accepted returns the best encoding that a client takes: the one it rates
// highest, and of those zstd, as it is stored, before gzip before none
// (RFC 9110 §12.5.3). A client that refuses all three gets identity: some answer
// is better than none.
func accepted(header []string) encoding {
	rating := [encodings]float64{identity: -1, gzipped: -1, zstandard: -1} // -1: not named
	star := -1.0
	for _, list := range header {
		for list != "" {
			var item string
			item, list, _ = strings.Cut(list, ",")
			name, params, _ := strings.Cut(item, ";")
			name = strings.TrimSpace(name)
			q := quality(params)
			switch {
			case strings.EqualFold(name, "zstd"):
				rating[zstandard] = q
			case strings.EqualFold(name, "gzip"), strings.EqualFold(name, "x-gzip"):
				rating[gzipped] = q
			case strings.EqualFold(name, "identity"):
				rating[identity] = q
			case name == "*":
				star = q
			}
		}
	}
	best, most := identity, 0.0
	for e := zstandard; e > identity; e-- {
		r := rating[e]
		if r < 0 {
			r = star
		}
		if r > most {
			best, most = e, r
		}
	}
	if rating[identity] > most {
		return identity
	}
	return best
}

// quality reads the weight among a coding's parameters; 1 if there is none, 0 if
// it can't be read.
func quality(params string) float64 {
	name, value, found := strings.Cut(params, "=")
	if !found || !strings.EqualFold(strings.TrimSpace(name), "q") {
		return 1
	}
	q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || !(q >= 0 && q <= 1) {
		return 0
	}
	return q
}

// appendFrame appends text as a zstd frame of its own (RFC 8878 §3.1.1): one
// segment of raw blocks, no checksum. Frames may follow each other, so stored
// frames go out between two of these as they are.
func appendFrame(dst []byte, text string) []byte {
	const (
		singleSegment = 1 << 5
		rawMost       = 128 << 10 // the largest block
	)
	dst = append(dst, 0x28, 0xb5, 0x2f, 0xfd)
	dst = append(dst, 2<<6|singleSegment)                          // the size in four bytes
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(text))) //nolint:gosec // texts are short
	for {
		block := text[:min(len(text), rawMost)]
		text = text[len(block):]
		head := len(block) << 3 // raw
		if text == "" {
			head |= 1 // the last
		}
		dst = append(dst, byte(head), byte(head>>8), byte(head>>16)) //nolint:gosec // its three bytes
		dst = append(dst, block...)
		if text == "" {
			return dst
		}
	}
}

// gzipHeader begins a gzip member (RFC 1952): deflate, no name, no time.
const gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed+3)
	if err != nil {
		panic(err) // a constant level
	}
	return w
}}

// gzipOpen is the beginning of a gzip member, ended on a byte so that it can be
// closed by any text: what was compressed once is never compressed again.
type gzipOpen struct {
	crc  uint32 // of what was compressed
	size uint32
}

// appendGzip appends the beginning of a member that holds the parts.
func appendGzip(dst []byte, parts ...[]byte) ([]byte, gzipOpen) {
	w := deflaters.Get().(*flate.Writer)
	defer deflaters.Put(w)
	out := appender{append(dst, gzipHeader...)}
	w.Reset(&out)
	var open gzipOpen
	for _, p := range parts {
		_, _ = w.Write(p) // to memory
		open.crc = crc32.Update(open.crc, crc32.IEEETable, p)
		open.size += uint32(len(p)) //nolint:gosec // modulo 2^32, as the format has it
	}
	_ = w.Flush()
	w.Reset(nil) // the pool must not keep the answer
	return out.bytes, open
}

// close appends the text as stored blocks and the member's end.
func (open gzipOpen) close(dst []byte, text string) []byte {
	dst = appendStored(dst, text, true)
	dst = binary.LittleEndian.AppendUint32(dst, crc32.Update(open.crc, crc32.IEEETable, []byte(text)))
	return binary.LittleEndian.AppendUint32(dst, open.size+uint32(len(text))) //nolint:gosec // modulo 2^32
}

// appendStored appends the text as stored blocks (RFC 1951 §3.2.4); last: the data
// ends with them.
func appendStored(dst []byte, text string, last bool) []byte {
	const maxStored = 1<<16 - 1
	for {
		block := text[:min(len(text), maxStored)]
		text = text[len(block):]
		final := byte(0)
		if last && text == "" {
			final = 1
		}
		n := uint16(len(block)) //nolint:gosec // at most maxStored
		dst = append(dst, final)
		dst = binary.LittleEndian.AppendUint16(dst, n)
		dst = binary.LittleEndian.AppendUint16(dst, ^n)
		dst = append(dst, block...)
		if text == "" {
			return dst
		}
	}
}

// appender is a writer into a slice.
type appender struct{ bytes []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.bytes = append(a.bytes, p...)
	return len(p), nil
}
