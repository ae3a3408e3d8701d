package source

import (
	"bytes"
	"fmt"
	"slices"
)

// maxDepth bounds the nesting of a document. Deeper nesting is an error, because the parser is
// recursive and a hostile document could exhaust its stack.
const maxDepth = 256

// canonical appends documents to one JSON text in canonical form: no white space, members
// sorted by name, strings with the fewest escapes, numbers as written. It leaves out the values that
// the facet does not select (select). It keeps the values that the facet ignores (ignore), and
// records their positions, so that the hash can skip them. It validates the input in the same pass
// and reports the position of an error.
//
// The parser is written by hand because a parser that uses gjson's functions is several times
// slower (`make bench` compares the two). gjson scans a value once per level of nesting. It also
// needs a separate validation pass, and the depth of its recursion is unbounded.
type canonical struct {
	in      []byte
	at      int
	out     []byte
	ignored []span   // ignored values: positions in out, ascending, not nested
	members []member // stack: members of the objects that are not closed yet
	scratch []byte   // buffer of the method sort for the text of members
	marks   []span   // buffer of the method sort for the positions of ignored values
	moved   []member // buffer of the method reorder for a copy of the members
	orders  [256][]uint8
}

type span struct{ from, to int }

// member is the position of one member, "name":value, in the text canonical.out.
type member struct {
	from, name, to int // offsets in out: begin of the member, end of its quoted name, end of the member
	marks, marksTo int // the member's ignored values are c.ignored[marks:marksTo]
}

func (c *canonical) fail(format string, args ...any) error {
	return fmt.Errorf("not valid JSON at byte %d: %w", c.at, fmt.Errorf(format, args...))
}

// appendDocument appends the canonical form of the document `in` to c.out. An error means that `in` is
// not exactly one valid JSON value, or is nested too deeply.
func (c *canonical) appendDocument(in []byte, paths *pathNode) error {
	c.in, c.at = in, 0
	c.out = slices.Grow(c.out, len(in)) // the canonical form is never longer than the input
	if err := c.value(paths, 0); err != nil {
		return err
	}
	return checkEnd(c)
}

// reset makes c ready for another document.
func (c *canonical) reset() {
	c.out, c.ignored, c.members = c.out[:0], c.ignored[:0], c.members[:0]
}

// checkEnd returns an error if the input has text after the document.
func checkEnd(c *canonical) error {
	c.space()
	if c.at < len(c.in) {
		return c.fail("%q after the end", c.in[c.at])
	}
	return nil
}

func (c *canonical) space() {
	for c.at < len(c.in) {
		switch c.in[c.at] {
		case ' ', '\t', '\n', '\r':
			c.at++
		default:
			return
		}
	}
}

func (c *canonical) value(paths *pathNode, depth int) error {
	c.space()
	if c.at >= len(c.in) {
		return c.fail("unexpected end")
	}
	if depth > maxDepth {
		return c.fail("nested deeper than %d levels", maxDepth)
	}
	switch b := c.in[c.at]; {
	case b == '{':
		return c.object(paths, depth)
	case b == '[':
		return c.array(paths, depth)
	case b == '"':
		return c.str()
	case b == '-' || (b >= '0' && b <= '9'):
		return c.number()
	case b == 't':
		return c.literal("true")
	case b == 'f':
		return c.literal("false")
	case b == 'n':
		return c.literal("null")
	}
	return c.fail("unexpected %q", c.in[c.at])
}

func (c *canonical) literal(word string) error {
	if !bytes.HasPrefix(c.in[c.at:], []byte(word)) {
		return c.fail("unexpected %q", c.in[c.at])
	}
	c.out = append(c.out, word...)
	c.at += len(word)
	return nil
}

// number copies a number as it is written (RFC 8259 §6).
func (c *canonical) number() error {
	from := c.at
	digits := func() bool {
		start := c.at
		for c.at < len(c.in) && c.in[c.at] >= '0' && c.in[c.at] <= '9' {
			c.at++
		}
		return c.at > start
	}
	next := func(b byte) bool {
		if c.at < len(c.in) && c.in[c.at] == b {
			c.at++
			return true
		}
		return false
	}
	next('-')
	if !next('0') && !digits() {
		return c.fail("number has no digits")
	}
	if next('.') && !digits() {
		return c.fail("fraction has no digits")
	}
	if next('e') || next('E') {
		if !next('+') {
			next('-')
		}
		if !digits() {
			return c.fail("exponent has no digits")
		}
	}
	c.out = append(c.out, c.in[from:c.at]...)
	return nil
}

func (c *canonical) array(paths *pathNode, depth int) error {
	c.at++
	c.out = append(c.out, '[')
	first := true
	for i := 0; ; i++ {
		c.space()
		if i == 0 && c.at < len(c.in) && c.in[c.at] == ']' {
			break
		}
		from, mark := len(c.out), len(c.ignored)
		if !first {
			c.out = append(c.out, ',')
		}
		start := len(c.out)
		child := paths.element(i)
		if err := c.value(child, depth+1); err != nil {
			return err
		}
		if child.drops(c.out[start]) {
			c.out, c.ignored = c.out[:from], c.ignored[:mark]
		} else {
			first = false
			c.markIgnored(child, start, mark)
		}
		c.space()
		if c.at < len(c.in) && c.in[c.at] == ']' {
			break
		}
		if c.at >= len(c.in) || c.in[c.at] != ',' {
			return c.fail("array is not closed")
		}
		c.at++
	}
	c.at++
	c.out = append(c.out, ']')
	return nil
}

// markIgnored records the value in c.out[start:] as one ignored span if the setting `ignore` selects
// the value (child.ignored). The new span replaces the ignored spans inside it, c.ignored[mark:].
func (c *canonical) markIgnored(child *pathNode, start, mark int) {
	if child.ignored {
		c.ignored = append(c.ignored[:mark], span{start, len(c.out)})
	}
}

func (c *canonical) object(paths *pathNode, depth int) error {
	c.at++
	c.out = append(c.out, '{')
	base, mark := len(c.members), len(c.ignored)
	start := len(c.out)
	sorted := true
	for i := 0; ; i++ {
		c.space()
		if i == 0 && c.at < len(c.in) && c.in[c.at] == '}' {
			break
		}
		if c.at >= len(c.in) || c.in[c.at] != '"' {
			return c.fail("member has no name")
		}
		if err := c.member(paths, base, depth); err != nil {
			return err
		}
		if n := len(c.members); n-base >= 2 && bytes.Compare(c.nameOf(c.members[n-2]), c.nameOf(c.members[n-1])) >= 0 {
			sorted = false
		}
		c.space()
		if c.at < len(c.in) && c.in[c.at] == '}' {
			break
		}
		if c.at >= len(c.in) || c.in[c.at] != ',' {
			return c.fail("object is not closed")
		}
		c.at++
	}
	c.at++
	if !sorted {
		c.sort(base, start, mark)
	}
	c.members = c.members[:base]
	c.out = append(c.out, '}')
	return nil
}

func (c *canonical) nameOf(m member) []byte { return c.out[m.from+1 : m.name-1] }

// member parses one member of an object and appends it to c.out, unless the setting `select` excludes
// its value. The earlier members of the same object are c.members[base:].
func (c *canonical) member(paths *pathNode, base, depth int) error {
	start, mark := len(c.out), len(c.ignored)
	if len(c.members) > base {
		c.out = append(c.out, ',')
	}
	m := member{from: len(c.out), marks: mark}
	if err := c.str(); err != nil {
		return err
	}
	m.name = len(c.out)
	c.space()
	if c.at >= len(c.in) || c.in[c.at] != ':' {
		return c.fail("member has no value")
	}
	c.at++
	c.out = append(c.out, ':')
	child := paths.member(c.out[m.from+1 : m.name-1])
	if err := c.value(child, depth+1); err != nil {
		return err
	}
	if child.drops(c.out[m.name+1]) {
		c.out, c.ignored = c.out[:start], c.ignored[:mark]
		return nil
	}
	c.markIgnored(child, m.from, mark)
	m.to = len(c.out)
	c.members = append(c.members, m)
	return nil
}

// sort sorts c.members[base:] by name. It rewrites the members' text, c.out[start:], and the spans of
// their ignored values, c.ignored[mark:]. If a name occurs more than once, the last member is kept, as
// in most JSON parsers.
func (c *canonical) sort(base, start, mark int) {
	all := c.members[base:]
	for i := range all {
		all[i].marksTo = len(c.ignored)
		if i+1 < len(all) {
			all[i].marksTo = all[i+1].marks
		}
	}
	distinct := c.reorder(all)
	if !distinct {
		slices.SortStableFunc(all, func(a, b member) int { return bytes.Compare(c.nameOf(a), c.nameOf(b)) })
	}
	c.scratch = c.scratch[:0]
	marks := c.marks[:0]
	for i, m := range all {
		if !distinct && i+1 < len(all) && bytes.Equal(c.nameOf(m), c.nameOf(all[i+1])) {
			continue
		}
		if len(c.scratch) > 0 {
			c.scratch = append(c.scratch, ',')
		}
		shift := start + len(c.scratch) - m.from
		for _, s := range c.ignored[m.marks:m.marksTo] {
			marks = append(marks, span{s.from + shift, s.to + shift})
		}
		c.scratch = append(c.scratch, c.out[m.from:m.to]...)
	}
	c.out = append(c.out[:start], c.scratch...)
	c.ignored = append(c.ignored[:mark], marks...)
	c.marks = marks
}

// reorder sorts the members of one object by name. A document often has hundreds of objects with the
// same names, so reorder first tries the order of an earlier object whose names have the same lengths.
// To check a known order is several times cheaper than to sort. `reorder` returns false, and sorts
// nothing, if two members have the same name or if there are more than 255 members.
func (c *canonical) reorder(all []member) bool {
	if len(all) > 255 {
		return false
	}
	shape := len(all)
	for _, m := range all {
		shape = shape*31 + m.name - m.from
	}
	order := &c.orders[shape&255]
	c.moved = append(c.moved[:0], all...)
	ascending := func() bool {
		if len(*order) != len(all) {
			return false
		}
		for i, from := range *order {
			if i > 0 && bytes.Compare(c.nameOf(c.moved[(*order)[i-1]]), c.nameOf(c.moved[from])) >= 0 {
				return false
			}
		}
		return true
	}
	if !ascending() {
		*order = (*order)[:0]
		for i := range all {
			*order = append(*order, uint8(i))
		}
		slices.SortFunc(*order, func(a, b uint8) int {
			return bytes.Compare(c.nameOf(c.moved[a]), c.nameOf(c.moved[b]))
		})
		if !ascending() {
			return false // two members have the same name, so reorder cannot sort them
		}
	}
	for i, from := range *order {
		all[i] = c.moved[from]
	}
	return true
}

// forEachHashedPart calls `write` with the parts of the text that are hashed. It skips each ignored
// span and one adjacent comma, so that the parts form the text as it would be without the ignored
// values.
func (c *canonical) forEachHashedPart(write func([]byte)) {
	from := 0
	for i := 0; i < len(c.ignored); i++ {
		s := c.ignored[i]
		for i+1 < len(c.ignored) && c.ignored[i+1].from == s.to+1 && c.out[s.to] == ',' {
			i++
			s.to = c.ignored[i].to
		}
		switch {
		case s.to < len(c.out) && c.out[s.to] == ',':
			s.to++
		case s.from > 0 && c.out[s.from-1] == ',':
			s.from--
		}
		write(c.out[from:s.from])
		from = s.to
	}
	write(c.out[from:])
}
