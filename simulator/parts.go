package simulator

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"sync"
)

// part is a stretch of a document. A deflated part ends in a sync flush, on a
// byte boundary, and refers back to nothing before itself, so parts compressed
// once can be strung together in any order and company. A part that isn't
// deflated goes into a gzip stream as a stored block.
type part struct {
	plain    []byte
	deflated []byte
}

// buffers hold encoded answers between requests.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// deflaters are large (about 800 KB), so they are used again.
var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, 6)
	if err != nil {
		panic(err) // only for a level that doesn't exist
	}
	return w
}}

// deflate compresses plain, which it keeps, into a part.
func deflate(plain []byte) part {
	w := deflaters.Get().(*flate.Writer)
	defer deflaters.Put(w)
	var out bytes.Buffer
	w.Reset(&out)
	_, err := w.Write(plain)
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		panic(err) // a bytes.Buffer accepts every write
	}
	return part{plain: plain, deflated: bytes.Clone(out.Bytes())}
}

func appendPlain(dst []byte, doc []part) []byte {
	for _, p := range doc {
		dst = append(dst, p.plain...)
	}
	return dst
}

func appendGzip(dst []byte, doc []part) []byte {
	dst = append(dst, gzipHeader...)
	var sum checksum
	for _, p := range doc {
		dst = appendBlocks(dst, p)
		sum.add(p.plain)
	}
	return sum.appendTrailer(dst)
}

// gzipHeader (RFC 1952 §2.3): deflate, no name, no time, unknown system.
var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}

// appendBlocks adds a part to a deflate stream (RFC 1951 §3.2.4 for stored
// blocks: a zero byte, the length, its complement).
func appendBlocks(dst []byte, p part) []byte {
	if p.deflated != nil {
		return append(dst, p.deflated...)
	}
	for rest := p.plain; len(rest) > 0; {
		n := min(len(rest), 0xffff)
		dst = append(dst, 0)
		dst = binary.LittleEndian.AppendUint16(dst, uint16(n))
		dst = binary.LittleEndian.AppendUint16(dst, ^uint16(n))
		dst = append(dst, rest[:n]...)
		rest = rest[n:]
	}
	return dst
}

// checksum is what a gzip trailer says about the plain bytes.
type checksum struct {
	crc  uint32
	size uint32 // modulo 2^32, as the format wants it
}

func (c *checksum) add(plain []byte) {
	c.crc = crc32.Update(c.crc, crc32.IEEETable, plain)
	c.size += uint32(len(plain))
}

// appendTrailer ends the deflate stream with an empty last block and adds the
// checks.
func (c *checksum) appendTrailer(dst []byte) []byte {
	dst = append(dst, 1, 0, 0, 0xff, 0xff)
	dst = binary.LittleEndian.AppendUint32(dst, c.crc)
	return binary.LittleEndian.AppendUint32(dst, c.size)
}
