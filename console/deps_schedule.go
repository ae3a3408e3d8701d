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
	Schedule(ctx context.Context, source string) Scheduled
}

// Scheduled is how it stands with the schedule of one source.
type Scheduled struct {
	Facets []FacetSchedule
	// Disabled: prefetching is switched off in the settings.
	Disabled bool
	// Due is what is due.
	Due Due
	// Feed is how many calls a second the schedulers may feed into the LOW lane now, all
	// together; Rate cap is what they may at this hour, nil: as many as LOW may call.
	Feed    Read[float64]
	RateCap *float64
	// Schedulers are those that live, who has looked last first.
	Schedulers Read[[]SchedulerLook]
	// Asked is how many entities the scheduler of this process has asked for since it
	// started; nil: none runs in it.
	Asked *int64
}

// Read is something that is read where it may fail. Trouble says why it is not known; empty:
// it is.
type Read[T any] struct {
	Value   T
	Trouble string
}

// FacetSchedule is how a facet is prefetched, by the configuration of this process and the
// settings.
type FacetSchedule struct {
	Facet string
	Mode  string // off, tiers, adaptive
	// Least and Most bound the intervals of the adaptive mode.
	Least, Most time.Duration
	// Ready is until when nothing of it is asked for, as the day's content is not ready;
	// zero: it is.
	Ready    time.Time
	Tiers    [3]TierSchedule // by store.Tier
	Triggers []TriggerSchedule
}

// TierSchedule is a tier of a facet.
type TierSchedule struct {
	Every time.Duration
	// Entities are those that are enabled; Exact: all were counted, otherwise the database
	// has estimated them.
	Entities Read[int64]
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
	Trouble string
	At      time.Time
	// Most is up to how many were counted of each.
	Most int64
	// Next is when the entity is due that is due first; zero: none is in the schedule.
	Next  time.Time
	Tiers []store.TierBacklog
	// Retries are those that are due and nobody has claimed; Scheduled are all, and their
	// First is when the next is due.
	Retries, Scheduled store.Backlog
	// Effects are what follows from changes and was not done yet: messages and triggers.
	Effects store.Backlog
}

// SchedulerLook is when a scheduler has looked last, by Redis' clock.
type SchedulerLook struct {
	Process string
	Ago     time.Duration
}
