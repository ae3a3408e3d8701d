package observe

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Condition names a failure that can last for a while, such as an outage. Two conditions are
// the same if all their fields are equal.
type Condition struct {
	// Event is the name of the condition in snake_case. The log lines of the failure and of the
	// recovery have it as the attribute `event`. docs/logs.md lists all events.
	Event     string
	Failing   string // message that is logged at the first failure, when the condition begins
	Recovered string // message that is logged when the condition ends
	// Attr and Value are the name and the value of a log attribute, such as facet=character. It
	// distinguishes conditions with the same messages. Attr may be empty.
	Attr, Value string
}

// Conditions logs the first failure and the recovery of each condition, and none of the
// failures in between. The zero value is ready to use. Its methods may be called concurrently.
type Conditions struct {
	mu      sync.Mutex
	failing map[Condition]*failures
	n       atomic.Int32 // number of conditions in `failing`, readable without the lock
}

type failures struct {
	count       int
	first, last time.Time
}

// recoverAfter is how long a condition must be free of failures before Resolved logs its recovery.
// So an operation that alternates between failure and success within a second is logged as one
// continuous failure.
const recoverAfter = time.Second

// Active reports whether at least one condition has failed and has not recovered.
func (c *Conditions) Active() bool { return c.n.Load() > 0 }

// Warn records a failure of the condition that needs no operator, and logs the first failure at
// level WARN.
func (c *Conditions) Warn(log *slog.Logger, cond Condition, err error) {
	c.fail(log, slog.LevelWarn, cond, err)
}

// Error records a failure of the condition that needs an operator, and logs the first failure at
// level ERROR.
func (c *Conditions) Error(log *slog.Logger, cond Condition, err error) {
	c.fail(log, slog.LevelError, cond, err)
}

// Record records the result of an operation: an error as Warn does, and a success as Resolved does.
func (c *Conditions) Record(log *slog.Logger, cond Condition, err error) {
	if err != nil {
		c.Warn(log, cond, err)
		return
	}
	c.Resolved(log, cond)
}

func (c *Conditions) fail(log *slog.Logger, level slog.Level, cond Condition, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.failing[cond]
	if f == nil {
		if c.failing == nil {
			c.failing = map[Condition]*failures{}
		}
		f = &failures{first: time.Now()}
		c.failing[cond] = f
		c.n.Add(1)
	}
	f.count++
	f.last = time.Now()
	if f.count == 1 {
		log.LogAttrs(context.Background(), level, cond.Failing, cond.attrs(slog.Any("err", err))...) //nolint:sloglint // the messages of a Condition are constants
	}
}

// Resolved records a success. If the condition has failed, and its last failure is at least one
// second old, Resolved ends the condition and logs the recovery.
func (c *Conditions) Resolved(log *slog.Logger, cond Condition) {
	if !c.Active() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.failing[cond]
	if f == nil || time.Since(f.last) < recoverAfter {
		return
	}
	delete(c.failing, cond)
	c.n.Add(-1)
	log.LogAttrs(context.Background(), slog.LevelInfo, cond.Recovered, //nolint:sloglint // the messages of a Condition are constants
		cond.attrs(slog.Int("failures", f.count), slog.Duration("outage", time.Since(f.first)))...)
}

// attrs returns the event, the condition's attribute if it has one, and the attributes in `more`.
func (c Condition) attrs(more ...slog.Attr) []slog.Attr {
	attrs := []slog.Attr{slog.String("event", c.Event)}
	if c.Attr != "" {
		attrs = append(attrs, slog.String(c.Attr, c.Value))
	}
	return append(attrs, more...)
}
