package app

import (
	"context"
	"log/slog"
	"sync"

	"github.com/freshet/freshet/status"
)

// lastError keeps the last log line of level WARN or ERROR of this process, for the console's page
// of processes. Its methods may be called concurrently and on a nil pointer.
type lastError struct {
	mask func(text string) string // redacts secrets
	mu   sync.Mutex
	last *status.ProcessError
}

// newLastError returns a lastError that redacts the secrets of the masker.
func newLastError(m *masker) *lastError {
	return &lastError{mask: func(text string) string { return m.text(text, true) }}
}

// get returns the last line, or nil.
func (e *lastError) get() *status.ProcessError {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// handler returns a log handler that keeps the last line of level WARN or ERROR, and passes all lines
// to the next handler.
func (e *lastError) handler(next slog.Handler) slog.Handler { return lastErrorHandler{next, e} }

type lastErrorHandler struct {
	slog.Handler
	to *lastError
}

// maxLastError is the maximum length of a kept line in bytes.
const maxLastError = 400

// Handle implements slog.Handler.
func (h lastErrorHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "source" || a.Key == "err" {
				text += ", " + a.Key + ": " + a.Value.String()
			}
			return true
		})
		text = h.to.mask(text)
		h.to.mu.Lock()
		h.to.last = &status.ProcessError{At: r.Time.UTC(), Level: r.Level.String(), Text: text[:min(len(text), maxLastError)]}
		h.to.mu.Unlock()
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h lastErrorHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return lastErrorHandler{h.Handler.WithAttrs(attrs), h.to}
}

// WithGroup implements slog.Handler.
func (h lastErrorHandler) WithGroup(name string) slog.Handler {
	return lastErrorHandler{h.Handler.WithGroup(name), h.to}
}
