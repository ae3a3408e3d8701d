package app

import (
	"cmp"
	"context"
	"log"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/observe"
)

// logger returns the log of a process with this role. Signals can change the log's level until ctx
// ends. With log.format json, each line has the attributes that the function `identity` returns.
// Messages of go-redis and of Go's standard logger become DEBUG lines of the log. Both loggers are
// global to the process.
func (p *Process) logger(ctx context.Context, c LogConfig, role string) *slog.Logger {
	var level slog.LevelVar
	level.Set(c.Level)
	options := &slog.HandlerOptions{Level: &level}
	var h slog.Handler = slog.NewTextHandler(p.Stderr, options)
	if c.Format == "json" {
		h = slog.NewJSONHandler(p.Stderr, options)
	}
	l := slog.New(observe.TraceHandler(h))
	if c.Format == "json" {
		l = l.With(identity(role)...)
	}
	redis.SetLogger(observe.NewRedisLogger(l))
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(l.Handler(), slog.LevelDebug).Writer())
	handleLevelSignals(ctx, &level, c.Level, l)
	return l
}

// conditionsOnly drops INFO lines, except lines about the end of a failure (observe.Condition). It drops
// nothing while the level is DEBUG.
type conditionsOnly struct{ slog.Handler }

// Handle implements slog.Handler.
func (h conditionsOnly) Handle(ctx context.Context, r slog.Record) error {
	isCondition := false
	r.Attrs(func(a slog.Attr) bool {
		isCondition = a.Key == "event"
		return !isCondition
	})
	if r.Level == slog.LevelInfo && !isCondition && !h.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h conditionsOnly) WithAttrs(attrs []slog.Attr) slog.Handler {
	return conditionsOnly{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h conditionsOnly) WithGroup(name string) slog.Handler {
	return conditionsOnly{h.Handler.WithGroup(name)}
}

// identity returns the log attributes that identify the process. The attribute instance is the
// name of the process in the console.
func identity(role string) []any {
	return []any{"role", role, "instance", workerName(), "version", Version()}
}

// startAttrs returns the attributes of the first log line of a process, except the attributes that
// depend on the role. With log.format text, they include the attributes of the function `identity`:
// the other text lines leave these attributes out to stay short.
func (p *Process) startAttrs(c Config, role string) []any {
	attrs := []any{
		"config", cmp.Or(p.ConfigFile, "none"), "brokers", strings.Join(c.Kafka.Brokers, ","), "redis", strings.Join(c.Redis.Addresses, ","),
	}
	if c.Log.Format == "json" {
		return attrs
	}
	return append(identity(role), attrs...)
}

// startedWith returns the attributes of the first log line of a role. The role works for the given
// source, or for all sources if source is empty.
func (p parts) startedWith(source string, attrs ...any) []any {
	names := cmp.Or(source, strings.Join(p.config.sourceNames(), ","))
	return slices.Concat(p.startAttrs, []any{"sources", names}, attrs)
}

// logStopping logs that the process stops, and the reason. The returned function logs the end of the
// shutdown, how long the shutdown took, and the work that was finished meanwhile.
func (p parts) logStopping(reason error) (logStopped func()) {
	began, before := time.Now(), p.workDone()
	p.log.Info("process stopping", "reason", reason.Error())
	return func() {
		attrs := []any{"duration", time.Since(began).Round(time.Millisecond)}
		after := p.workDone()
		for _, name := range slices.Sorted(maps.Keys(after)) {
			attrs = append(attrs, name, after[name]-before[name])
		}
		p.log.Info("process stopped", attrs...)
	}
}

// workDone returns how many upstream calls, update requests and HTTP responses this process has
// finished. Work that no role of this process does is left out. The numbers come from the metrics of
// the process.
func (p parts) workDone() map[string]uint64 {
	families, err := p.registry.Gather()
	if err != nil {
		return nil // without the metrics, the log line has no numbers; the error is visible at /metrics
	}
	prefix, done := metricPrefix(p.config.Metrics.Namespace), map[string]uint64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			switch strings.TrimPrefix(family.GetName(), prefix) {
			case "upstream_duration_seconds":
				done["calls_finished"] += m.GetHistogram().GetSampleCount()
			case "settled_total":
				done["requests_settled"] += uint64(m.GetCounter().GetValue())
			case "http_request_duration_seconds":
				done["responses_finished"] += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return done
}
