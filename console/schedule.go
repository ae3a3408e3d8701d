package console

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/status"
)

func (c *livePages) schedule(w http.ResponseWriter, r *http.Request, _ access.Client) {
	c.showLive(w, r, "schedule", "Schedule")
}

// Values of status.FacetSchedule.Mode for which the console has its own texts.
const (
	modeOff      = "off"
	modeAdaptive = "adaptive"
)

// prefetchLagWarn and prefetchLagBad are limits for the prefetch lag of a tier: the time for which
// its longest waiting entity has been due. A lag from prefetchLagWarn on is shown as a warning, and
// from prefetchLagBad on as a problem. At prefetchLagBad an alert fires too.
const prefetchLagWarn, prefetchLagBad = 10 * time.Minute, time.Hour

// addSchedule adds the changing texts and tables of the schedule page for one source.
func (f *liveStatus) addSchedule(source string, of *sourceSample, now time.Time) {
	s := of.Schedule
	f.Items["schedule."+source] = statusItem{Text: scheduleMessage(source, of, now)}
	f.Items["prefetch."+source] = prefetchState(s)
	f.addTable("tiers."+source, "Prefetch tiers of "+source, "Not available: the read failed.",
		[]column{textColumn("Facet"), textColumn("Tier").explained("tier"), numberColumn("Entities"), textColumn("Interval"), numberColumn("Due now").explained("due time"), numberColumn("Lag")}, tierRows(s, now))
	f.addTable("bounds."+source, "LOW budget of "+source+", in calls a second", "Redis does not answer.",
		[]column{textColumn("Bound"), numberColumn("LOW"), numberColumn("Reserved for HIGH").explained("reserve")}, boundRows(of))
	f.addTable("backlogs."+source, "Retries and outbox of "+source, "Nothing.",
		[]column{textColumn("Kind"), numberColumn("Due now"), textColumn("Oldest due"), numberColumn("Total"), textColumn("Next at")}, backlogRows(s.Due, now))
	f.addTable("collections."+source, "Collections of "+source, collectionsEmpty(s), collectionColumns, collectionRows(s, now))
	empty := "No scheduler is running: nothing is prefetched."
	switch {
	case s.Unknown():
		empty = "Not available: the read failed."
	case !s.Prefetches():
		empty = "No scheduler is running, and none is needed."
	case s.Schedulers.Error != "":
		empty = "Not known: " + s.Schedulers.Error + "."
	}
	f.addTable("schedulers."+source, "Schedulers of "+source, empty,
		[]column{textColumn("Process"), textColumn("Last tick"), numberColumn("Share")}, schedulerRows(s))
	f.addTable("triggers."+source, "Triggers of "+source, "No facet triggers another one.",
		[]column{textColumn("A change of").explained("trigger"), textColumn("Refreshes"), textColumn("After"), textColumn("Unless refreshed within")}, triggerRows(s.Facets))
}

// prefetchState describes in a few words whether prefetching works.
func prefetchState(s status.Schedule) statusItem {
	switch {
	case s.Unknown():
		return statusItem{Text: "not known", Tone: toneWarn}
	case s.Disabled:
		return statusItem{Text: "switched off", Tone: toneWarn}
	case !s.Prefetches():
		return statusItem{Text: "not prefetched"}
	case s.Schedulers.Error != "":
		return statusItem{Text: "not known", Tone: toneWarn}
	case s.Unscheduled():
		return statusItem{Text: "no scheduler is running", Tone: toneBad}
	case s.FeedRate.Error == "" && s.FeedRate.Value == 0:
		return statusItem{Text: "nothing is enqueued", Tone: toneWarn}
	}
	return statusItem{Text: "prefetched", Tone: toneOK}
}

// scheduleMessage describes the prefetching of a source in a few sentences.
func scheduleMessage(source string, of *sourceSample, now time.Time) string {
	s := of.Schedule
	if s.Unknown() {
		return "The schedule of " + source + " could not be read; try again in a moment. " + lowUsageMessage(of)
	}
	if s.Disabled {
		return "Prefetching of " + source + " is disabled in the settings: entities are fetched when they are read. " + lowUsageMessage(of)
	}
	if !s.Prefetches() {
		return source + " is fetched on demand: no facet is prefetched. " + lowUsageMessage(of)
	}
	parts := []string{schedulersMessage(s), feedMessage(of), scheduleLagMessage(s, now)}
	if s.Requested != nil {
		parts = append(parts, "The scheduler of this process has requested "+plural(*s.Requested, "entity", "entities")+" since it started.")
	} else {
		parts = append(parts, "The number of requests is a metric of the scheduler processes (prefetch_requested_total).")
	}
	return strings.Join(parts, " ")
}

func schedulersMessage(s status.Schedule) string {
	switch {
	case s.Schedulers.Error != "":
		return "Whether a scheduler is running is unknown: " + s.Schedulers.Error + "."
	case s.Unscheduled():
		return "No scheduler is running, so nothing is prefetched."
	}
	newest := s.Schedulers.Value[0]
	return fmt.Sprintf("The last scheduler tick was %s, on %s.", formatElapsed(newest.Age), displayText(newest.Process, 60))
}

// formatElapsed formats the time since an event: "just now", "5 min ago".
func formatElapsed(d time.Duration) string {
	if d < time.Second {
		return "just now"
	}
	return formatDuration(d) + " ago"
}

// lowUsageMessage describes how many calls a second the LOW lane makes and may make.
func lowUsageMessage(of *sourceSample) string {
	if of.Limits == nil {
		return "The LOW rate is unknown: Redis does not answer."
	}
	may := formatLimit(of.Limits.Low.PerSecond)
	if !of.Rates.Known {
		return "LOW may make " + may + " calls a second. Its current rate appears in a few seconds."
	}
	return "LOW makes " + formatRate(of.Rates.Low) + " of the allowed " + may + " calls a second."
}

// feedMessage describes the rate of the LOW lane, and which part of that rate prefetching may use.
func feedMessage(of *sourceSample) string {
	s, uses := of.Schedule, lowUsageMessage(of)
	switch {
	case s.FeedRate.Error != "":
		return uses + " The prefetch rate is unknown: " + s.FeedRate.Error + "."
	case s.FeedRate.Value > 0:
		return uses + " Prefetching may use " + formatLimit(s.FeedRate.Value) + " of these calls."
	}
	return uses + " Prefetching is paused: " + noFeedReason(of) + "."
}

// noFeedReason returns the reason why the schedulers may enqueue no prefetch requests now.
func noFeedReason(of *sourceSample) string {
	low := lowLane(of.Lanes)
	switch v := of.Limits; {
	case v == nil:
		return "the limiter could not be read"
	case !v.State.AllowsCalls():
		return stateMessage(v, v.At)
	case v.Low.PerSecond == 0:
		return "LOW may make no call now; see the bounds below"
	case of.Schedule.RateCap != nil && *of.Schedule.RateCap == 0:
		return "the prefetch rate cap of this hour is 0"
	case !low.RecordsKnown:
		return "the backlog of the LOW lane is unknown"
	case low.Wait >= lagBad:
		return "the lag of the LOW lane is " + formatDuration(low.Wait)
	}
	return "no worker has processed the LOW lane recently"
}

func scheduleLagMessage(s status.Schedule, now time.Time) string {
	switch d := s.Due; {
	case d.Error != "":
		return "The due entities are unknown: " + d.Error + "."
	case d.Next.IsZero():
		return "No entity is registered yet: reads and `freshet entities import` register them."
	case d.Next.After(now):
		return "No entity is overdue; the next entity is due in " + formatDuration(d.Next.Sub(now)) + "."
	default:
		return "The oldest due entity has waited for " + formatDuration(now.Sub(d.Next)) + "."
	}
}
