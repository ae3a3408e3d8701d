package console

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
)

func (c *Console) schedule(w http.ResponseWriter, r *http.Request, _ access.Client) {
	c.showLive(w, r, "schedule", "Schedule")
}

// The modes of a facet that are told apart here.
const (
	modeOff      = "off"
	modeAdaptive = "adaptive"
)

// prefetchLagWarn and dueBad are from when on the prefetch is late, and very late: an alert is raised
// by the second one.
const prefetchLagWarn, prefetchLagBad = 10 * time.Minute, time.Hour

// addSchedule tells what the page of the schedule shows of a source.
func (f *liveStatus) addSchedule(source string, of *sourceSample, now time.Time) {
	s := of.Schedule
	f.Items["schedule."+source] = statusItem{Text: scheduleMessage(source, of, now)}
	f.Items["prefetch."+source] = prefetchState(s)
	f.addTable("tiers."+source, "What is prefetched of "+source, "They could not be read.",
		[]string{"Facet", "Tier", "Entities", "Asked for", "Due now", "Behind by"}, "001011", tierRows(s, now))
	f.addTable("bounds."+source, "What LOW of "+source+" may spend, in calls a second", "Redis does not answer.",
		[]string{"Bound", "LOW", "HIGH keeps"}, "011", boundRows(of))
	f.addTable("rounds."+source, "What comes round by itself", "Nothing.",
		[]string{"What", "Due now", "The oldest for", "In all", "The next at"}, "01010", backlogRows(s.Due, now))
	empty := "No scheduler runs: nothing is prefetched until one does."
	switch {
	case s.unknown():
		empty = "They could not be read."
	case !s.prefetches():
		empty = "None runs, and none is needed."
	case s.Schedulers.Error != "":
		empty = "Not known: " + s.Schedulers.Error + "."
	}
	f.addTable("schedulers."+source, "Who prefetches "+source+", together and without a leader", empty,
		[]string{"Process", "Looked last", "Share"}, "001", schedulerRows(s))
	f.addTable("triggers."+source, "What a change refreshes besides", "No facet triggers another one.",
		[]string{"A change of", "Refreshes", "After", "Unless refreshed within"}, "0000", triggerRows(s.Facets))
}

// unknown reports whether nothing of it could be read: a source has a facet.
func (s ScheduleState) unknown() bool { return len(s.Facets) == 0 }

// prefetches reports whether entities of any facet are asked for by themselves.
func (s ScheduleState) prefetches() bool {
	for _, f := range s.Facets {
		if f.Mode != modeOff && !s.Disabled {
			return true
		}
	}
	return false
}

// unscheduled reports whether it is to be prefetched, and nobody does.
func (s ScheduleState) unscheduled() bool {
	return s.prefetches() && s.Schedulers.Error == "" && len(s.Schedulers.Value) == 0
}

// prefetchState is whether it is prefetched, in a word or two.
func prefetchState(s ScheduleState) statusItem {
	switch {
	case s.unknown():
		return statusItem{Text: "not known", Tone: toneWarn}
	case s.Disabled:
		return statusItem{Text: "switched off", Tone: toneWarn}
	case !s.prefetches():
		return statusItem{Text: "not prefetched"}
	case s.Schedulers.Error != "":
		return statusItem{Text: "not known", Tone: toneWarn}
	case s.unscheduled():
		return statusItem{Text: "no scheduler runs", Tone: toneBad}
	case s.FeedRate.Error == "" && s.FeedRate.Value == 0:
		return statusItem{Text: "nothing is fed", Tone: toneWarn}
	}
	return statusItem{Text: "prefetched", Tone: toneOK}
}

// scheduleMessage is the schedule of a source in a few sentences.
func scheduleMessage(source string, of *sourceSample, now time.Time) string {
	s := of.Schedule
	if s.unknown() {
		return "What is prefetched of " + source + " could not be read; look again in a moment. " + lowUsageMessage(of)
	}
	if s.Disabled {
		return "Prefetching of " + source + " is switched off in the settings: its entities are fetched when somebody reads them. " + lowUsageMessage(of)
	}
	if !s.prefetches() {
		return source + " is fetched when somebody asks: no facet of it is prefetched. " + lowUsageMessage(of)
	}
	parts := []string{schedulersMessage(s), feedMessage(of), scheduleLagMessage(s, now)}
	if s.Requested != nil {
		parts = append(parts, "The scheduler of this process has asked for "+plural(*s.Requested, "entity", "entities")+" since it started.")
	} else {
		parts = append(parts, "How much was asked for is counted by the schedulers' processes (prefetch_requested_total), not by this one.")
	}
	return strings.Join(parts, " ")
}

func schedulersMessage(s ScheduleState) string {
	switch {
	case s.Schedulers.Error != "":
		return "Whether a scheduler runs is not known: " + s.Schedulers.Error + "."
	case s.unscheduled():
		return "No scheduler runs, so that nothing is prefetched."
	}
	newest := s.Schedulers.Value[0]
	return fmt.Sprintf("A scheduler looked %s, on %s.", formatElapsed(newest.Age), displayText(newest.Process, 60))
}

// formatElapsed is how long ago something was, in words.
func formatElapsed(d time.Duration) string {
	if d < time.Second {
		return "just now"
	}
	return formatDuration(d) + " ago"
}

// lowUsageMessage is what LOW spends of what it may.
func lowUsageMessage(of *sourceSample) string {
	if of.Limits == nil {
		return "What LOW spends is not known: Redis does not answer."
	}
	may := formatLimit(of.Limits.Low.PerSecond)
	if !of.Rates.Known {
		return "LOW may spend " + may + " calls a second; how many it does is known in a moment."
	}
	return "LOW spends " + formatRate(of.Rates.Low) + " calls a second of the " + may + " that it may."
}

// feedMessage is what LOW spends, and what prefetching may.
func feedMessage(of *sourceSample) string {
	s, uses := of.Schedule, lowUsageMessage(of)
	switch {
	case s.FeedRate.Error != "":
		return uses + " What prefetching may is not known: " + s.FeedRate.Error + "."
	case s.FeedRate.Value > 0:
		return uses + " Prefetching may feed it " + formatLimit(s.FeedRate.Value) + " a second."
	}
	return uses + " Prefetching feeds it nothing: " + noFeedReason(of) + "."
}

// noFeedReason is why.
func noFeedReason(of *sourceSample) string {
	low := lowLane(of.Lanes)
	switch v := of.Limits; {
	case v == nil:
		return "the limiter can't be asked"
	case !callsAllowed(v.State):
		return brakeSays(v, v.At)
	case v.Low.PerSecond == 0:
		return "LOW may make no call now; the bounds below say why"
	case of.Schedule.RateCap != nil && *of.Schedule.RateCap == 0:
		return "its own rate cap is 0 at this hour"
	case !low.RecordsKnown:
		return "how much waits in the LOW lane is not known"
	case low.Wait >= lagBad:
		return "the LOW lane is " + formatDuration(low.Wait) + " behind"
	}
	return "nobody has worked on the LOW lane lately"
}

func scheduleLagMessage(s ScheduleState, now time.Time) string {
	switch d := s.Due; {
	case d.Error != "":
		return "What is due is not known: " + d.Error + "."
	case d.Next.IsZero():
		return "No entity is in the schedule yet: reads put them there, and `freshet entities import`."
	case d.Next.After(now):
		return "Nothing is behind; the next entity is due in " + formatDuration(d.Next.Sub(now)) + "."
	default:
		return "The entity that is due first has waited for " + formatDuration(now.Sub(d.Next)) + "."
	}
}
