package query

import (
	"encoding/binary"
	"hash/crc32"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/flate"
)

// encoding is the content encoding of a response.
type encoding int

const (
	identity encoding = iota
	gzipped
	zstandard
	encodings // number of encodings
)

// contentEncoding has the Content-Encoding header of each encoding, allocated once.
var contentEncoding = [encodings][]string{gzipped: {"gzip"}, zstandard: {"zstd"}}

// bestEncoding returns the encoding with the highest quality in Accept-Encoding. If several are
// equal, it prefers zstd (the stored form), then gzip, then identity (RFC 9110 §12.5.3). A
// client that accepts none of the three gets identity.
func bestEncoding(header []string) encoding {
	rating := [encodings]float64{identity: -1, gzipped: -1, zstandard: -1} // -1: not listed in Accept-Encoding
	star := -1.0
	for _, list := range header {
		for list != "" {
			var item string
			item, list, _ = strings.Cut(list, ",")
			name, params, _ := strings.Cut(item, ";")
			name = strings.TrimSpace(name)
			q := parseQuality(params)
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

// parseQuality parses the q value of a coding: 1 if there is none, 0 if it is invalid.
func parseQuality(params string) float64 {
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

// appendFrame appends text as a separate zstd frame of raw blocks, with a single segment and no
// checksum (RFC 8878 §3.1.1). Frames may be concatenated, so stored frames are sent unchanged
// between two frames of text.
func appendFrame(dst []byte, text string) []byte {
	const (
		singleSegment = 1 << 5
		rawMost       = 128 << 10 // largest block that the zstd format allows
	)
	dst = append(dst, 0x28, 0xb5, 0x2f, 0xfd)
	dst = append(dst, 2<<6|singleSegment)                          // frame header with a size field of four bytes
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(text))) //nolint:gosec // texts are short
	for {
		block := text[:min(len(text), rawMost)]
		text = text[len(block):]
		head := len(block) << 3 // block header: the size, and the type raw
		if text == "" {
			head |= 1 // marks the last block of the frame
		}
		dst = append(dst, byte(head), byte(head>>8), byte(head>>16)) //nolint:gosec // the three bytes of the header
		dst = append(dst, block...)
		if text == "" {
			return dst
		}
	}
}

// gzipHeader is the header of a gzip member (RFC 1952): deflate, no name, no time.
const gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed+3)
	if err != nil {
		panic(err) // can't happen: NewWriter fails only for an invalid compression level, and the level is a valid constant
	}
	return w
}}

// gzipPrefix has the checksum and the size of the data in an unfinished gzip member. The
// compressed bytes end on a byte boundary, so text can be appended to them without compressing
// them again.
type gzipPrefix struct {
	crc  uint32 // CRC-32 of the data before compression
	size uint32
}

// appendGzip appends an unfinished gzip member that contains the parts. It returns the result and
// the checksum and size of the parts.
func appendGzip(dst []byte, parts ...[]byte) ([]byte, gzipPrefix) {
	w := deflaters.Get().(*flate.Writer)
	defer deflaters.Put(w)
	out := appender{append(dst, gzipHeader...)}
	w.Reset(&out)
	var open gzipPrefix
	for _, p := range parts {
		_, _ = w.Write(p) // a write to memory does not fail
		open.crc = crc32.Update(open.crc, crc32.IEEETable, p)
		open.size += uint32(len(p)) //nolint:gosec // modulo 2^32, as the format requires
	}
	_ = w.Flush()
	w.Reset(nil) // the pooled writer must not keep the response in memory
	return out.bytes, open
}

// close appends the text to the unfinished gzip member as stored (uncompressed) blocks, and ends
// the member.
func (open gzipPrefix) close(dst []byte, text string) []byte {
	dst = appendStored(dst, text, true)
	dst = binary.LittleEndian.AppendUint32(dst, crc32.Update(open.crc, crc32.IEEETable, []byte(text)))
	return binary.LittleEndian.AppendUint32(dst, open.size+uint32(len(text))) //nolint:gosec // modulo 2^32
}

// appendStored appends the text as stored blocks (RFC 1951 §3.2.4). last marks the final block
// of the deflate stream.
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

// appender is an io.Writer that appends to a slice.
type appender struct{ bytes []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.bytes = append(a.bytes, p...)
	return len(p), nil
}
