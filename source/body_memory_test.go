package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// memoryLimit issues permits and grants at most "left" bytes of memory for response bodies.
type memoryLimit struct {
	testPermits
	left, requested int64
}

var errFull = errors.New("no memory")

func (g *memoryLimit) Grow(_ context.Context, n int64) error {
	g.requested += n
	if g.left -= n; g.left < 0 {
		return errFull
	}
	return nil
}

func TestFetch_StopsReadingWithoutMemory(t *testing.T) {
	body := append(append([]byte(`"`), bytes.Repeat([]byte("x"), 1<<20)...), '"')
	for _, known := range []bool{true, false} {
		s := testSource(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if known {
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			}
			_, _ = w.Write(body)
		}), nil)
		small := &memoryLimit{left: 300 << 10}
		a, err := fetch(t, t.Context(), s, small)
		if err != nil {
			t.Fatal(err)
		}
		if o := s.Read(a, time.Now()); o.Class != Transient || a.Bytes() > 300<<10 {
			t.Errorf("length known %v: got %s and %d bytes, want transient and at most %d", known, o.Class, a.Bytes(), 300<<10)
		}
		enough := &memoryLimit{left: 4 << 20}
		if a, err = fetch(t, t.Context(), s, enough); err != nil {
			t.Fatal(err)
		}
		if o := s.Read(a, time.Now()); o.Class != OK || enough.requested < int64(len(body)) || known && enough.requested > int64(len(body))+1 {
			t.Errorf("length known %v: got %s (%v) with %d bytes allocated, want ok with %d", known, o.Class, o.Err, enough.requested, len(body))
		}
	}
}

// A Content-Length larger than the body must not reserve memory.
func TestFetch_IgnoresFalseContentLength(t *testing.T) {
	s := testSource(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(15<<20))
		_, _ = w.Write([]byte(`"x`))
	}), nil)
	g := &memoryLimit{left: 1 << 30}
	if _, err := fetch(t, t.Context(), s, g); err != nil {
		t.Fatal(err)
	}
	if g.requested > maxFirstReadBuffer {
		t.Errorf("got %d bytes allocated, want at most %d", g.requested, maxFirstReadBuffer)
	}
}

// A body without a Content-Length is read into a buffer of the last body's size, so that the buffer
// grows once and not in several steps.
func TestFetch_ExpectsTheLastBodyLength(t *testing.T) {
	body := append(append([]byte(`"`), bytes.Repeat([]byte("x"), 17_000)...), '"')
	s := testSource(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(body)
		w.(http.Flusher).Flush() // the flush makes the server send no Content-Length
	}), nil)
	for i, most := range []int64{32 << 10, 18_500} {
		g := &memoryLimit{left: 1 << 30}
		a, err := fetch(t, t.Context(), s, g)
		if err != nil {
			t.Fatal(err)
		}
		if g.requested > most || a.Bytes() != len(body) {
			t.Errorf("fetch %d: got %d bytes allocated and a body of %d, want at most %d, and %d", i, g.requested, a.Bytes(), most, len(body))
		}
	}
}
