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

// maxRowBytes bounds one line. It is far above the size of a valid row.
const maxRowBytes = 64 << 10

// rowError reports an invalid row. Reading may continue with the next row.
type rowError struct {
	line int
	error
}

func (e rowError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.error) }

// rowReader reads entities line by line. Values must not contain line breaks, so an unclosed
// quote makes only its own line invalid.
type rowReader struct {
	lines *bufio.Scanner
	line  int // number of the last line read
	parse func(text []byte) (entities.EntitySpec, error)
}

// newRowReader returns a reader of CSV with a header, or of one JSON object per line. If format is
// empty, the first byte of the input determines the format.
func newRowReader(in io.Reader, format string) (*rowReader, error) {
	buffered := bufio.NewReader(in)
	if mark, _ := buffered.Peek(3); string(mark) == "\ufeff" {
		if _, err := buffered.Discard(len(mark)); err != nil {
			return nil, err
		}
	}
	first, _ := buffered.Peek(1) // an error of Peek is ignored, because the next read returns it again
	if format != "csv" && string(first) == "[" {
		return nil, errors.New(`the input is a JSON array; write one JSON object per line, as in {"key":"somebody","tier":"hot"}`)
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
		return nil, errors.New("the input is empty; CSV begins with a header line, as in key,tier")
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

// next returns the next row, or io.EOF after the last row. It may be called again after a rowError.
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

// read returns the next non-empty line.
func (r *rowReader) read() ([]byte, error) {
	for r.lines.Scan() {
		r.line++
		if text := bytes.TrimSpace(r.lines.Bytes()); len(text) > 0 {
			return r.lines.Bytes(), nil
		}
	}
	switch err := r.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("line %d: longer than the maximum of %d bytes", r.line+1, maxRowBytes)
	case err != nil:
		return nil, fmt.Errorf("after line %d: %w", r.line, err)
	}
	return nil, io.EOF
}

// csvParser parses CSV lines independently of each other.
type csvParser struct {
	line   bytes.Reader
	reader *csv.Reader
	names  []string // names of the columns, from the header line
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

// parseHeader parses and checks the header line.
func (c *csvParser) parseHeader(header []string) error {
	for _, name := range header {
		name = strings.TrimSpace(name)
		if name == "" || slices.Contains(c.names, name) {
			return fmt.Errorf("the header has an empty or a duplicate column name: %.200q", header)
		}
		c.names = append(c.names, strings.Clone(name))
	}
	if !slices.Contains(c.names, "key") {
		return fmt.Errorf("the header has no column key; it has %.200q. CSV begins with a header line, as in key,tier", header)
	}
	return nil
}

// parseRow parses a row. Columns other than key, tier and enabled are params; an empty value
// sets no param.
func (c *csvParser) parseRow(text []byte) (o entities.EntitySpec, err error) {
	fields, err := c.splitLine(text)
	if err != nil {
		return o, err
	}
	if len(fields) != len(c.names) {
		return o, fmt.Errorf("the row has %d fields, the header has %d", len(fields), len(c.names))
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
