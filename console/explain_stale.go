package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// around is what goes on around an entity: what its source's limiter does, nil if that is
// not known, and how far behind its lanes are.
type around struct {
	limits *limiter.View
	lanes  []Lane
}

// whyStale says why an entity is as old as it is, and what is going to happen with it.
func whyStale(e Entity, a around, now time.Time) string {
	said := []string{ageSays(e, now)}
	add := func(text string) {
		if text != "" {
			said = append(said, text)
		}
	}
	add(holdSays(e, now))
	asked := waySays(e, a, now)
	add(asked)
	if e.Coalesce.CooledTill.After(now) {
		add("A person asked for it a moment ago; it can be asked for again at " + clock(e.Coalesce.CooledTill, now) + ".")
	}
	for _, h := range waitsOf(e, a, now) {
		switch h.Of {
		case ofAll:
			add(e.Entity.Source + " as a whole waits: " + h.Says + ".")
		case ofLane, ofFirst:
			add("Of its lane: " + h.Says + ".")
		case ofPart:
			add("It may need a part of " + e.Entity.Source + " that waits: " + h.Says + ".")
		}
	}
	if asked == "" && !held(e, now) {
		add(nextSays(e, now))
	}
	return strings.Join(said, " ")
}

// waitsOf is what an entity would wait for: in the lane of its request, or in either.
func waitsOf(e Entity, a around, now time.Time) []hindrance {
	if e.Coalesce.Lane != "" {
		return waitsFor(a.limits, e.Coalesce.Lane, now)
	}
	return hindrances(a.limits, now)
}

// goes reports whether calls are made in a state of the limiter.
func goes(state string) bool {
	return state == stateFlowing || state == stateRamping || state == stateUnused
}

// served is what reads make of what is stored; package query judges it for them.
type served int

const (
	servedNothing  served = iota // nothing is stored that could be
	servedAbsent                 // that there is no such entity, and that is believed
	servedNoLonger               // an absence that is not believed any more, and told until it is checked
	servedTooOld                 // content that is kept for too long, and not served
	servedFresh
	servedStale
)

func servedOf(e Entity, now time.Time) served {
	age := now.Sub(e.State.CheckedAt)
	switch {
	case !e.Stored:
		return servedNothing
	case e.State.Absent && age < e.AbsentFor:
		return servedAbsent
	case e.State.Absent:
		return servedNoLonger
	case !e.State.HasContent():
		return servedNothing
	case e.KeepFor > 0 && now.Sub(e.State.FetchedAt) >= e.KeepFor:
		return servedTooOld
	case age < e.FreshFor:
		return servedFresh
	}
	return servedStale
}

// fresh reports whether nobody who reads it asks for it.
func fresh(e Entity, now time.Time) bool {
	s := servedOf(e, now)
	return s == servedFresh || s == servedAbsent
}

func ageSays(e Entity, now time.Time) string {
	checked := ago(e.State.CheckedAt, now)
	switch servedOf(e, now) {
	case servedNothing:
	case servedAbsent:
		return fmt.Sprintf("The upstream said %s that there is no such entity, and that is believed for %s, until %s.",
			checked, span(e.AbsentFor), clock(e.State.CheckedAt.Add(e.AbsentFor), now))
	case servedNoLonger:
		return fmt.Sprintf("The upstream said %s that there is no such entity, which is believed for %s.", checked, span(e.AbsentFor))
	case servedTooOld:
		return fmt.Sprintf("Its content was fetched %s and kept for %s: it is not served any more, and readers wait for the next. Checked %s.",
			ago(e.State.FetchedAt, now), span(e.KeepFor), checked)
	case servedFresh:
		return fmt.Sprintf("It is not stale. Checked %s, and fresh for %s, until %s.", checked, span(e.FreshFor), clock(e.State.CheckedAt.Add(e.FreshFor), now))
	case servedStale:
		return fmt.Sprintf("Checked %s, and fresh for %s.", checked, span(e.FreshFor))
	}
	return "Nothing is stored of it."
}

// held reports whether nobody but a person has it asked for now.
func held(e Entity, now time.Time) bool {
	switch e.Status.State {
	case store.Suspended, store.Retrying:
		return true
	case store.Failed:
		return e.Status.Until.After(now)
	}
	return e.Coalesce.Hold != "" && e.Coalesce.HoldUntil.After(now)
}

func holdSays(e Entity, now time.Time) string {
	s := e.Status
	reason := ""
	if s.Reason != "" {
		reason = " (" + shown(s.Reason, reasonShown) + ")"
	}
	switch s.State {
	case store.Retrying:
		failed := "It is held: its last request failed " + ago(s.UpdatedAt, now) + reason
		if !s.Until.After(now) {
			return fmt.Sprintf("%s, and a retry has been due since %s.", failed, clock(s.Until, now))
		}
		return fmt.Sprintf("%s, and it is asked for again at %s.", failed, clock(s.Until, now))
	case store.Failed:
		given := "It was given up " + ago(s.UpdatedAt, now) + reason + " and is a dead letter"
		if !s.Until.After(now) {
			return given + "; the hold is over, so that the next read asks for it again."
		}
		return fmt.Sprintf("%s. It is held: nobody but a person asks for it before %s.", given, clock(s.Until, now))
	case store.Suspended:
		return fmt.Sprintf("It is suspended: it was given up %s in a row, last %s%s. Nothing asks for it until a person does, by refresh now or by a replay.",
			several(s.Failures, "time", "times"), ago(s.UpdatedAt, now), reason)
	}
	if e.Coalesce.Hold == "" || !e.Coalesce.HoldUntil.After(now) {
		return ""
	}
	until := clock(e.Coalesce.HoldUntil, now)
	switch e.Coalesce.Hold {
	case schemas.HoldAbsent:
		return "It is held until " + until + ", because the upstream said that there is none."
	case schemas.HoldRetrying:
		return "It is held until " + until + ", because its last request failed and a retry is written down."
	}
	return "It is held until " + until + " (" + shown(e.Coalesce.Hold, 40) + ")."
}

// waySays is what is under way for it; empty if nothing is.
func waySays(e Entity, a around, now time.Time) string {
	w := e.Coalesce
	switch {
	case w.Unknown:
		return "Whether a request is under way is not known: Redis does not answer."
	case w.Lane == "":
		return lostSays(e, now)
	case w.Issued > w.Number:
		return fmt.Sprintf("A fetch is under way now, which was asked for in the %s lane.", w.Lane)
	case !w.Confirmed:
		return fmt.Sprintf("A request in the %s lane is on its way to Kafka.", w.Lane)
	}
	text := fmt.Sprintf("A request waits in the %s lane", w.Lane)
	if i := slices.IndexFunc(a.lanes, func(l Lane) bool { return l.Lane == w.Lane }); i >= 0 {
		text += behindSays(a.lanes[i])
	}
	if w.Until.After(now) {
		text += "; should it be lost, it is asked for anew after " + clock(w.Until, now)
	}
	return text + "."
}

// lostSays is what is told of a request that has not ended, and that covers no other any
// more: it covers them for a minute at most, while LOW may be hours behind.
func lostSays(e Entity, now time.Time) string {
	w := e.Coalesce
	if w.Issued <= max(e.State.Version, e.Status.Version, w.Done) {
		return ""
	}
	at := "" // numbers are times, unless they had to be above others
	if t := time.UnixMilli(w.Issued); t.Before(now.Add(time.Minute)) && t.After(now.Add(-30*day)) {
		at = " at about " + clock(t, now)
	}
	text := "It was asked for" + at + ", and that has not ended: it waits in its lane's topic, or was lost."
	if held(e, now) {
		return text
	}
	return text + " It may be asked for anew, as the next read of what is stale does."
}

// behindSays is what a request in the lane waits behind.
func behindSays(l Lane) string {
	others := ", behind " + several(l.Records, "other", "others") + " at most, "
	switch {
	case !l.Known || l.Records == 0:
		return ""
	case stands(l):
		return others + "on which nobody has worked for " + span(l.Unworked)
	case !l.WaitKnown:
		return others + "and how long that takes is not known yet"
	}
	return others + "which takes about " + span(behind(l))
}

// nextSays is what asks for it next, where nothing does now.
func nextSays(e Entity, now time.Time) string {
	switch r := e.Registered; {
	case fresh(e, now) && r == nil:
		return "It is not prefetched: the first read after that asks for it."
	case r == nil:
		return "Nothing that asked for it within the last hour is open: it is not prefetched, and the next read asks."
	case !r.Enabled:
		return "It is registered, but a person took it out of the schedule: the next read of what is stale asks for it."
	case r.Due.After(now):
		return fmt.Sprintf("It is prefetched (%s) and due at %s; a read of what is stale asks for it sooner.", tierOf(*r), clock(r.Due, now))
	}
	return fmt.Sprintf("It is prefetched (%s) and has been due since %s: the scheduler waits for budget, or is behind.", tierOf(*e.Registered), clock(e.Registered.Due, now))
}

// tierOf names the tier of an entity, and whether it is pinned.
func tierOf(r store.RegisteredEntity) string {
	if r.Pinned {
		return tierName(r.Tier) + ", pinned"
	}
	return tierName(r.Tier)
}

func tierName(t store.Tier) string {
	return map[store.Tier]string{store.Hot: "hot", store.Warm: "warm", store.Cold: "cold"}[t]
}
