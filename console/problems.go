package console

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/freshet/freshet/limiter"
)

// runbookURL is the address of the runbook in the repository. Alerts link to the same sections.
const runbookURL = "https://github.com/freshet/freshet/blob/main/docs/runbook.md"

// runbookSection returns the address of the section of an alert.
func runbookSection(alert string) string { return runbookURL + "#" + strings.ToLower(alert) }

// problems collects the current problems.
type problems struct{ rows [][]statusItem }

// add adds a problem. "links" has the links that are shown with its text.
func (p *problems) add(tone string, links statusItem, format string, args ...any) {
	links.Text, links.Tone = fmt.Sprintf(format, args...), tone
	p.rows = append(p.rows, []statusItem{links})
}

// sourcePage returns the links to a page about a source, and to the section of an alert.
func sourcePage(page, source, alert string) statusItem {
	return statusItem{Href: root + "/" + page + "#s-" + url.PathEscape(source), Runbook: runbookSection(alert)}
}

func (i statusItem) withAct(action, href string) statusItem {
	i.Action, i.Act = action, href
	return i
}

// addProblems adds the table of the current problems, the worst first.
func (f *liveStatus) addProblems(n *sample, sources []string) {
	p := problems{rows: [][]statusItem{}}
	for _, d := range n.Dependencies {
		if d.Error != "" {
			p.add(toneBad, statusItem{Href: root + "#h-depends", Runbook: runbookSection("FreshetDependencyFailures")}, "%s does not answer: %s", displayText(d.Name, maxKeyShown), displayText(d.Error, maxErrorShown))
		}
	}
	p.addCredentials(n.Credentials, n.At)
	for _, source := range sources {
		p.addSource(n, source)
	}
	if versions := n.Processes.Versions(); len(versions) > 1 {
		p.add(toneWarn, statusItem{Href: root + "/processes"}, "Processes run different versions: %s.", strings.Join(versions, ", "))
	}
	slices.SortStableFunc(p.rows, func(a, b []statusItem) int { return strings.Compare(a[0].Tone, b[0].Tone) }) // the tone "bad" comes before "warn" in the alphabet, so the worst problems come first
	f.Rows["problems"] = p.rows
	f.Items["problems"] = statusItem{Text: "Nothing is wrong.", Tone: toneOK}
	if len(p.rows) > 0 {
		f.Items["problems"] = statusItem{Text: plural(len(p.rows), "problem needs", "problems need") + " attention.", Tone: p.rows[0][0].Tone}
	}
}

// addSource adds the problems of one source.
func (p *problems) addSource(n *sample, source string) {
	of := n.Sources[source]
	if of.Limits == nil {
		p.add(toneBad, sourcePage("limiter", source, "FreshetRedisBreakerOpen"), "%s: the limiter could not be read; without Redis no calls are made.", source)
	}
	for _, h := range allBlockers(of.Limits, n.At) {
		if h.Scope != scopeFirst { // the long wait of a lane's oldest request is no problem by itself; it only explains a stalled lane
			p.add(h.Tone, blockerLinks(h, of.Limits, source), "%s: %s.", source, h.Message)
		}
	}
	for _, l := range of.Lanes {
		switch {
		case !l.RecordsKnown:
			p.add(toneWarn, sourcePage("queues", source, "FreshetLagUnknown"), "%s: the lag of its %s lane is unknown.", source, l.Lane)
		case stalled(l):
			why, tone := stallReason(of.Limits, of.Lanes, l, n.At)
			p.add(tone, sourcePage("queues", source, "FreshetLaneNotConsumed").withAct("Processes", root+"/processes"),
				"%s: %s in its %s lane, and no worker has processed one for %s%s.", source, plural(l.Records, "record waits", "records wait"), l.Lane, formatDuration(l.StalledFor), why)
		case l.Records > 0 && l.WaitKnown && lag(l) >= lagWarn:
			p.add(laneTone(l), sourcePage("queues", source, map[bool]string{true: "FreshetHighLag", false: "FreshetLowLag"}[l.Lane == "HIGH"]),
				"%s: the lag of its %s lane is %s, with %s.", source, l.Lane, formatDuration(lag(l)), plural(l.Records, "record", "records"))
		}
	}
	if of.Schedule.Unscheduled() {
		p.add(toneBad, sourcePage("schedule", source, "FreshetSchedulersDown"), "%s: no scheduler is running, so nothing is prefetched.", source)
	}
	if of.OpenDeadLetters > 0 {
		dlq := root + "/dlq?source=" + url.QueryEscape(source)
		p.add(toneWarn, statusItem{Href: dlq, Runbook: runbookSection("FreshetTooManyDeadLetters")}.withAct("Replay or purge", dlq+"#h-safe"),
			"%s: %s of the last 24 h are open.", source, plural(of.OpenDeadLetters, "dead letter", "dead letters"))
	}
}

// blockerLinks returns the links of a problem that a blocker causes.
func blockerLinks(b blocker, v *limiter.View, source string) statusItem {
	settings := root + "/settings#s-" + url.PathEscape(source)
	if b.Scope == scopePart {
		return sourcePage("limiter", source, "FreshetScopeBreakerOpen")
	}
	switch v.State {
	case limiter.StateStopped, limiter.StateStopping:
		return sourcePage("limiter", source, "FreshetSourceStopped").withAct("Resume", settings)
	case limiter.StateBreakerOpen:
		return sourcePage("limiter", source, "FreshetUpstreamOutage").withAct("Calls", root+"/calls?show=failed&source="+url.QueryEscape(source))
	case limiter.StateBackingOff, limiter.StateRamping:
		return sourcePage("limiter", source, "FreshetBackoffsRepeat").withAct("Lower the limit", settings)
	case limiter.StateQuietPeriod, limiter.StateRestoringCount:
		return sourcePage("limiter", source, "FreshetLimiterStateLost")
	case limiter.StateFlowing, limiter.StateUnused, limiter.StateResuming:
	}
	return sourcePage("limiter", source, "FreshetDailyBudgetExhausted").withAct("Change the limit", settings)
}
