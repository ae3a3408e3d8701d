package console

import (
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// tierRows returns a table row for each tier of each prefetched facet, and one row for each facet
// that is not prefetched.
func tierRows(s status.Schedule, now time.Time) [][]statusItem {
	rows := [][]statusItem{}
	for _, facet := range s.Facets {
		name := statusItem{Text: facet.Facet}
		if facet.Mode == modeOff {
			rows = append(rows, []statusItem{name, {Text: "all"}, entityCount(facet.Tiers[:]...), {Text: "on demand"}, {Text: ""}, {Text: "off"}})
			continue
		}
		for tier, t := range facet.Tiers {
			every := "every " + formatDuration(t.Interval)
			if facet.Mode == modeAdaptive {
				every = "every " + formatDuration(facet.MinInterval) + " to " + formatDuration(facet.MaxInterval) + ", by its changes and reads"
			}
			due, lag := dueCells(s.Due, facet, prefetched.Tier(tier), now)
			rows = append(rows, []statusItem{name, {Text: tierName(prefetched.Tier(tier))}, entityCount(t), {Text: every}, due, lag})
		}
	}
	return rows
}

// entityCount returns the number of entities in these tiers together.
func entityCount(tiers ...status.TierSchedule) statusItem {
	n, exactly := int64(0), true
	for _, t := range tiers {
		if t.Entities.Error != "" {
			return statusItem{Text: "not known: " + t.Entities.Error}
		}
		n, exactly = n+t.Entities.Value, exactly && t.Exact
	}
	if exactly {
		return statusItem{Text: status.FormatInt(n)}
	}
	return statusItem{Text: "about " + formatCount(n)}
}

// dueCells returns two table cells for a tier: how many of its entities are due, and its lag. The
// database counts only the MaxCounted entities of the source with the earliest due times. If all of
// the counted entities belong to other tiers, the cells contain "not counted" and the maximum
// possible lag. Example: if the last counted entity has been due for 5 min, the lag of this tier is
// "at most 5 min".
func dueCells(d status.Due, facet status.FacetSchedule, tier prefetched.Tier, now time.Time) (due, lagCell statusItem) {
	if d.Error != "" {
		return statusItem{Text: "not known: " + d.Error}, statusItem{Text: "not known"}
	}
	total, last := int64(0), time.Time{}
	var found prefetched.TierBacklog
	for _, t := range d.Tiers {
		total += t.Count
		if t.Last.After(last) {
			last = t.Last
		}
		if t.Facet == facet.Facet && t.Tier == tier {
			found = t
		}
	}
	more := total >= d.MaxCounted
	late := now.Sub(found.Oldest)
	switch {
	case found.Count == 0 && more:
		return statusItem{Text: "not counted"}, statusItem{Text: "at most " + formatDuration(max(0, now.Sub(last)))}
	case found.Count == 0:
		return statusItem{Text: "0"}, statusItem{Text: "nothing", Tone: toneOK}
	case !facet.ReadyAt.IsZero():
		return statusItem{Text: formatCounted(found.Count, more)}, statusItem{Text: "content is ready at " + formatTime(facet.ReadyAt, now)}
	}
	return statusItem{Text: formatCounted(found.Count, more)}, statusItem{Text: formatDuration(late), Tone: delayTone(late)}
}

func delayTone(late time.Duration) string {
	switch {
	case late < prefetchLagWarn:
		return toneOK
	case late < prefetchLagBad:
		return toneWarn
	}
	return toneBad
}

// formatCounted formats a count. "more" means that counting stopped early, and the true number may
// be higher.
func formatCounted(n int64, more bool) string {
	if more {
		return status.FormatInt(n) + " or more"
	}
	return status.FormatInt(n)
}

// boundRows returns a table row for each limit that bounds the rate of the LOW lane or of
// prefetching.
func boundRows(of *sourceSample) [][]statusItem {
	if of.Limits == nil {
		return nil
	}
	rows := [][]statusItem{}
	add := func(name, rate, reserved string) {
		rows = append(rows, []statusItem{{Text: name}, {Text: rate}, {Text: reserved}})
	}
	for _, b := range of.Limits.Low.Bounds {
		policy := displayText(b.Policy, 60)
		switch b.Kind {
		case limiter.ByWindow:
			add("share of "+policy, formatRate(b.PerSecond), formatRate(b.Reserved))
		case limiter.ByDay:
			add("rest of the "+policy, formatRate(b.PerSecond), formatRate(b.Reserved))
		}
	}
	add("LOW limit now", formatLimit(of.Limits.Low.PerSecond), "")
	if of.Schedule.RateCap != nil {
		add("prefetch rate cap of this hour", formatRate(*of.Schedule.RateCap), "")
	}
	feed := formatLimit(of.Schedule.FeedRate.Value)
	if of.Schedule.FeedRate.Error != "" {
		feed = "not known: " + of.Schedule.FeedRate.Error
	}
	add("prefetch limit now", feed, "")
	return rows
}

// backlogRows returns a table row for the due retries, and one for the outbox.
func backlogRows(d status.Due, now time.Time) [][]statusItem {
	rows := [][]statusItem{}
	add := func(what string, due store.Backlog) []statusItem {
		row := []statusItem{{Text: what}, {Text: formatCounted(due.Count, due.Count >= d.MaxCounted)}, {Text: "none"}, {Text: ""}, {Text: ""}}
		if due.Count > 0 {
			late := now.Sub(due.Oldest)
			row[2] = statusItem{Text: formatDuration(late), Tone: delayTone(late)}
		}
		rows = append(rows, row)
		return row
	}
	if d.Error != "" {
		unknown := statusItem{Text: "not known: " + d.Error}
		for _, what := range []string{retriesLabel, outboxLabel} {
			rows = append(rows, []statusItem{{Text: what}, unknown, {Text: ""}, {Text: ""}, {Text: ""}})
		}
		return rows
	}
	retries := add(retriesLabel, d.Retries)
	retries[3].Text, retries[4].Text = formatCounted(d.Scheduled.Count, d.Scheduled.Count >= d.MaxCounted), "none"
	switch {
	case d.Scheduled.Count == 0:
	case d.Scheduled.Oldest.After(now):
		retries[4].Text = formatTime(d.Scheduled.Oldest, now)
	default:
		retries[4].Text = "due"
	}
	add(outboxLabel, d.Outbox)
	return rows
}

const (
	retriesLabel = "retries"
	outboxLabel  = "outbox: change events and triggers"
)

func schedulerRows(s status.Schedule) [][]statusItem {
	rows := [][]statusItem{}
	for _, p := range s.Schedulers.Value {
		rows = append(rows, []statusItem{{Text: displayText(p.Process, 60)}, {Text: formatElapsed(p.Age)}, {Text: formatPercent(1, int64(len(s.Schedulers.Value)))}})
	}
	return rows
}

func triggerRows(all []status.FacetSchedule) [][]statusItem {
	rows := [][]statusItem{}
	for _, f := range all {
		for _, t := range f.Triggers {
			within := formatDuration(t.Backoff)
			if t.Backoff == 0 {
				within = "always"
			}
			after := "at once"
			if t.Quiet > 0 {
				after = "a quiet time of " + formatDuration(t.Quiet) + ", at most " + formatDuration(t.MaxDelay)
			}
			rows = append(rows, []statusItem{{Text: f.Facet}, {Text: t.Facet}, {Text: after}, {Text: within}})
		}
	}
	return rows
}

func lowLane(all []LaneLag) LaneLag {
	for _, l := range all {
		if l.Lane == schemas.Low {
			return l
		}
	}
	return LaneLag{}
}
