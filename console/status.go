package console

import (
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/status"
)

// statusItem is one changing text of a page. Tone selects its colour: ok, warn, bad, or empty for
// none.
type statusItem struct {
	Text string `json:"text"`
	Tone string `json:"tone,omitempty"`
	// Percent is the length of a bar, 0 to 100; nil: no bar.
	Percent *int `json:"percent,omitempty"`
	// Href is the page about the text. Runbook is the section of the runbook. Act is the page where
	// an operator can act, and Action the label of that link. Empty: no link.
	Href    string `json:"href,omitempty"`
	Runbook string `json:"runbook,omitempty"`
	Act     string `json:"act,omitempty"`
	Action  string `json:"action,omitempty"`
}

// liveStatus contains all changing content of the live pages, by the id of the HTML element. It is
// rendered with the page, and then sent every second as a server-sent event.
type liveStatus struct {
	At    string                    `json:"at"`
	Items map[string]statusItem     `json:"items"`
	Rows  map[string][][]statusItem `json:"rows"`
	// History is the history of each source on the overview page. An event of the stream contains
	// only the samples that are newer than the samples of the previous event.
	History map[string]status.History `json:"history,omitempty"`
	// Marks are the events of the last hour that the charts of each source show.
	Marks  map[string][]chartMark `json:"marks,omitempty"`
	Tables map[string]statusTable `json:"-"`
}

// statusTable is a table whose rows change.
type statusTable struct {
	ID, Caption string
	Columns     []column
	Rows        [][]statusItem
	Empty       string // text to show if there are no rows
}

// column is a column of a table. The cells of a column of numbers are aligned to the right.
type column struct {
	Header string
	Number bool
	Term   string // term whose definition the header offers; empty: none
}

func (c column) explained(term string) column {
	c.Term = term
	return c
}

func textColumn(header string) column   { return column{Header: header} }
func numberColumn(header string) column { return column{Header: header, Number: true} }

const (
	toneOK   = "ok"
	toneWarn = "warn"
	toneBad  = "bad"

	day = 24 * time.Hour
	// lagWarn and lagBad are the lags from which a lane is shown as a warning or as a problem.
	lagWarn, lagBad = time.Minute, 10 * time.Minute
	// stalledAfter is the time without a processed record after which a lane with waiting records
	// counts as stalled. It is longer than the time between two counts of the records, so that new
	// records in an idle lane do not count as stalled.
	stalledAfter = 20 * time.Second
)

// newLiveStatus returns a liveStatus without content.
func newLiveStatus(at time.Time) liveStatus {
	return liveStatus{At: at.UTC().Format("15:04:05") + " UTC", Items: map[string]statusItem{}, Rows: map[string][][]statusItem{}, Tables: map[string]statusTable{}}
}

// statusOf returns the changing content of all live pages for a sample.
func (c *Console) statusOf(n *sample, sources []string) liveStatus {
	f := newLiveStatus(n.At)
	f.addProblems(n, sources)
	for _, source := range sources {
		of := n.Sources[source]
		f.Items["budget."+source] = statusItem{Text: budgetMessage(source, of.Limits, of.Rates, n.At)}
		f.Items["state."+source] = limiterState(of.Limits)
		f.addTable("lanes."+source, "Lanes of "+source, "", []column{textColumn("Lane").explained("lane"), numberColumn("Calls / s"), numberColumn("Allowed / s"), numberColumn("Records"), textColumn("Lag")}, laneRows(of))
		f.addSchedule(source, of, n.At)
		f.addSettings(source, of, n.At)
		f.addTable("credentials."+source, "Credentials of "+source+" that renew themselves", "No credential renews itself.", credentialColumns, credentialRows(n.Credentials, source, n.At))
		f.addTable("hooks."+source, "Webhooks of "+source+", since the start of the query services", "No webhook is configured.", hookColumns, hookRows(n.Hooks, source, n.At))
		if of.Limits == nil {
			f.addTable("policies."+source, "Policies of "+source, "Not available: the read failed.", policyColumns, nil)
			f.addTable("processes."+source, "Processes that call "+source, "Not available: the read failed.", processColumns, nil)
			f.addTable("scopes."+source, "Scopes of "+source, "Not available: the read failed.", scopeColumns, nil)
			continue
		}
		f.addTable("policies."+source, "Policies of "+source, "The source has not been called yet.", policyColumns, policyRows(of, n.At))
		f.addTable("processes."+source, "Processes that call "+source, "No process reports: no worker is running.", processColumns, processRows(of.Limits))
		f.addTable("scopes."+source, "Scopes of "+source+" with their own limit", "No policy has a scope.", scopeColumns, scopeRows(of.Limits, n.At))
	}
	f.addTable("reads", "Reads of "+displayText(c.Process, 60)+" in the last 5 min; each process counts its own", "No reads.",
		[]column{textColumn("Source"), numberColumn("Reads"), numberColumn("Fresh"), numberColumn("Stale"), numberColumn("Nothing stored"), numberColumn("Not found"), numberColumn("p50 age"), numberColumn("p95 age")}, readRows(n.Reads, sources))
	f.addTable("depends", "Dependencies of this process", "Nothing.", []column{textColumn("Name"), textColumn("State")}, dependencyRows(n.Dependencies))
	f.Items["scenario"] = statusItem{Text: c.scenarioTitle(n.FaultScenario)}
	return f
}

var (
	policyColumns  = []column{textColumn("Policy").explained("quota policy"), textColumn("Used"), textColumn("Share"), numberColumn("Allowed at once"), numberColumn("Allowed at once for LOW"), textColumn("Notes")}
	processColumns = []column{textColumn("Process"), textColumn("Lane"), numberColumn("Waiting"), numberColumn("Longest"), numberColumn("Granted").explained("permit"), textColumn("Why")}
	scopeColumns   = []column{textColumn("Policy"), textColumn("Scope").explained("scope"), numberColumn("Left"), numberColumn("In flight"), textColumn("State")}
)

func (f *liveStatus) addTable(id, caption, empty string, columns []column, rows [][]statusItem) {
	f.Rows[id] = rows
	if rows == nil {
		f.Rows[id] = [][]statusItem{}
	}
	f.Tables[id] = statusTable{ID: id, Caption: caption, Columns: columns, Rows: rows, Empty: empty}
}

// limiterState returns the state of a source's limiter with its tone.
func limiterState(v *limiter.View) statusItem {
	if v == nil {
		return statusItem{Text: "unknown", Tone: toneBad}
	}
	switch v.State {
	case limiter.StateUnused:
		return statusItem{Text: string(v.State)}
	case limiter.StateFlowing:
		if len(v.Processes) == 0 {
			return statusItem{Text: "no worker runs", Tone: toneBad}
		}
		return statusItem{Text: string(v.State), Tone: toneOK}
	case limiter.StateStopped, limiter.StateBreakerOpen, limiter.StateStopping:
		return statusItem{Text: string(v.State), Tone: toneBad}
	case limiter.StateBackingOff, limiter.StateRestoringCount, limiter.StateQuietPeriod, limiter.StateRamping, limiter.StateResuming:
	}
	return statusItem{Text: string(v.State), Tone: toneWarn}
}

// stalled reports whether records wait in a lane and no worker processes them.
func stalled(l LaneLag) bool {
	return l.RecordsKnown && l.Records > 0 && !l.WaitKnown && l.StalledFor >= stalledAfter
}

// lag returns the lag of a lane: the longer one of Wait and StalledFor. Wait is based on the
// throughput of the last minute with a backlog, so it is too low shortly after the workers have stopped.
func lag(l LaneLag) time.Duration { return max(l.Wait, l.StalledFor) }

func laneTone(l LaneLag) string {
	switch {
	case !l.RecordsKnown:
		return toneWarn
	case stalled(l):
		return toneBad
	case l.Records > 0 && !l.WaitKnown:
		return "" // no tone yet: the lag is unknown until the records have been counted again
	case l.Records == 0 || lag(l) < lagWarn:
		return toneOK
	case lag(l) < lagBad:
		return toneWarn
	}
	return toneBad
}
