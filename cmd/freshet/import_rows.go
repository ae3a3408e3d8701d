package main

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/freshet/freshet/entities"
)

// rowMost bounds a line; what a row may hold is far less.
const rowMost = 64 << 10

// rowError is a row that is wrong; the next one may be well.
type rowError struct {
	line int
	error
}

func (e rowError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.error) }

// rows reads entities line by line. No value has a line break of its own, so that a
// quote that is not closed spoils its line and no more.
type rows struct {
	lines *bufio.Scanner
	line  int // number of the last one
	parse func(text []byte) (entities.EntitySpec, error)
}

// newRows reads CSV with a header, or a JSON object a line, as the format says; empty:
// as the first byte tells.
func newRows(in io.Reader, format string) (*rows, error) {
	buffered := bufio.NewReader(in)
	if mark, _ := buffered.Peek(3); string(mark) == "\ufeff" {
		if _, err := buffered.Discard(len(mark)); err != nil {
			return nil, err
		}
	}
	first, _ := buffered.Peek(1) // an error is met again by who reads
	if format != "csv" && string(first) == "[" {
		return nil, errors.New(`write one JSON object a line, not an array, as in {"key":"somebody","tier":"hot"}`)
	}
	if format == "" {
		format = "csv"
		if string(first) == "{" {
			format = "jsonl"
		}
	}
	r := &rows{lines: bufio.NewScanner(buffered), parse: entities.ParseEntitySpec}
	r.lines.Buffer(nil, rowMost)
	if format == "jsonl" {
		return r, nil
	}
	text, err := r.read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("there is nothing to import: CSV begins with a header line, as in key,tier")
	}
	if err != nil {
		return nil, err
	}
	c := newCSV()
	header, err := c.split(text)
	if err == nil {
		err = c.columns(header)
	}
	if err != nil {
		return nil, rowError{r.line, err}
	}
	r.parse = c.order
	return r, nil
}

// next returns the next row, or io.EOF behind the last. After a rowError it may be
// called again.
func (r *rows) next() (o entities.EntitySpec, line int, err error) {
	text, err := r.read()
	if err != nil {
		return o, r.line, err
	}
	if o, err = r.parse(text); err != nil {
		return o, r.line, rowError{r.line, err}
	}
	return o, r.line, nil
}

// read returns the next line that is not empty.
func (r *rows) read() ([]byte, error) {
	for r.lines.Scan() {
		r.line++
		if text := bytes.TrimSpace(r.lines.Bytes()); len(text) > 0 {
			return r.lines.Bytes(), nil
		}
	}
	switch err := r.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("line %d: it is longer than %d bytes, as no row is", r.line+1, rowMost)
	case err != nil:
		return nil, fmt.Errorf("after line %d: %w", r.line, err)
	}
	return nil, io.EOF
}

// csvLines splits lines, each by itself.
type csvLines struct {
	line   bytes.Reader
	reader *csv.Reader
	names  []string // of the columns
}

func newCSV() *csvLines {
	c := &csvLines{}
	c.reader = csv.NewReader(&c.line)
	c.reader.FieldsPerRecord = -1
	c.reader.ReuseRecord = true
	return c
}

func (c *csvLines) split(text []byte) ([]string, error) {
	c.line.Reset(append(text, '\n'))
	fields, err := c.reader.Read()
	if wrong, ok := errors.AsType[*csv.ParseError](err); ok {
		return nil, wrong.Err
	}
	return fields, err
}

// columns reads the header.
func (c *csvLines) columns(header []string) error {
	for _, name := range header {
		name = strings.TrimSpace(name)
		if name == "" || slices.Contains(c.names, name) {
			return fmt.Errorf("the header has a column without a name, or two of one: %.200q", header)
		}
		c.names = append(c.names, strings.Clone(name))
	}
	if !slices.Contains(c.names, "key") {
		return fmt.Errorf("the header has no column key; it has %.200q. CSV begins with a header line, as in key,tier", header)
	}
	return nil
}

// order reads a row: what is in no column of its own is a param, empty: none.
func (c *csvLines) order(text []byte) (o entities.EntitySpec, err error) {
	fields, err := c.split(text)
	if err != nil {
		return o, err
	}
	if len(fields) != len(c.names) {
		return o, fmt.Errorf("it has %d fields, and the header has %d", len(fields), len(c.names))
	}
	for i, name := range c.names {
		value := fields[i]
		switch {
		case name == "key":
			o.Key = value
		case value == "":
		case name == "tier":
			o.Tier = value
		case name == "enabled":
			enabled, err := strconv.ParseBool(value)
			if err != nil {
				return o, fmt.Errorf("enabled is %.20q; it must be true or false", value)
			}
			o.Enabled = &enabled
		default:
			if o.Params == nil {
				o.Params = map[string]string{}
			}
			o.Params[name] = value
		}
	}
	return o, o.Check()
}
