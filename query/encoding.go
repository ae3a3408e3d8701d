package query

import (
	"bytes"
	"encoding/binary"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
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

var gzipWriters = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed+3)
	if err != nil {
		panic(err) // can't happen: NewWriterLevel fails only for an invalid compression level, and the level is a valid constant
	}
	return w
}}

// gzipTo calls write with a writer that compresses to out as gzip, and ends the gzip stream if write
// succeeds.
func gzipTo(out io.Writer, write func(io.Writer) error) error {
	w := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(w)
	defer w.Reset(nil) // the pooled writer must not keep the response in memory
	w.Reset(out)
	if err := write(w); err != nil {
		return err
	}
	return w.Close()
}

// appendGzip appends the parts, compressed together as gzip.
func appendGzip(dst []byte, parts ...[]byte) ([]byte, error) {
	out := bytes.NewBuffer(dst)
	err := gzipTo(out, func(w io.Writer) error {
		for _, p := range parts {
			if _, err := w.Write(p); err != nil {
				return err
			}
		}
		return nil
	})
	return out.Bytes(), err
}
