package query

import (
	"bytes"
	"encoding/binary"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// encoding says how a response body is compressed (header Content-Encoding).
type encoding int

const (
	identity encoding = iota
	gzipped
	zstandard
	encodings // number of the encodings above
)

// contentEncoding has the Content-Encoding header of each encoding, allocated once.
var contentEncoding = [encodings][]string{gzipped: {"gzip"}, zstandard: {"zstd"}}

// appendFrame appends text as a separate zstd frame of raw blocks, with a single segment and no
// checksum (RFC 8878 §3.1.1). Frames may be concatenated, so stored frames are sent unchanged
// between two frames of text.
func appendFrame(dst []byte, text string) []byte {
	const (
		singleSegment = 1 << 5
		maxRawBlock   = 128 << 10 // largest block that the zstd format allows
	)
	dst = append(dst, 0x28, 0xb5, 0x2f, 0xfd)
	dst = append(dst, 2<<6|singleSegment)                          // frame header with a size field of four bytes
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(text))) //nolint:gosec // texts are short
	for {
		block := text[:min(len(text), maxRawBlock)]
		text = text[len(block):]
		head := len(block) << 3 // block header: the size, and the type raw
		if text == "" {
			head |= 1 // mark this block as the last one of the frame
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

// gzipTo calls `write` with a writer whose gzip output goes to `out`. It ends the gzip stream if
// `write` succeeds.
func gzipTo(out io.Writer, write func(io.Writer) error) error {
	w := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(w)
	defer w.Reset(nil) // afterwards the pooled writer must not refer to the response
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
