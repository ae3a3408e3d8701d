package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// surroundings contains the state of the source of an entity: the limiter (nil: unknown) and the
// lanes.
type surroundings struct {
	limits *limiter.View
	lanes  []LaneLag
}

// whyStale explains why the snapshot of an entity is not newer, and when the entity is refreshed
// next.
func whyStale(e Entity, a surroundings, now time.Time) string {
	sentences := []string{ageMessage(e, now)}
	add := func(text string) {
		if text != "" {
			sentences = append(sentences, text)
		}
	}
	if e.Derived != nil {
		add(fmt.Sprintf("Its content is %s, %s after the first change of an item. No call is made for it.", displayText(e.Derived.From, maxErrorShown), formatDuration(e.Derived.After)))
	}
	for _, a := range e.Aliases {
		add(aliasMessage(e, a, now))
	}
	add(holdMessage(e, now))
	inFlight := requestMessage(e, a, now)
	add(inFlight)
	if e.Request.CooldownUntil.After(now) {
		add("It was refreshed manually a moment ago; the next manual refresh is possible at " + formatTime(e.Request.CooldownUntil, now) + ".")
	}
	for _, h := range entityBlockers(e, a, now) {
		switch h.Scope {
		case scopeSource:
			add(e.Entity.Source + " is not called: " + h.Message + ".")
		case scopeLane, scopeFirst:
			add("Its lane: " + h.Message + ".")
		case scopePart:
			add("Its call may need a blocked scope of " + e.Entity.Source + ": " + h.Message + ".")
		}
	}
	if inFlight == "" && !held(e, now) {
		add(nextMessage(e, now))
	}
	return strings.Join(sentences, " ")
}

// entityBlockers returns the conditions that prevent a refresh of the entity. If a request of the
// entity is in flight, these are the blockers of the lane of that request. Otherwise they are the
// blockers of both lanes.
func entityBlockers(e Entity, a surroundings, now time.Time) []blocker {
	if e.Request.Lane != "" {
		return blockersOf(a.limits, e.Request.Lane, now)
	}
	return allBlockers(a.limits, now)
}

// fresh reports whether a read of the entity would be answered without requesting a refresh.
func fresh(e Entity, now time.Time) bool {
	_, reason := store.FreshnessOf(&e.State, e.Lifetimes, now)
	return reason == ""
}

// ageMessage describes the content or not-found result that a read of the entity returns, and its age.
func ageMessage(e Entity, now time.Time) string {
	checked := formatAgo(e.State.CheckedAt, now)
	switch freshness, reason := store.FreshnessOf(&e.State, e.Lifetimes, now); {
	case freshness == store.NotFound && e.State.AliasNotFound:
		return fmt.Sprintf("It does not exist, because the facet that it takes a param from was not found %s; this result is valid for %s.", checked, formatDuration(e.AliasNotFoundFor))
	case freshness == store.NotFound && e.Derived != nil:
		return fmt.Sprintf("Nothing can be computed: %s no collection of this key was stored. The first item causes a computation.", checked)
	case freshness == store.NotFound && reason == "":
		return fmt.Sprintf("The upstream reported %s that the entity does not exist; this result is valid for %s, until %s.",
			checked, formatDuration(e.NotFoundFor), formatTime(e.State.CheckedAt.Add(e.NotFoundFor), now))
	case freshness == store.NotFound:
		return fmt.Sprintf("The upstream reported %s that the entity does not exist; that result was valid for %s.", checked, formatDuration(e.NotFoundFor))
	case freshness == store.Updating && e.State.HasContent():
		return fmt.Sprintf("Its content was fetched %s and kept for %s, which is over: it is no longer served, and readers wait for a new fetch. Checked %s.",
			formatAgo(e.State.FetchedAt, now), formatDuration(e.KeepFor), checked)
	case freshness == store.Fresh:
		if e.FreshFor >= source.ImmutableFor {
			return fmt.Sprintf("It is not stale. Checked %s; the facet is immutable, so it stays fresh.", checked)
		}
		return fmt.Sprintf("It is not stale. Checked %s, and fresh for %s, until %s.", checked, formatDuration(e.FreshFor), formatTime(e.State.CheckedAt.Add(e.FreshFor), now))
	case freshness == store.Stale:
		return fmt.Sprintf("It is stale: checked %s, and fresh for %s.", checked, formatDuration(e.FreshFor))
	}
	return "Nothing is stored."
}

// aliasMessage describes an alias: its value, when it was checked, when it changed, and when it is
// checked again.
func aliasMessage(e Entity, a Alias, now time.Time) string {
	chain := fmt.Sprintf("%s → {%s}", displayText(e.Entity.Key, maxReasonShown), a.Param)
	switch {
	case !a.Stored:
		return fmt.Sprintf("%s: facet %s, which has the value, was never fetched.", chain, a.From)
	case a.State.NotFound:
		return fmt.Sprintf("%s: facet %s was checked %s and not found; the next check of this facet is at %s or later.",
			chain, a.From, formatAgo(a.State.CheckedAt, now), formatTime(a.State.CheckedAt.Add(a.NotFoundFor), now))
	}
	return fmt.Sprintf("%s = %s, from facet %s, checked %s, changed %s; the next check of the value is at %s or later.", chain, displayText(a.Value, maxReasonShown),
		a.From, formatAgo(a.State.CheckedAt, now), formatAgo(a.State.UpdatedAt, now), formatTime(a.State.CheckedAt.Add(a.FreshFor), now))
}

// held reports whether the entity is held, for example after failures. While it is held, a read of
// the entity does not enqueue a refresh, but a manual refresh does.
func held(e Entity, now time.Time) bool {
	switch e.Status.State {
	case store.Suspended, store.Retrying:
		return true
	case store.Failed:
		return e.Status.Until.After(now)
	}
	return e.Request.Hold != "" && e.Request.HoldUntil.After(now)
}

func holdMessage(e Entity, now time.Time) string {
	s := e.Status
	reason := ""
	if s.Reason != "" {
		reason = " (" + displayText(s.Reason, maxReasonShown)
		if s.Error != "" {
			reason += ": " + displayText(s.Error, maxBriefShown)
		}
		reason += ")"
	}
	switch s.State {
	case store.Retrying:
		if s.Reason == schemas.HoldAlias {
			return fmt.Sprintf("It %s, since %s; it is fetched afterwards, and at %s at the latest.", displayText(s.Error, maxErrorShown), formatTime(s.UpdatedAt, now), formatTime(s.Until, now))
		}
		failed := "It is held: its last request failed " + formatAgo(s.UpdatedAt, now) + reason
		if !s.Until.After(now) {
			return fmt.Sprintf("%s, and a retry has been due since %s.", failed, formatTime(s.Until, now))
		}
		return fmt.Sprintf("%s, and the next retry is at %s.", failed, formatTime(s.Until, now))
	case store.Failed:
		given := "Its request failed permanently " + formatAgo(s.UpdatedAt, now) + reason + " and is a dead letter"
		if !s.Until.After(now) {
			return given + "; the hold has ended, so the next read requests it again."
		}
		return fmt.Sprintf("%s. Until %s only a manual refresh requests it.", given, formatTime(s.Until, now))
	case store.Suspended:
		return fmt.Sprintf("It is suspended: its requests failed permanently %s in a row, last %s%s. Only a manual refresh or a replay requests it again.",
			plural(s.Failures, "time", "times"), formatAgo(s.UpdatedAt, now), reason)
	}
	if e.Request.Hold == "" || !e.Request.HoldUntil.After(now) {
		return ""
	}
	until := formatTime(e.Request.HoldUntil, now)
	switch e.Request.Hold {
	case schemas.HoldNotFound:
		return "It is held until " + until + ", because the upstream reported that it does not exist."
	case schemas.HoldRetrying:
		return "It is held until " + until + ", because its last request failed and a retry is scheduled."
	}
	return "It is held until " + until + " (" + displayText(e.Request.Hold, 40) + ")."
}

// requestMessage describes the entity's request in flight, or a request that has not ended although
// its lock has expired; empty: there is no such request.
func requestMessage(e Entity, a surroundings, now time.Time) string {
	w := e.Request
	switch {
	case w.Unknown:
		return "It is unknown whether a request is in flight, because Redis does not answer."
	case w.Lane == "":
		return lostMessage(e, now)
	case w.Issued > w.Number:
		return fmt.Sprintf("A fetch that was requested in the %s lane is running.", w.Lane)
	case !w.Confirmed:
		return fmt.Sprintf("A request in the %s lane is being published to Kafka.", w.Lane)
	}
	text := fmt.Sprintf("A request waits in the %s lane", w.Lane)
	if i := slices.IndexFunc(a.lanes, func(l LaneLag) bool { return l.Lane == w.Lane }); i >= 0 {
		text += aheadMessage(a.lanes[i])
	}
	if w.Until.After(now) {
		text += "; if the request is lost, the entity can be requested again after " + formatTime(w.Until, now)
	}
	return text + "."
}

// lostMessage describes a request that has not ended although its lock has expired. Without a lock,
// new requests of the entity are not coalesced with that request. That request need not be lost: a
// lock lasts a minute at most, but the record of the request may wait in the LOW lane for hours.
func lostMessage(e Entity, now time.Time) string {
	w := e.Request
	if w.Issued <= max(e.State.Version, e.Status.Version, w.Done) {
		return ""
	}
	at := "" // time of the request, for the message: the request's version is normally that time in Unix milliseconds
	if t := time.UnixMilli(w.Issued); t.Before(now.Add(time.Minute)) && t.After(now.Add(-30*day)) {
		at = " at about " + formatTime(t, now)
	}
	text := "It was requested" + at + ", and the request has not ended: it waits in the topic of its lane, or was lost."
	if held(e, now) {
		return text
	}
	return text + " The next read of stale content requests the entity again."
}

// aheadMessage describes how many records wait in the lane before a request, and how long the
// workers need to process these records.
func aheadMessage(l LaneLag) string {
	others := ", after at most " + plural(l.Records, "other record", "other records") + ", "
	switch {
	case !l.RecordsKnown || l.Records == 0:
		return ""
	case stalled(l):
		return others + "which no worker has processed for " + formatDuration(l.StalledFor)
	case !l.WaitKnown:
		return others + "whose processing time is not known yet"
	}
	return others + "which the workers process in about " + formatDuration(lag(l))
}

// nextMessage describes when an entity without a request in flight is requested next.
func nextMessage(e Entity, now time.Time) string {
	switch r := e.Registered; {
	case fresh(e, now) && r == nil:
		return "It is not prefetched: the first read after this time requests it."
	case r == nil:
		return "No request of the last hour is open. It is not prefetched; the next read requests it."
	case !r.Enabled:
		return "It is registered but disabled: the next read of stale content requests it."
	case r.Due.After(now):
		return fmt.Sprintf("It is prefetched (%s) and due at %s; a read of stale content requests it sooner.", tierOf(*r), formatTime(r.Due, now))
	}
	return fmt.Sprintf("It is prefetched (%s) and has been due since %s: the scheduler waits for budget, or is behind.", tierOf(*e.Registered), formatTime(e.Registered.Due, now))
}

// tierOf returns the name of the entity's tier, with ", pinned" if the tier is pinned.
func tierOf(r prefetched.RegisteredEntity) string {
	if r.Pinned {
		return tierName(r.Tier) + ", pinned"
	}
	return tierName(r.Tier)
}

func tierName(t prefetched.Tier) string {
	return map[prefetched.Tier]string{prefetched.Hot: "hot", prefetched.Warm: "warm", prefetched.Cold: "cold"}[t]
}
