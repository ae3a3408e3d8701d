package status

import (
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// Schedule is the state of the prefetching of one source.
type Schedule struct {
	Facets []FacetSchedule
	// Disabled is true if the settings disable prefetching.
	Disabled bool
	Due      Due
	// FeedRate is the rate, in calls a second, at which all schedulers together may enqueue
	// prefetch requests in the LOW lane now. RateCap is the prefetch rate cap of this hour, in
	// calls a second; nil: there is none.
	FeedRate Reading[float64]
	RateCap  *float64
	// Schedulers are the running schedulers of the source. The scheduler with the most recent
	// heartbeat is first.
	Schedulers Reading[[]Heartbeat]
	// Collections has the totals of the source's collections for each facet. At most MaxCollections
	// collections are counted.
	Collections    Reading[[]collection.Totals]
	MaxCollections int64
	// Requested is the number of prefetch requests that the scheduler of this process has enqueued
	// since its start. nil: this process runs no scheduler.
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
	Mode  string // prefetch mode: "off", "tiers" or "adaptive"
	// MinInterval and MaxInterval bound the intervals in the adaptive mode.
	MinInterval, MaxInterval time.Duration
	// ReadyAt is the time at which the upstream will publish the content of the day. Until then no
	// entity of the facet is prefetched. zero: the content is already published.
	ReadyAt  time.Time
	Tiers    [3]TierSchedule // the tiers of the facet, indexed by prefetched.Tier
	Triggers []TriggerSchedule
}

// TierSchedule describes one tier of a facet.
type TierSchedule struct {
	Interval time.Duration
	// Entities is the number of enabled entities in the tier. If Exact is false, the database has
	// only estimated the number.
	Entities Reading[int64]
	Exact    bool
}

// TriggerSchedule describes a trigger: a change of the facet with the trigger refreshes the facet
// named Facet. Facet is not refreshed if its last refresh is younger than Backoff. If Quiet is 0,
// the refresh is enqueued at once. Otherwise it is enqueued when no further change was found for
// the time Quiet, but at most MaxDelay after the first change.
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
	// MaxCounted is the limit of each count in Due: the database stops counting there. If a count
	// equals MaxCounted, the true number may be higher.
	MaxCounted int64
	// Next is the earliest due time; zero: no entity is scheduled.
	Next  time.Time
	Tiers []prefetched.TierBacklog
	// Retries counts the due retries that no process has claimed. Scheduled counts all retries,
	// including future ones; Scheduled.Oldest is the time of the earliest retry.
	Retries, Scheduled store.Backlog
	// Outbox counts the change events and triggers in the outbox that are not delivered yet.
	Outbox store.Backlog
}

// Unknown reports whether the schedule could not be read. Each source has at least one facet, so an
// empty list of facets means that the read failed.
func (s Schedule) Unknown() bool { return len(s.Facets) == 0 }

// Prefetches reports whether prefetching is enabled for at least one facet.
func (s Schedule) Prefetches() bool {
	for _, f := range s.Facets {
		if f.Mode != string(scheduler.Off) && !s.Disabled {
			return true
		}
	}
	return false
}

// Unscheduled reports whether facets should be prefetched, but no scheduler is running.
func (s Schedule) Unscheduled() bool {
	return s.Prefetches() && s.Schedulers.Error == "" && len(s.Schedulers.Value) == 0
}
