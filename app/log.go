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

// logger returns the log of a process with this role. Signals can change its level until ctx ends.
// Each JSON line has the attributes of identity. Messages of go-redis and of Go's standard logger,
// which are global to the process, become DEBUG lines of the log.
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

// identity returns the attributes that tell the lines of processes apart. instance is the name of
// the process in the console.
func identity(role string) []any {
	return []any{"role", role, "instance", workerName(), "version", Version()}
}

// startAttrs returns the attributes of the start line that do not depend on the running role. With
// log.format text they include identity, which the other text lines leave out to stay short.
func (p *Process) startAttrs(c Config, role string) []any {
	attrs := []any{
		"config", cmp.Or(p.ConfigFile, "none"), "brokers", strings.Join(c.Kafka.Brokers, ","), "redis", strings.Join(c.Redis.Addresses, ","),
	}
	if c.Log.Format == "json" {
		return attrs
	}
	return append(identity(role), attrs...)
}

// startedWith returns the attributes of the start line of a role that works for a source, or for all
// sources if source is empty.
func (p parts) startedWith(source string, attrs ...any) []any {
	names := cmp.Or(source, strings.Join(slices.Sorted(maps.Keys(p.config.Sources)), ","))
	return slices.Concat(p.startAttrs, []any{"sources", names}, attrs)
}

// logStopping logs that the process stops, and the reason. The returned function logs the end with
// its duration and with the work that was finished meanwhile.
func (p parts) logStopping(reason error) (logStopped func()) {
	began, before := time.Now(), p.workDone()
	p.log.Info("stopping", "reason", reason.Error())
	return func() {
		attrs := []any{"duration", time.Since(began).Round(time.Millisecond)}
		after := p.workDone()
		for _, name := range slices.Sorted(maps.Keys(after)) {
			attrs = append(attrs, name, after[name]-before[name])
		}
		p.log.Info("stopped", attrs...)
	}
}

// workDone returns how many upstream calls, update requests and HTTP responses this process has
// finished. Work that no role of this process does is left out. The numbers come from its metrics.
func (p parts) workDone() map[string]uint64 {
	families, err := p.registry.Gather()
	if err != nil {
		return nil // the numbers are left out of the log line; the cause is visible at /metrics
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
