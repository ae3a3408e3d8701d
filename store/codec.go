package store

import (
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// Zstd is the encoding of every payload that this release writes: a zstd frame (RFC 8878), which
// can be sent with `Content-Encoding: zstd`. Compressing in the process is several times faster than
// in the database and reduces the transferred bytes to a third.
const Zstd = "zstd"

// One encoder and one decoder serve all goroutines, up to GOMAXPROCS of them at a time. The
// internal channels of both are created at program start: a channel that is created in a
// testing/synctest bubble can't be used outside of it.
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
		panic(err) // impossible: the options are constant
	}
	e.EncodeAll(nil, nil) // creates the encoder's internal channel at program start
	return e
}

func newDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true))
	if err != nil {
		panic(err) // impossible: the options are constant
	}
	return d
}

// Encode compresses content into a payload.
func Encode(content []byte) Payload {
	return Payload{Encoding: Zstd, Bytes: encoder.EncodeAll(content, make([]byte, 0, len(content)/8+128)), Size: len(content)}
}

// Decode appends the content of a snapshot's payload to `dst`.
func (s Snapshot) Decode(dst []byte) ([]byte, error) {
	if s.Encoding != Zstd {
		return dst, fmt.Errorf("payload of %s has encoding %q; this release supports %q only", s.Entity, s.Encoding, Zstd)
	}
	out, err := decoder.DecodeAll(s.Payload, dst)
	if err != nil {
		return dst, fmt.Errorf("decode the payload of %s: %w", s.Entity, err)
	}
	return out, nil
}
