package console

import (
	"context"
	"time"

	"github.com/freshet/freshet/store"
)

// Schedule reads the state of prefetching, retries and the outbox.
type Schedule interface {
	// Schedule returns the state of a source. The console calls it every second, so it returns
	// cached values; the database is read rarely and with limits. If a value was not read yet or
	// can't be read, its field Error is set.
	Schedule(ctx context.Context, source string) ScheduleState
}

// ScheduleState is the state of prefetching of one source.
type ScheduleState struct {
	Facets []FacetSchedule
	// Disabled is true if the settings disable prefetching.
	Disabled bool
	Due      Due
	// FeedRate is the number of calls a second that all schedulers together may enqueue in the LOW
	// lane now. RateCap is the prefetch rate cap of this hour, in calls a second; nil: there is
	// none.
	FeedRate Reading[float64]
	RateCap  *float64
	// Schedulers are the running schedulers of the source. The scheduler with the most recent
	// heartbeat is first.
	Schedulers Reading[[]SchedulerHeartbeat]
	// Requested is the number of entities that the scheduler of this process has requested since
	// its start. nil: this process runs no scheduler.
	Requested *int64
}

// Reading is a value that may be unknown. If Error is not empty, it is the reason why the value is
// unknown, and Value has no meaning.
type Reading[T any] struct {
	Value T
	Error string
}

// FacetSchedule is the prefetch configuration of a facet, with the settings applied.
type FacetSchedule struct {
	Facet string
	Mode  string // off, tiers, adaptive
	// MinInterval and MaxInterval bound the intervals in the adaptive mode.
	MinInterval, MaxInterval time.Duration
	// ReadyAt is the time at which the upstream has the content of the day; zero: it has it
	// already. Until then no entity is requested.
	ReadyAt  time.Time
	Tiers    [3]TierSchedule // indexed by store.Tier
	Triggers []TriggerSchedule
}

// TierSchedule describes one tier of a facet.
type TierSchedule struct {
	Interval time.Duration
	// Entities is the number of enabled entities in the tier. If Exact is false, the number is an
	// estimate of the database.
	Entities Reading[int64]
	Exact    bool
}

// TriggerSchedule describes a trigger. Facet is the facet that is refreshed after a change of the
// facet with the trigger. It is not refreshed if its last refresh is younger than Backoff. If Quiet
// is 0, the refresh follows at once. Otherwise it follows when no change was found for Quiet, but
// at most MaxDelay after the first change.
type TriggerSchedule struct {
	Facet           string
	Backoff         time.Duration
	Quiet, MaxDelay time.Duration
}

// Due is the work of a source that is due at the time At. If Error is not empty, it is the reason
// why the work is unknown.
type Due struct {
	Error string
	At    time.Time
	// MaxCounted is the number at which each count stops.
	MaxCounted int64
	// Next is the earliest due time; zero: no entity is scheduled.
	Next  time.Time
	Tiers []store.TierBacklog
	// Retries are the due retries that no process has claimed. Scheduled are all retries; its
	// Oldest is the earliest time of a retry.
	Retries, Scheduled store.Backlog
	// Outbox counts the change events and triggers in the outbox that are not delivered yet.
	Outbox store.Backlog
}

// SchedulerHeartbeat describes a running scheduler. Age is the time since its last tick, by the
// clock of Redis.
type SchedulerHeartbeat struct {
	Process string
	Age     time.Duration
}
