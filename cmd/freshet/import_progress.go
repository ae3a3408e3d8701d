package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// barInterval is the update interval of the progress bar at a terminal. lineInterval is the
	// interval of progress lines in an output that is not a terminal.
	barInterval  = 200 * time.Millisecond
	lineInterval = 10 * time.Second
	barWidth     = 24
)

// countingReader counts the bytes that are read from an input.
type countingReader struct {
	in   io.Reader
	read atomic.Int64
	size int64 // size of the whole input, in bytes; 0: unknown
}

func newCountingReader(in io.Reader) *countingReader {
	c := &countingReader{in: in}
	if f, ok := in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			c.size = info.Size()
		}
	}
	return c
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// progress prints the progress of a long operation: a bar if the output is a terminal, and lines
// otherwise.
type progress struct {
	out      io.Writer
	terminal bool
	input    *countingReader
	started  time.Time
}

func (p *progress) interval() time.Duration {
	if p.terminal {
		return barInterval
	}
	return lineInterval
}

func (p *progress) show(rows int, now time.Time) {
	text := fmt.Sprintf("%d rows, %.0f rows/s", rows, float64(rows)/max(now.Sub(p.started).Seconds(), 0.001))
	if p.input.size > 0 {
		p.line(float64(p.input.read.Load())/float64(p.input.size), text)
		return
	}
	p.write(text)
}

// line prints a text and how much of the operation is done. part is that fraction, from 0 to 1.
func (p *progress) line(part float64, text string) {
	part = min(1, part)
	bar := ""
	if p.terminal {
		full := int(part * barWidth)
		bar = "[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + "] "
	}
	p.write(fmt.Sprintf("%s%2.0f %%, %s", bar, 100*part, text))
}

func (p *progress) write(text string) {
	if p.terminal {
		fmt.Fprint(p.out, "\r"+text+"\x1b[K")
		return
	}
	fmt.Fprintln(p.out, text)
}

// clear removes the progress bar from the terminal, so that other output can be printed.
func (p *progress) clear() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
