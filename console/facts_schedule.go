package console

import (
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// tiersOf has a row for each tier that is prefetched, and one for each facet that is not.
func tiersOf(s Scheduled, now time.Time) [][]fact {
	rows := [][]fact{}
	for _, facet := range s.Facets {
		name := fact{Text: facet.Facet}
		if facet.Mode == modeOff {
			rows = append(rows, []fact{name, {Text: "all"}, entitiesOf(facet.Tiers[:]...), {Text: "not by itself"}, {Text: ""}, {Text: "off"}})
			continue
		}
		for tier, t := range facet.Tiers {
			every := "every " + span(t.Every)
			if facet.Mode == modeAdaptive {
				every = "every " + span(facet.Least) + " to " + span(facet.Most) + ", by its changes and reads"
			}
			due, behind := dueOf(s.Due, facet, store.Tier(tier), now)
			rows = append(rows, []fact{name, {Text: tierName(store.Tier(tier))}, entitiesOf(t), {Text: every}, due, behind})
		}
	}
	return rows
}

// entitiesOf is how many entities tiers have.
func entitiesOf(tiers ...TierSchedule) fact {
	n, exactly := int64(0), true
	for _, t := range tiers {
		if t.Entities.Trouble != "" {
			return fact{Text: "not known: " + t.Entities.Trouble}
		}
		n, exactly = n+t.Entities.Value, exactly && t.Exact
	}
	if exactly {
		return fact{Text: exact(n)}
	}
	return fact{Text: "about " + count(n)}
}

// dueOf is how many entities of a tier are due, and how far it is behind. Only those that are
// due first were counted: of a tier that is not among them it is known when it would be.
func dueOf(d Due, facet FacetSchedule, tier store.Tier, now time.Time) (due, behind fact) {
	if d.Trouble != "" {
		return fact{Text: "not known: " + d.Trouble}, fact{Text: "not known"}
	}
	total, last := int64(0), time.Time{}
	var found store.TierBacklog
	for _, t := range d.Tiers {
		total += t.Count
		if t.Last.After(last) {
			last = t.Last
		}
		if t.Facet == facet.Facet && t.Tier == tier {
			found = t
		}
	}
	more := total >= d.Most
	late := now.Sub(found.Oldest)
	switch {
	case found.Count == 0 && more:
		return fact{Text: "not counted"}, fact{Text: "at most " + span(max(0, now.Sub(last)))}
	case found.Count == 0:
		return fact{Text: "0"}, fact{Text: "nothing", Tone: toneOK}
	case !facet.Ready.IsZero():
		return fact{Text: atLeast(found.Count, more)}, fact{Text: "waits for its content until " + clock(facet.Ready, now)}
	}
	return fact{Text: atLeast(found.Count, more)}, fact{Text: span(late), Tone: lateTone(late)}
}

func lateTone(late time.Duration) string {
	switch {
	case late < dueWarn:
		return toneOK
	case late < dueBad:
		return toneWarn
	}
	return toneBad
}

// atLeast is a number that may have been counted up to a bound only.
func atLeast(n int64, more bool) string {
	if more {
		return exact(n) + " or more"
	}
	return exact(n)
}

// boundsOf is what bounds LOW, and prefetching besides.
func boundsOf(of *seen) [][]fact {
	if of.Limits == nil {
		return nil
	}
	rows := [][]fact{}
	add := func(name, rate, kept string) {
		rows = append(rows, []fact{{Text: name}, {Text: rate}, {Text: kept}})
	}
	for _, b := range of.Limits.Low.Bounds {
		policy := shown(b.Policy, 60)
		switch b.Kind {
		case limiter.ByWindow:
			add("its share of "+policy, rated(b.PerSecond), rated(b.Reserved))
		case limiter.ByRateCap:
			add("its rate cap at this hour", rated(b.PerSecond), "")
		case limiter.ByDay:
			add("the rest of the "+policy, rated(b.PerSecond), rated(b.Reserved))
		}
	}
	add("LOW may now", perSecond(of.Limits.Low.PerSecond), "")
	if of.Sched.RateCap != nil {
		add("prefetching, this hour", rated(*of.Sched.RateCap), "")
	}
	feed := perSecond(of.Sched.Feed.Value)
	if of.Sched.Feed.Trouble != "" {
		feed = "not known: " + of.Sched.Feed.Trouble
	}
	add("prefetching may now", feed, "")
	return rows
}

// roundsOf is what has failed and is due again, and what follows from changes.
func roundsOf(d Due, now time.Time) [][]fact {
	rows := [][]fact{}
	add := func(what string, due store.Backlog) []fact {
		row := []fact{{Text: what}, {Text: atLeast(due.Count, due.Count >= d.Most)}, {Text: "none"}, {Text: ""}, {Text: ""}}
		if due.Count > 0 {
			late := now.Sub(due.Oldest)
			row[2] = fact{Text: span(late), Tone: lateTone(late)}
		}
		rows = append(rows, row)
		return row
	}
	if d.Trouble != "" {
		unknown := fact{Text: "not known: " + d.Trouble}
		for _, what := range []string{retriesAre, effectsAre} {
			rows = append(rows, []fact{{Text: what}, unknown, {Text: ""}, {Text: ""}, {Text: ""}})
		}
		return rows
	}
	retries := add(retriesAre, d.Retries)
	retries[3].Text, retries[4].Text = atLeast(d.Scheduled.Count, d.Scheduled.Count >= d.Most), "none"
	switch {
	case d.Scheduled.Count == 0:
	case d.Scheduled.Oldest.After(now):
		retries[4].Text = clock(d.Scheduled.Oldest, now)
	default:
		retries[4].Text = "due"
	}
	add(effectsAre, d.Effects)
	return rows
}

const (
	retriesAre = "retries of what has failed"
	effectsAre = "what follows from changes: messages and triggers"
)

func schedulersOf(s Scheduled) [][]fact {
	rows := [][]fact{}
	for _, p := range s.Schedulers.Value {
		rows = append(rows, []fact{{Text: shown(p.Process, 60)}, {Text: lately(p.Ago)}, {Text: share(1, int64(len(s.Schedulers.Value)))}})
	}
	return rows
}

func triggersOf(all []FacetSchedule) [][]fact {
	rows := [][]fact{}
	for _, f := range all {
		for _, t := range f.Triggers {
			within := span(t.Backoff)
			if t.Backoff == 0 {
				within = "always"
			}
			after := "at once"
			if t.Quiet > 0 {
				after = "a pause of " + span(t.Quiet) + ", at most " + span(t.MaxDelay)
			}
			rows = append(rows, []fact{{Text: f.Facet}, {Text: t.Facet}, {Text: after}, {Text: within}})
		}
	}
	return rows
}

func lowLane(all []Lane) Lane {
	for _, l := range all {
		if l.Lane == schemas.Low {
			return l
		}
	}
	return Lane{}
}
