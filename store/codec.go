package store

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Zstd is the encoding of every payload written by this release: a plain zstd
// frame (RFC 8878), as `Content-Encoding: zstd` wants it. Compressing here and
// not in the database is several times faster, and the database moves a third.
const Zstd = "zstd"

var (
	encoders = sync.Pool{New: func() any {
		e, err := zstd.NewWriter(nil,
			zstd.WithEncoderConcurrency(1),
			zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithWindowSize(512<<10),
			zstd.WithLowerEncoderMem(true))
		if err != nil {
			panic(err) // constant options
		}
		return e
	}}
	decoders = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
		if err != nil {
			panic(err) // constant options
		}
		return d
	}}
)

// Encode returns JSON as a payload.
func Encode(json []byte) Payload {
	e := encoders.Get().(*zstd.Encoder)
	defer encoders.Put(e)
	return Payload{Encoding: Zstd, Bytes: e.EncodeAll(json, make([]byte, 0, len(json)/8+128)), Size: len(json)}
}

// Decode appends the JSON of a snapshot's payload to dst.
func (s Snapshot) Decode(dst []byte) ([]byte, error) {
	if s.Encoding != Zstd {
		return dst, fmt.Errorf("payload of %s has encoding %q; this release reads %q", s.Entity, s.Encoding, Zstd)
	}
	d := decoders.Get().(*zstd.Decoder)
	defer decoders.Put(d)
	out, err := d.DecodeAll(s.Payload, dst)
	if err != nil {
		return dst, fmt.Errorf("payload of %s: %w", s.Entity, err)
	}
	return out, nil
}
