package query

import (
	"log/slog"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// readsKey is the key of the request's loggedReads in the echo context.
const readsKey = "reads"

// loggedRead is one read of a request. It exists only while the log level is DEBUG.
type loggedRead struct {
	entity    schemas.Entity
	freshness store.Freshness
	status    int       // status of the item of a batch; 0 means the status of the response
	loaded    time.Time // when the snapshot was loaded from the store; zero means that there is none
}

// readLog logs reads at level DEBUG.
type readLog struct {
	cache    *snapshotCache
	samplers map[string]*observe.LogSampler // they limit the number of log lines, by source
	log      *slog.Logger
}

func newReadLog(cache *snapshotCache, sources map[string]Source, log *slog.Logger) *readLog {
	l := &readLog{cache: cache, samplers: map[string]*observe.LogSampler{}, log: log}
	for name := range sources {
		l.samplers[name] = &observe.LogSampler{}
	}
	return l
}

// noteRead keeps a read until logReads logs it. At that time its status and its duration are known.
func (l *readLog) noteRead(c echo.Context, e schemas.Entity, v view, status int) {
	if !l.log.Enabled(c.Request().Context(), slog.LevelDebug) {
		return
	}
	r := loggedRead{entity: e, freshness: v.freshness, status: status}
	if v.entry != nil {
		r.loaded = time.Now().Add(-time.Duration(l.cache.now() - v.readAt.Load()))
	}
	reads, _ := c.Get(readsKey).([]loggedRead)
	c.Set(readsKey, append(reads, r))
}

// logReads logs the reads of a request that began at the time `started`. A sampler per source limits
// the number of log lines.
func (l *readLog) logReads(c echo.Context, started time.Time) {
	ctx := c.Request().Context()
	if !l.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	reads, _ := c.Get(readsKey).([]loggedRead)
	now := time.Now()
	for _, r := range reads {
		skipped, pass := l.samplers[r.entity.Source].Pass(now)
		if !pass {
			continue
		}
		if r.status == 0 {
			r.status = c.Response().Status
		}
		attrs := []slog.Attr{
			slog.String("entity", r.entity.String()), slog.String("freshness", string(r.freshness)), slog.Int("status", r.status),
			slog.Float64("ms", observe.Milliseconds(now.Sub(started))), slog.Bool("cached", !r.loaded.IsZero() && r.loaded.Before(started)),
		}
		if id, ok := c.Get(correlationKey).(string); ok {
			attrs = append(attrs, slog.String("correlation_id", id))
		}
		if skipped > 0 {
			attrs = append(attrs, slog.Int("skipped", skipped))
		}
		l.log.LogAttrs(ctx, slog.LevelDebug, "read answered", attrs...)
	}
}
