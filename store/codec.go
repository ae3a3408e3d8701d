package store

import (
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// Zstd is the encoding of every payload written by this release: a plain zstd
// frame (RFC 8878), as `Content-Encoding: zstd` wants it. Compressing here and
// not in the database is several times faster, and the database moves a third.
const Zstd = "zstd"

// One encoder and one decoder serve all goroutines, as many at once as GOMAXPROCS. Their channels
// are made when the program starts: one made in a testing/synctest bubble could not be used
// outside of it.
var (
	encoder = newEncoder()
	decoder = newDecoder()
)

func newEncoder() *zstd.Encoder {
	e, err := zstd.NewWriter(nil,
		zstd.WithEncoderConcurrency(0),
		zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(512<<10),
		zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // constant options
	}
	e.EncodeAll(nil, nil) // makes the channel
	return e
}

func newDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true))
	if err != nil {
		panic(err) // constant options
	}
	return d
}

// Encode returns JSON as a payload.
func Encode(json []byte) Payload {
	return Payload{Encoding: Zstd, Bytes: encoder.EncodeAll(json, make([]byte, 0, len(json)/8+128)), Size: len(json)}
}

// Decode appends the JSON of a snapshot's payload to dst.
func (s Snapshot) Decode(dst []byte) ([]byte, error) {
	if s.Encoding != Zstd {
		return dst, fmt.Errorf("payload of %s has encoding %q; this release reads %q", s.Entity, s.Encoding, Zstd)
	}
	out, err := decoder.DecodeAll(s.Payload, dst)
	if err != nil {
		return dst, fmt.Errorf("payload of %s: %w", s.Entity, err)
	}
	return out, nil
}
