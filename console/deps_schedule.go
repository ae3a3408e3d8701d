package console

import (
	"context"
	"time"

	"github.com/freshet/freshet/store"
)

// Schedule reads the state of prefetching, retries and the outbox.
type Schedule interface {
	// Schedule returns the state of a source. It is called every second and returns cached values;
	// the database is read rarely and with bounds. A value that was not read yet, or can't be read,
	// has an Error.
	Schedule(ctx context.Context, source string) ScheduleState
}

// ScheduleState is the state of prefetching of one source.
type ScheduleState struct {
	Facets []FacetSchedule
	// Disabled: prefetching is disabled by the settings.
	Disabled bool
	Due      Due
	// FeedRate is how many calls a second all schedulers together may enqueue in the LOW lane now.
	// RateCap is the rate cap of this hour; nil: none.
	FeedRate Reading[float64]
	RateCap  *float64
	// Schedulers are the live schedulers, the most recent heartbeat first.
	Schedulers Reading[[]SchedulerHeartbeat]
	// Requested is how many entities the scheduler of this process has requested since its start;
	// nil: this process runs no scheduler.
	Requested *int64
}

// Reading is a value that may be unknown. Error is the reason; empty: Value is known.
type Reading[T any] struct {
	Value T
	Error string
}

// FacetSchedule is the prefetch configuration of a facet, with the settings applied.
type FacetSchedule struct {
	Facet string
	Mode  string // off, tiers, adaptive
	// MinInterval and MaxInterval bound the intervals of the adaptive mode.
	MinInterval, MaxInterval time.Duration
	// ReadyAt is when the day's content is ready; zero: it is ready. Before it no entity is
	// requested.
	ReadyAt  time.Time
	Tiers    [3]TierSchedule // by store.Tier
	Triggers []TriggerSchedule
}

// TierSchedule is a tier of a facet.
type TierSchedule struct {
	Interval time.Duration
	// Entities is the number of enabled entities. It is an estimate of the database unless Exact.
	Entities Reading[int64]
	Exact    bool
}

// TriggerSchedule is a facet that is refreshed after a change of another one, unless it was
// refreshed within Backoff. The refresh follows at once, or after no change was seen for Quiet, at
// most MaxDelay after the first change.
type TriggerSchedule struct {
	Facet           string
	Backoff         time.Duration
	Quiet, MaxDelay time.Duration
}

// Due is the due work of a source at time At. Error is the reason if it is unknown.
type Due struct {
	Error string
	At    time.Time
	// MaxCounted is the bound of each count.
	MaxCounted int64
	// Next is the earliest due time; zero: no entity is scheduled.
	Next  time.Time
	Tiers []store.TierBacklog
	// Retries are the due retries that no process has claimed. Scheduled are all retries; First of
	// Scheduled is the next due time.
	Retries, Scheduled store.Backlog
	// Outbox are the outbox events (messages and triggers) that are not delivered yet.
	Outbox store.Backlog
}

// SchedulerHeartbeat is the age of a scheduler's last tick, by the clock of Redis.
type SchedulerHeartbeat struct {
	Process string
	Age     time.Duration
}
