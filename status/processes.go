package status

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Process describes a running process of freshet.
type Process struct {
	Name    string    `json:"name"` // name of the process: host/pid
	Role    string    `json:"role"`
	Version string    `json:"version"`
	Commit  string    `json:"commit,omitempty"`
	Started time.Time `json:"started"`
	// Partitions are the Kafka partitions that the workers of this process own, by topic.
	Partitions map[string][]int32 `json:"partitions,omitempty"`
	// InFlight is the number of records that the workers of this process work on.
	InFlight int `json:"inFlight"`
	// LastError is the last log line of level WARN or ERROR; nil: there was none.
	LastError *ProcessError `json:"lastError,omitempty"`
	// At is the time of the last report by Redis' clock. A process reports every 5 s.
	At time.Time `json:"at"`
}

// ProcessError is a log line of level WARN or ERROR.
type ProcessError struct {
	At    time.Time `json:"at"`
	Level string    `json:"level"`
	Text  string    `json:"text"`
}

// MaxReportAge is the age of its last report from which a process counts as not responding. After
// processCountsTTL it is no longer listed.
const MaxReportAge = 15 * time.Second

const processesKey = "processes"

// WriteReport writes the report of a process and its counts by source. "instance" must be unique for
// each start of a process, so that the counts of one instance never fall.
func WriteReport(ctx context.Context, rdb redis.UniversalClient, instance string, p Process, counts map[string]ProcessCounts) error {
	now, err := rdb.Time(ctx).Result() // the clock of Redis, because the clocks of hosts may differ
	if err != nil {
		return fmt.Errorf("read the time from Redis: %w", err)
	}
	p.At = now.UTC()
	pipe := rdb.Pipeline()
	write := func(key string, report any) error {
		text, err := json.Marshal(report)
		if err != nil {
			return fmt.Errorf("encode the report of %s: %w", p.Name, err)
		}
		pipe.HSet(ctx, key, instance, text)
		pipe.Expire(ctx, key, processCountsTTL)
		return nil
	}
	if err := write(processesKey, p); err != nil {
		return err
	}
	for source, c := range counts {
		c.AtMS = now.UnixMilli()
		if err := write(countsKey(source), c); err != nil {
			return err
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("write the report of %s: %w", p.Name, err)
	}
	return nil
}

// DeleteProcess deletes the report of a process that stops.
func DeleteProcess(ctx context.Context, rdb redis.UniversalClient, instance string) error {
	return rdb.HDel(ctx, processesKey, instance).Err()
}

// Processes are the running processes, and the time of the read by Redis' clock.
type Processes struct {
	At  time.Time `json:"at"`
	All []Process `json:"processes"`
}

// ReadProcesses returns the processes that have reported within processCountsTTL, sorted by role
// and name. It deletes older reports.
func ReadProcesses(ctx context.Context, rdb redis.UniversalClient) (Processes, error) {
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return Processes{}, fmt.Errorf("read the time from Redis: %w", err)
	}
	found, err := rdb.HGetAll(ctx, processesKey).Result()
	if err != nil {
		return Processes{}, fmt.Errorf("read the processes: %w", err)
	}
	all := Processes{At: now.UTC(), All: []Process{}}
	var old []string
	for instance, text := range found {
		var p Process
		if json.Unmarshal([]byte(text), &p) != nil || now.Sub(p.At) > processCountsTTL {
			old = append(old, instance)
			continue
		}
		all.All = append(all.All, p)
	}
	if len(old) > 0 {
		if err := rdb.HDel(ctx, processesKey, old...).Err(); err != nil {
			return Processes{}, fmt.Errorf("delete the reports of stopped processes: %w", err)
		}
	}
	slices.SortFunc(all.All, func(a, b Process) int {
		return cmp.Or(strings.Compare(a.Role, b.Role), strings.Compare(a.Name, b.Name), a.Started.Compare(b.Started))
	})
	return all, nil
}

// Versions returns the different versions of the processes in ascending order, each with its commit.
func (p Processes) Versions() []string {
	versions := map[string]bool{}
	for _, one := range p.All {
		versions[one.Build()] = true
	}
	return slices.Sorted(maps.Keys(versions))
}

// Build returns the version and the first digits of the commit.
func (p Process) Build() string {
	if p.Commit == "" {
		return p.Version
	}
	return p.Version + " (" + p.Commit[:min(8, len(p.Commit))] + ")"
}
