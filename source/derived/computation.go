package derived

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"
)

const (
	// MaxNumbers is the maximum number of numbers in one content: the number of periods multiplied by
	// the number of measures.
	MaxNumbers = 50_000
	// MaxDistinct is the maximum number of different values that all measures of the kind distinct
	// count in one content, summed over all periods.
	MaxDistinct = 1_000_000
	// MaxMemory is an upper bound of the memory of one Computation, in bytes.
	MaxMemory = 40 << 20
)

var (
	errNumbers  = fmt.Errorf("there are more than %d numbers (periods × measures); use longer periods in `by`, or fewer measures", MaxNumbers)
	errDistinct = fmt.Errorf("the measures distinct have more than %d values in all periods together; remove periods of `by`, or a measure", MaxDistinct)
)

// Computation computes the content of one derived entity. The caller adds the items in any order, and
// then calls Content. After an error it must not be used any longer.
type Computation struct {
	config   *Config
	names    []string // names of the measures, sorted
	measures []Measure
	inputs   map[string]*input
	cells    map[bucket][]cell // one cell for each measure, in the order of names
	distinct map[uint64]struct{}
	hash     maphash.Hash
	values   []value
}

// input counts the collections of one facet that were added, and their items.
type input struct{ Collections, Complete, Items, Undated int64 }

// cell is the value of one measure in one period, computed from the items that were added so far.
type cell struct {
	count   int64 // used by the measures count and distinct
	sum     decimal
	extreme value // used by the measures min and max
}

// New returns a computation without items. `c` must be a result of Compile.
func (c *Config) New() *Computation {
	n := &Computation{config: c, names: slices.Sorted(maps.Keys(c.Measures)), inputs: map[string]*input{}, cells: map[bucket][]cell{}, distinct: map[uint64]struct{}{}}
	for _, name := range n.names {
		n.measures = append(n.measures, c.Measures[name])
	}
	for name := range c.Over {
		n.inputs[name] = &input{}
	}
	n.cells[bucket{kind: total}] = make([]cell, len(n.measures))
	return n
}

// Empty reports whether nothing was added: no collection and no result of a key.
func (c *Computation) Empty() bool {
	for _, in := range c.inputs {
		if in.Collections > 0 {
			return false
		}
	}
	return true
}

// AddCollection counts a collection of the facet `of`. `complete` is true if a walk has read the whole
// list.
func (c *Computation) AddCollection(of string, complete bool) {
	in := c.inputs[of]
	in.Collections++
	if complete {
		in.Complete++
	}
}

// Add adds an item of a collection of the facet `of`. It returns an error if a measure can't be
// computed from a value of the item.
func (c *Computation) Add(of string, item []byte) error {
	in := c.inputs[of]
	in.Items++
	var buckets [5]bucket // the bucket total, and one bucket for each configured period
	buckets[0] = bucket{kind: total}
	n := 1
	if at := c.config.Over[of].At; at != "" {
		if t, ok := timeOf(gjson.GetBytes(item, at)); ok {
			t = t.In(c.config.zone)
			for _, p := range c.config.By {
				buckets[n] = bucketOf(p, t)
				n++
			}
		} else {
			in.Undated++
		}
	}
	for i := range c.measures {
		m := &c.measures[i]
		if m.Of != of || (m.If != "" && !has(item, m.If)) || (m.Unless != "" && has(item, m.Unless)) {
			continue
		}
		if err := c.read(m, item); err != nil {
			return err
		}
		for _, b := range buckets[:n] {
			if err := c.measure(i, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// has reports whether the item has a value at the path. The values null and false count as no value.
func has(item []byte, path string) bool {
	r := gjson.GetBytes(item, path)
	return r.Exists() && r.Type != gjson.Null && r.Type != gjson.False
}

// read stores the values that a measure needs from an item in c.values.
func (c *Computation) read(m *Measure, item []byte) (err error) {
	c.values = c.values[:0]
	if m.Count {
		return nil
	}
	add := func(r gjson.Result) bool {
		var v value
		if v, err = valueOf(r, maxDigits); err != nil {
			err = fmt.Errorf("the value at %s %w", m.path(), err)
			return false
		}
		if v.kind != none {
			c.values = append(c.values, v)
		}
		return true
	}
	r := gjson.GetBytes(item, m.path())
	if !r.IsArray() {
		add(r)
		return err
	}
	r.ForEach(func(_, element gjson.Result) bool { return add(element) })
	return err
}

// cellsOf returns the cells of a bucket. It creates them if the bucket is new.
func (c *Computation) cellsOf(b bucket) ([]cell, error) {
	cells, ok := c.cells[b]
	if !ok {
		if (len(c.cells)+1)*len(c.measures) > MaxNumbers {
			return nil, errNumbers
		}
		cells = make([]cell, len(c.measures))
		c.cells[b] = cells
	}
	return cells, nil
}

// measure adds c.values to the cell of measure i in the bucket b.
func (c *Computation) measure(i int, b bucket) error {
	cells, err := c.cellsOf(b)
	if err != nil {
		return err
	}
	m, to := &c.measures[i], &cells[i]
	if m.Count {
		to.count++
		return nil
	}
	for _, v := range c.values {
		switch {
		case m.Distinct != "":
			if c.isNew(i, b, v) {
				to.count++
			}
			if len(c.distinct) > MaxDistinct {
				return errDistinct
			}
		case m.Sum != "":
			if v.kind != number {
				return fmt.Errorf("the value at %s %w: %.40q", m.Sum, errNoNumber, v)
			}
			to.sum = to.sum.add(v.number)
		default:
			to.keep(*m, v)
		}
	}
	return nil
}

// keep stores v in the cell if it is smaller (measure min) or greater (measure max) than the stored
// value.
func (to *cell) keep(m Measure, v value) {
	if v.kind == none {
		return
	}
	if order := v.compare(to.extreme); to.extreme.kind == none || (m.Min != "" && order < 0) || (m.Max != "" && order > 0) {
		to.extreme = v
	}
}

// isNew reports whether the bucket has not yet counted this value of the measure. It stores only a
// 64-bit hash of each value, with a random key. Even with MaxDistinct values, the probability that two
// different values have the same hash is below 10⁻⁷.
func (c *Computation) isNew(measure int, b bucket, v value) bool {
	var head [16]byte
	head[0], head[1] = byte(measure), byte(v.kind)            //nolint:gosec // far fewer than 256 measures
	binary.LittleEndian.PutUint32(head[2:], uint32(b.number)) //nolint:gosec // only the bits matter
	copy(head[6:], b.kind)
	c.hash.Reset()
	_, _ = c.hash.Write(head[:])
	_, _ = c.hash.WriteString(v.String())
	before := len(c.distinct)
	c.distinct[c.hash.Sum64()] = struct{}{}
	return len(c.distinct) > before
}

// Content returns the content as canonical JSON.
func (c *Computation) Content() []byte {
	byKind := map[Period][]bucket{}
	for b := range c.cells {
		byKind[b.kind] = append(byKind[b.kind], b)
	}
	out := []byte{'{'}
	for _, name := range slices.Sorted(slices.Values(append([]Period{"inputs", total}, c.config.By...))) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, '"'), name...), '"', ':')
		switch name {
		case "inputs":
			out = c.appendInputs(out)
		case total:
			out = c.appendCells(out, c.cells[bucket{kind: total}])
		default:
			out = append(out, '{')
			buckets := byKind[name]
			slices.SortFunc(buckets, func(a, b bucket) int { return int(a.number) - int(b.number) })
			for i, b := range buckets {
				if i > 0 {
					out = append(out, ',')
				}
				out = append(append(append(out, '"'), b.label()...), '"', ':')
				out = c.appendCells(out, c.cells[b])
			}
			out = append(out, '}')
		}
	}
	return append(out, '}')
}

func (c *Computation) appendInputs(out []byte) []byte {
	out = append(out, '{')
	for i, name := range slices.Sorted(maps.Keys(c.inputs)) {
		if i > 0 {
			out = append(out, ',')
		}
		in := c.inputs[name]
		quoted, _ := json.Marshal(name) // no error is possible: name is a text
		out = append(append(out, quoted...), ':')
		out = fmt.Appendf(out, `{"collections":%d,"complete":%d,"items":%d,"undated":%d}`, in.Collections, in.Complete, in.Items, in.Undated)
	}
	return append(out, '}')
}

func (c *Computation) appendCells(out []byte, cells []cell) []byte {
	out = append(out, '{')
	for i, name := range c.names {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, '"'), name...), '"', ':')
		switch m := c.measures[i]; {
		case m.Sum != "":
			out = append(out, cells[i].sum.String()...)
		case m.Min != "", m.Max != "":
			out = cells[i].extreme.appendJSON(out)
		default:
			out = strconv.AppendInt(out, cells[i].count, 10)
		}
	}
	return append(out, '}')
}

// Read is a statement in a content: how many collections and items of one facet the content was
// computed from.
type Read struct {
	Facet                                 string
	Collections, Complete, Items, Undated int64
}

// ReadOf returns the statements about inputs in a stored content, sorted by the names of the facets.
func ReadOf(content []byte) (all []Read) {
	gjson.GetBytes(content, "inputs").ForEach(func(name, in gjson.Result) bool {
		all = append(all, Read{name.Str, in.Get("collections").Int(), in.Get("complete").Int(), in.Get("items").Int(), in.Get("undated").Int()})
		return true
	})
	return all
}

var errContent = errors.New("the stored result can't be read")

// Merge adds the stored content of another entity of the facet. It must have been computed with the
// same configuration, for which Mergeable must return true.
func (c *Computation) Merge(content []byte) (err error) {
	fail := func(cause error) bool {
		err = fmt.Errorf("%w: %w", errContent, cause)
		return false
	}
	all := gjson.ParseBytes(content)
	if !all.IsObject() {
		return errContent
	}
	for name, in := range c.inputs {
		from := all.Get("inputs").Map()[name]
		in.Collections += from.Get("collections").Int()
		in.Complete += from.Get("complete").Int()
		in.Items += from.Get("items").Int()
		in.Undated += from.Get("undated").Int()
	}
	if err := c.mergeCells(bucket{kind: total}, all.Get(string(total))); err != nil {
		return err
	}
	for _, kind := range c.config.By {
		all.Get(string(kind)).ForEach(func(label, cells gjson.Result) bool {
			b, parseErr := parseBucket(kind, label.Str)
			if parseErr != nil {
				return fail(parseErr)
			}
			err = c.mergeCells(b, cells)
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Computation) mergeCells(b bucket, from gjson.Result) error {
	cells, err := c.cellsOf(b)
	if err != nil {
		return err
	}
	for i, name := range c.names {
		r := from.Get(name)
		switch m := c.measures[i]; {
		case m.Sum != "":
			d, err := parseDecimal(r.Raw, maxStoredDigits)
			if err != nil {
				return fmt.Errorf("%w: %s: %w", errContent, name, err)
			}
			cells[i].sum = cells[i].sum.add(d)
		case m.Min != "", m.Max != "":
			v, err := valueOf(r, maxStoredDigits)
			if err != nil {
				return fmt.Errorf("%w: %s: %w", errContent, name, err)
			}
			cells[i].keep(m, v)
		default:
			cells[i].count += r.Int()
		}
	}
	return nil
}
