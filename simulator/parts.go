package simulator

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"sync"
)

// part is a section of a document. A deflated part ends with a sync flush on a byte boundary
// and has no references to earlier data. Parts can therefore be compressed once and
// concatenated in any order. A part without deflated data is written to a gzip stream as stored
// blocks.
type part struct {
	plain    []byte
	deflated []byte
}

// buffers are reused for encoded responses.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// deflaters are reused because each takes about 800 KB.
var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, 6)
	if err != nil {
		panic(err) // cannot happen: the level is valid
	}
	return w
}}

// deflate returns a part with the plain text and its compressed form. The part refers to plain, so
// the caller must not change plain afterwards.
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
		panic(err) // cannot happen: a bytes.Buffer accepts every write
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

// gzipHeader is the header of a gzip stream (RFC 1952 §2.3): method deflate, no file name, no
// modification time, unknown operating system.
var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}

// appendBlocks appends a part to a deflate stream. A stored block (RFC 1951 §3.2.4) consists of
// a zero byte, the length, the bitwise complement of the length, and the data.
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

// checksum computes the trailer of a gzip stream.
type checksum struct {
	crc  uint32
	size uint32 // length of the uncompressed data, modulo 2^32 as the format requires
}

func (c *checksum) add(plain []byte) {
	c.crc = crc32.Update(c.crc, crc32.IEEETable, plain)
	c.size += uint32(len(plain))
}

// appendTrailer ends the deflate stream with an empty final block and appends the checksum and
// size.
func (c *checksum) appendTrailer(dst []byte) []byte {
	dst = append(dst, 1, 0, 0, 0xff, 0xff)
	dst = binary.LittleEndian.AppendUint32(dst, c.crc)
	return binary.LittleEndian.AppendUint32(dst, c.size)
}
