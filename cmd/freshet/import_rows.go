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

// maxRowBytes bounds a line; what a row may hold is far less.
const maxRowBytes = 64 << 10

// rowError is a row that is wrong; the next one may be well.
type rowError struct {
	line int
	error
}

func (e rowError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.error) }

// rowReader reads entities line by line. No value has a line break of its own, so that a
// quote that is not closed spoils its line and no more.
type rowReader struct {
	lines *bufio.Scanner
	line  int // number of the last one
	parse func(text []byte) (entities.EntitySpec, error)
}

// newRowReader reads CSV with a header, or a JSON object a line, as the format says; empty:
// as the first byte tells.
func newRowReader(in io.Reader, format string) (*rowReader, error) {
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
	r := &rowReader{lines: bufio.NewScanner(buffered), parse: entities.ParseEntitySpec}
	r.lines.Buffer(nil, maxRowBytes)
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
	c := newCSVParser()
	header, err := c.splitLine(text)
	if err == nil {
		err = c.parseHeader(header)
	}
	if err != nil {
		return nil, rowError{r.line, err}
	}
	r.parse = c.parseRow
	return r, nil
}

// next returns the next row, or io.EOF behind the last. After a rowError it may be
// called again.
func (r *rowReader) next() (o entities.EntitySpec, line int, err error) {
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
func (r *rowReader) read() ([]byte, error) {
	for r.lines.Scan() {
		r.line++
		if text := bytes.TrimSpace(r.lines.Bytes()); len(text) > 0 {
			return r.lines.Bytes(), nil
		}
	}
	switch err := r.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("line %d: it is longer than %d bytes, as no row is", r.line+1, maxRowBytes)
	case err != nil:
		return nil, fmt.Errorf("after line %d: %w", r.line, err)
	}
	return nil, io.EOF
}

// csvParser splits lines, each by itself.
type csvParser struct {
	line   bytes.Reader
	reader *csv.Reader
	names  []string // of the columns
}

func newCSVParser() *csvParser {
	c := &csvParser{}
	c.reader = csv.NewReader(&c.line)
	c.reader.FieldsPerRecord = -1
	c.reader.ReuseRecord = true
	return c
}

func (c *csvParser) splitLine(text []byte) ([]string, error) {
	c.line.Reset(append(text, '\n'))
	fields, err := c.reader.Read()
	if wrong, ok := errors.AsType[*csv.ParseError](err); ok {
		return nil, wrong.Err
	}
	return fields, err
}

// parseHeader reads the header.
func (c *csvParser) parseHeader(header []string) error {
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

// parseRow reads a row: what is in no column of its own is a param, empty: none.
func (c *csvParser) parseRow(text []byte) (o entities.EntitySpec, err error) {
	fields, err := c.splitLine(text)
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
