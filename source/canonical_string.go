package source

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// str copies a string. Most strings have no escapes; their end is searched eight bytes at a
// time.
func (c *canonical) str() error {
	in, from := c.in, c.at+1
	i := from
	var all uint64
	for ; i+8 <= len(in); i += 8 {
		eight := binary.LittleEndian.Uint64(in[i:])
		if specialBytes(eight) != 0 {
			break
		}
		all |= eight
	}
	for ; i < len(in); i++ {
		b := in[i]
		if b == '"' {
			if all&(ones<<7) != 0 && !utf8.Valid(in[from:i]) {
				return c.fail("string is not valid UTF-8")
			}
			c.out = append(c.out, in[from-1:i+1]...)
			c.at = i + 1
			return nil
		}
		if b == '\\' || b < ' ' {
			break
		}
		all |= uint64(b)
	}
	c.at = from
	return c.escaped()
}

const ones = 0x0101010101010101

// specialBytes returns 0 if none of the eight bytes is a quote, a backslash or a control character.
func specialBytes(eight uint64) uint64 {
	quote, slash := eight^(ones*'"'), eight^(ones*'\\')
	return ((quote-ones)&^quote | (slash-ones)&^slash | (eight-ones*' ')&^eight) & (ones << 7)
}

// escaped copies a string that contains escapes. It writes each escape in its shortest form. If an
// upstream only escapes a character differently, the hash of the content therefore stays the same.
func (c *canonical) escaped() error {
	c.out = append(c.out, '"')
	for c.at < len(c.in) {
		b := c.in[c.at]
		switch {
		case b == '"':
			c.at++
			c.out = append(c.out, '"')
			return nil
		case b < ' ':
			return c.fail("string contains a control character")
		case b == '\\':
			r, err := c.escape()
			if err != nil {
				return err
			}
			c.out = appendEscaped(c.out, r)
		case b < utf8.RuneSelf:
			c.at++
			c.out = append(c.out, b)
		default:
			r, n := utf8.DecodeRune(c.in[c.at:])
			if r == utf8.RuneError && n == 1 {
				return c.fail("string is not valid UTF-8")
			}
			c.out = append(c.out, c.in[c.at:c.at+n]...)
			c.at += n
		}
	}
	return c.fail("string is not closed")
}

// escape parses one escape, or the two escapes of a surrogate pair.
func (c *canonical) escape() (rune, error) {
	if c.at+1 >= len(c.in) {
		return 0, c.fail("string is not closed")
	}
	b := c.in[c.at+1]
	if i := bytes.IndexByte([]byte(`"\/bfnrt`), b); i >= 0 {
		c.at += 2
		return rune("\"\\/\b\f\n\r\t"[i]), nil
	}
	if b != 'u' {
		return 0, c.fail(`unknown escape \%c`, b)
	}
	r, ok := c.hex4(c.at + 2)
	if !ok {
		return 0, c.fail(`\u without four hexadecimal digits`)
	}
	c.at += 6
	if utf16.IsSurrogate(r) && c.at+1 < len(c.in) && c.in[c.at] == '\\' && c.in[c.at+1] == 'u' {
		if low, ok := c.hex4(c.at + 2); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				c.at += 6
				return pair, nil
			}
		}
	}
	return r, nil
}

func (c *canonical) hex4(from int) (rune, bool) {
	if from+4 > len(c.in) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(c.in[from:from+4]), 16, 16)
	return rune(n), err == nil
}

func appendEscaped(out []byte, r rune) []byte {
	switch {
	case r == '"' || r == '\\':
		return append(out, '\\', byte(r))
	case r == '\b':
		return append(out, `\b`...)
	case r == '\f':
		return append(out, `\f`...)
	case r == '\n':
		return append(out, `\n`...)
	case r == '\r':
		return append(out, `\r`...)
	case r == '\t':
		return append(out, `\t`...)
	case r < ' ' || utf16.IsSurrogate(r): // control characters and unpaired surrogates stay escaped
		return fmt.Appendf(out, `\u%04x`, r)
	}
	return utf8.AppendRune(out, r)
}
