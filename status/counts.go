package status

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/webhooks"
)

const (
	// historyInterval is the time between two samples of the history. Processes write their counts
	// at the multiples of historyInterval on the clock. Samples are taken historyDelay later, so that
	// each sample contains one write of each process although clocks differ a little.
	historyInterval, historyDelay = 5 * time.Second, historyInterval / 2
	// processCountsTTL is how long the last counts of a stopped process remain in Redis.
	processCountsTTL = time.Minute
	// writeCountsTimeout is the maximum duration of one write of counts.
	writeCountsTimeout = time.Second
)

// ReadKinds are the kinds of reads in the history. A read is "none" if nothing was stored.
var ReadKinds = [...]string{"fresh", "stale", "none", "notFound"}

// readKind returns the kind of a read by the freshness of its response.
var readKind = map[store.Freshness]string{
	store.Fresh: "fresh", store.Stale: "stale", store.Updating: "none", store.NotFound: "notFound",
}

// ProcessCounts are the numbers of calls and reads of a source since the start of one process.
type ProcessCounts struct {
	Calls map[string]int64 `json:"calls,omitempty"` // number of calls by outcome (source.CallOutcomes)
	Reads map[string]int64 `json:"reads,omitempty"` // number of reads by kind (ReadKinds)
	// Hooks has the deliveries of each webhook, by its name.
	Hooks map[string]webhooks.Counts `json:"hooks,omitempty"`
	// UptimeMS is the age of the process when it wrote the counts. AtMS is the Unix time of the
	// write by Redis' clock, which WriteReport sets.
	UptimeMS int64 `json:"uptimeMs"`
	AtMS     int64 `json:"atMs"`
}

func countsKey(source string) string { return "counts:{" + source + "}" }

// ReadCounts returns the counts of a source by process. It deletes counts that are unreadable or
// older than processCountsTTL.
func ReadCounts(ctx context.Context, rdb redis.UniversalClient, source string) (map[string]ProcessCounts, error) {
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("read the time from Redis: %w", err)
	}
	found, err := rdb.HGetAll(ctx, countsKey(source)).Result()
	if err != nil {
		return nil, fmt.Errorf("read the counts of calls and reads of %s: %w", source, err)
	}
	all := map[string]ProcessCounts{}
	var old []string
	for process, text := range found {
		var c ProcessCounts
		if json.Unmarshal([]byte(text), &c) != nil || now.Sub(time.UnixMilli(c.AtMS)) > processCountsTTL {
			old = append(old, process)
			continue
		}
		all[process] = c
	}
	if len(old) > 0 {
		if err := rdb.HDel(ctx, countsKey(source), old...).Err(); err != nil {
			return nil, fmt.Errorf("delete the counts of calls and reads of stopped processes: %w", err)
		}
	}
	return all, nil
}

// CountsWriter shares the counts of this process with the query services, which compute the history
// from them.
type CountsWriter struct {
	Sources []string
	Metrics *Metrics // metrics of this process
	// Write writes the counts by source.
	Write func(ctx context.Context, all map[string]ProcessCounts) error
	Log   *slog.Logger
}

// Run writes the counts every 5 s until ctx ends, and then once more, so that the last calls are
// counted. If a write fails, the next write contains its counts.
func (w CountsWriter) Run(ctx context.Context) error {
	started := time.Now()
	for poll.Pause(ctx, untilNext(time.Now(), 0)) {
		w.write(ctx, time.Since(started))
	}
	w.write(context.WithoutCancel(ctx), time.Since(started))
	return nil
}

func (w CountsWriter) write(ctx context.Context, uptime time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, writeCountsTimeout)
	defer cancel()
	all := w.counts()
	for name, c := range all {
		c.UptimeMS = uptime.Milliseconds()
		all[name] = c
	}
	if err := w.Write(ctx, all); err != nil {
		w.Log.Debug("counts of calls and reads not written to redis", "err", err) // an outage of Redis is logged elsewhere
	}
}

// counts returns the counts of this process for each source. Counts that are 0 are left out.
func (w CountsWriter) counts() map[string]ProcessCounts {
	all := map[string]ProcessCounts{}
	for _, name := range w.Sources {
		all[name] = ProcessCounts{Calls: map[string]int64{}, Reads: map[string]int64{}}
	}
	for _, family := range w.Metrics.gather() {
		name := family.GetName()
		addHooks(all, family)
		if name != callsMetric && name != readsMetric {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := labelsOf(m)
			c, known := all[labels["source"]]
			n := int64(m.GetCounter().GetValue())
			if !known || n == 0 {
				continue
			}
			if kind, counted := readKind[store.Freshness(labels["freshness"])]; counted {
				c.Reads[kind] += n
			} else if outcome := labels["outcome"]; outcome != "" {
				c.Calls[outcome] += n
			}
		}
	}
	return all
}

// untilNext returns the time from now until the next multiple of historyInterval on the clock, plus
// the delay.
func untilNext(now time.Time, delay time.Duration) time.Duration {
	return now.Add(-delay).Truncate(historyInterval).Add(historyInterval + delay).Sub(now)
}
