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

// dueWarn and dueBad are from when on the prefetch is late, and very late: an alert is raised
// by the second one.
const dueWarn, dueBad = 10 * time.Minute, time.Hour

// schedule tells what the page of the schedule shows of a source.
func (f *facts) schedule(source string, of *seen, now time.Time) {
	s := of.Sched
	f.Facts["schedule."+source] = fact{Text: scheduleSays(source, of, now)}
	f.Facts["prefetch."+source] = prefetchState(s)
	f.table("tiers."+source, "What is prefetched of "+source, "They could not be read.",
		[]string{"Facet", "Tier", "Entities", "Asked for", "Due now", "Behind by"}, "001011", tiersOf(s, now))
	f.table("bounds."+source, "What LOW of "+source+" may spend, in calls a second", "Redis does not answer.",
		[]string{"Bound", "LOW", "HIGH keeps"}, "011", boundsOf(of))
	f.table("rounds."+source, "What comes round by itself", "Nothing.",
		[]string{"What", "Due now", "The oldest for", "In all", "The next at"}, "01010", roundsOf(s.Due, now))
	empty := "No scheduler runs: nothing is prefetched until one does."
	switch {
	case s.unread():
		empty = "They could not be read."
	case !s.prefetches():
		empty = "None runs, and none is needed."
	case s.Schedulers.Trouble != "":
		empty = "Not known: " + s.Schedulers.Trouble + "."
	}
	f.table("schedulers."+source, "Who prefetches "+source+", together and without a leader", empty,
		[]string{"Process", "Looked last", "Share"}, "001", schedulersOf(s))
	f.table("triggers."+source, "What a change refreshes besides", "No facet triggers another one.",
		[]string{"A change of", "Refreshes", "After", "Unless refreshed within"}, "0000", triggersOf(s.Facets))
}

// unread reports whether nothing of it could be read: a source has a facet.
func (s Scheduled) unread() bool { return len(s.Facets) == 0 }

// prefetches reports whether entities of any facet are asked for by themselves.
func (s Scheduled) prefetches() bool {
	for _, f := range s.Facets {
		if f.Mode != modeOff && !s.Disabled {
			return true
		}
	}
	return false
}

// unscheduled reports whether it is to be prefetched, and nobody does.
func (s Scheduled) unscheduled() bool {
	return s.prefetches() && s.Schedulers.Trouble == "" && len(s.Schedulers.Value) == 0
}

// prefetchState is whether it is prefetched, in a word or two.
func prefetchState(s Scheduled) fact {
	switch {
	case s.unread():
		return fact{Text: "not known", Tone: toneWarn}
	case s.Disabled:
		return fact{Text: "switched off", Tone: toneWarn}
	case !s.prefetches():
		return fact{Text: "not prefetched"}
	case s.Schedulers.Trouble != "":
		return fact{Text: "not known", Tone: toneWarn}
	case s.unscheduled():
		return fact{Text: "no scheduler runs", Tone: toneBad}
	case s.Feed.Trouble == "" && s.Feed.Value == 0:
		return fact{Text: "nothing is fed", Tone: toneWarn}
	}
	return fact{Text: "prefetched", Tone: toneOK}
}

// scheduleSays is the schedule of a source in a few sentences.
func scheduleSays(source string, of *seen, now time.Time) string {
	s := of.Sched
	if s.unread() {
		return "What is prefetched of " + source + " could not be read; look again in a moment. " + lowSays(of)
	}
	if s.Disabled {
		return "Prefetching of " + source + " is switched off in the settings: its entities are fetched when somebody reads them. " + lowSays(of)
	}
	if !s.prefetches() {
		return source + " is fetched when somebody asks: no facet of it is prefetched. " + lowSays(of)
	}
	parts := []string{looksSay(s), feedSays(of), lateSays(s, now)}
	if s.Asked != nil {
		parts = append(parts, "The scheduler of this process has asked for "+several(*s.Asked, "entity", "entities")+" since it started.")
	} else {
		parts = append(parts, "How much was asked for is counted by the schedulers' processes (prefetch_asked_total), not by this one.")
	}
	return strings.Join(parts, " ")
}

func looksSay(s Scheduled) string {
	switch {
	case s.Schedulers.Trouble != "":
		return "Whether a scheduler runs is not known: " + s.Schedulers.Trouble + "."
	case s.unscheduled():
		return "No scheduler runs, so that nothing is prefetched."
	}
	newest := s.Schedulers.Value[0]
	return fmt.Sprintf("A scheduler looked %s, on %s.", lately(newest.Ago), shown(newest.Process, 60))
}

// lately is how long ago something was, in words.
func lately(d time.Duration) string {
	if d < time.Second {
		return "just now"
	}
	return span(d) + " ago"
}

// lowSays is what LOW spends of what it may.
func lowSays(of *seen) string {
	if of.Limits == nil {
		return "What LOW spends is not known: Redis does not answer."
	}
	may := perSecond(of.Limits.Low.PerSecond)
	if !of.Rates.Known {
		return "LOW may spend " + may + " calls a second; how many it does is known in a moment."
	}
	return "LOW spends " + rated(of.Rates.Low) + " calls a second of the " + may + " that it may."
}

// feedSays is what LOW spends, and what prefetching may.
func feedSays(of *seen) string {
	s, uses := of.Sched, lowSays(of)
	switch {
	case s.Feed.Trouble != "":
		return uses + " What prefetching may is not known: " + s.Feed.Trouble + "."
	case s.Feed.Value > 0:
		return uses + " Prefetching may feed it " + perSecond(s.Feed.Value) + " a second."
	}
	return uses + " Prefetching feeds it nothing: " + feedsNothing(of) + "."
}

// feedsNothing is why.
func feedsNothing(of *seen) string {
	low := lowLane(of.Lanes)
	switch v := of.Limits; {
	case v == nil:
		return "the limiter can't be asked"
	case !goes(v.State):
		return brakeSays(v, v.At)
	case v.Low.PerSecond == 0:
		return "LOW may make no call now; the bounds below say why"
	case of.Sched.RateCap != nil && *of.Sched.RateCap == 0:
		return "its own rate cap is 0 at this hour"
	case !low.Known:
		return "how much waits in the LOW lane is not known"
	case low.Wait >= behindBad:
		return "the LOW lane is " + span(low.Wait) + " behind"
	}
	return "nobody has worked on the LOW lane lately"
}

func lateSays(s Scheduled, now time.Time) string {
	switch d := s.Due; {
	case d.Trouble != "":
		return "What is due is not known: " + d.Trouble + "."
	case d.Next.IsZero():
		return "No entity is in the schedule yet: reads put them there, and `freshet entities import`."
	case d.Next.After(now):
		return "Nothing is behind; the next entity is due in " + span(d.Next.Sub(now)) + "."
	default:
		return "The entity that is due first has waited for " + span(now.Sub(d.Next)) + "."
	}
}
