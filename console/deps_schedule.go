package console

import (
	"context"
	"time"

	"github.com/freshet/freshet/store"
)

// Schedule is what is prefetched, and what comes round.
type Schedule interface {
	// Schedule tells how it stands with a source. It is asked every second, and reads the
	// database behind that, seldom and with bounds: what was not read yet, or can't be, is
	// told as that.
	Schedule(ctx context.Context, source string) ScheduleState
}

// ScheduleState is how it stands with the schedule of one source.
type ScheduleState struct {
	Facets []FacetSchedule
	// Disabled: prefetching is switched off in the settings.
	Disabled bool
	// Due is what is due.
	Due Due
	// FeedRate is how many calls a second the schedulers may feed into the LOW lane now, all
	// together; Rate cap is what they may at this hour, nil: as many as LOW may call.
	FeedRate Reading[float64]
	RateCap  *float64
	// Schedulers are those that live, who has looked last first.
	Schedulers Reading[[]SchedulerHeartbeat]
	// Requested is how many entities the scheduler of this process has asked for since it
	// started; nil: none runs in it.
	Requested *int64
}

// Reading is something that is read where it may fail. Trouble says why it is not known; empty:
// it is.
type Reading[T any] struct {
	Value T
	Error string
}

// FacetSchedule is how a facet is prefetched, by the configuration of this process and the
// settings.
type FacetSchedule struct {
	Facet string
	Mode  string // off, tiers, adaptive
	// MinInterval and Most bound the intervals of the adaptive mode.
	MinInterval, MaxInterval time.Duration
	// ReadyAt is until when nothing of it is asked for, as the day's content is not ready;
	// zero: it is.
	ReadyAt  time.Time
	Tiers    [3]TierSchedule // by store.Tier
	Triggers []TriggerSchedule
}

// TierSchedule is a tier of a facet.
type TierSchedule struct {
	Interval time.Duration
	// Entities are those that are enabled; Exact: all were counted, otherwise the database
	// has estimated them.
	Entities Reading[int64]
	Exact    bool
}

// TriggerSchedule is a facet that a change of another one refreshes, unless that was
// refreshed within Backoff: at once or, if Quiet is not 0, once changes pause for that long, but
// MaxDelay after the first one at the latest.
type TriggerSchedule struct {
	Facet           string
	Backoff         time.Duration
	Quiet, MaxDelay time.Duration
}

// Due is what of a source was due when it was counted. Trouble says why it is not known;
// empty: it is.
type Due struct {
	Error string
	At    time.Time
	// MaxCounted is up to how many were counted of each.
	MaxCounted int64
	// Next is when the entity is due that is due first; zero: none is in the schedule.
	Next  time.Time
	Tiers []store.TierBacklog
	// Retries are those that are due and nobody has claimed; Scheduled are all, and their
	// First is when the next is due.
	Retries, Scheduled store.Backlog
	// Outbox are what follows from changes and was not done yet: messages and triggers.
	Outbox store.Backlog
}

// SchedulerHeartbeat is when a scheduler has looked last, by Redis' clock.
type SchedulerHeartbeat struct {
	Process string
	Age     time.Duration
}
