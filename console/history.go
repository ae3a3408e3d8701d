package console

import (
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/status"
)

// periodLength is the length of the periods in the tables of the history.
const periodLength = 5 * time.Minute

// readKindLabels are the labels of status.ReadKinds.
var readKindLabels = [len(status.ReadKinds)]string{"Fresh", "Stale", "Nothing stored", "Not found"}

// addHistory adds the samples of each source that are newer than after[source], and sets after[source]
// to the time of the newest sample. If there are new samples, it also adds the tables of the last
// hour, which contain the values of the charts for screen readers.
func (f *liveStatus) addHistory(overview Overview, sources []string, after map[string]int64) {
	f.History = map[string]status.History{}
	for _, name := range sources {
		h := overview.History(name, after[name])
		if f.History[name] = h; len(h.Times) == 0 && after[name] > 0 {
			continue
		}
		if after[name] > 0 {
			h = overview.History(name, 0)
		}
		if len(h.Times) > 0 {
			after[name] = h.Times[len(h.Times)-1]
		}
		f.addHistoryTables(name, h.Periods(periodLength))
	}
}

func (f *liveStatus) addHistoryTables(name string, periods []status.HistoryPeriod) {
	var calls, reads, lanes [][]statusItem
	for i := range periods {
		p := periods[len(periods)-1-i] // the table begins with the newest period
		period := statusItem{Text: p.From.Format("15:04") + "–" + p.To.Format("15:04")}
		calls = append(calls, append(append([]statusItem{period}, countItems(source.CallOutcomes[:], p.Calls)...), allowedItem(p.AllowedRate), statesItem(p.States)))
		reads = append(reads, append([]statusItem{period}, countItems(status.ReadKinds[:], p.Reads)...))
		lanes = append(lanes, append([]statusItem{period}, append(backlogItems(p.High), backlogItems(p.Low)...)...))
	}
	callColumns := []column{textColumn("Time")}
	for _, outcome := range source.CallOutcomes {
		callColumns = append(callColumns, numberColumn(outcome))
	}
	callColumns = append(callColumns, numberColumn("Allowed / s"), textColumn("State"))
	readColumns := []column{textColumn("Time")}
	for _, label := range readKindLabels {
		readColumns = append(readColumns, numberColumn(label))
	}
	const none = "There are no samples yet. The first one is taken after 10 s."
	f.addTable("calls."+name, "Calls of "+name+" by outcome, newest first", none, callColumns, calls)
	f.addTable("readers."+name, "Reads of "+name+" by freshness, newest first", none, readColumns, reads)
	f.addTable("backlog."+name, "Highest backlog of the lanes of "+name+", newest first", none,
		[]column{textColumn("Time"), numberColumn("HIGH records"), numberColumn("HIGH lag"), numberColumn("LOW records"), numberColumn("LOW lag")}, lanes)
}

// countItems returns a table cell with a count for each element of `kinds`. If counts is nil, the
// counts are unknown, and each cell contains a dash.
func countItems(kinds []string, counts map[string]int64) []statusItem {
	items := make([]statusItem, len(kinds))
	for i, kind := range kinds {
		items[i].Text = "–"
		if counts != nil {
			items[i].Text = formatCount(counts[kind])
		}
	}
	return items
}

func allowedItem(rate float64) statusItem {
	if rate < 0 {
		return statusItem{Text: "–"}
	}
	return statusItem{Text: formatRate(rate)}
}

func statesItem(states []limiter.State) statusItem {
	if len(states) == 0 {
		return statusItem{Text: "unknown"}
	}
	var names []string
	for _, state := range states {
		names = append(names, string(state))
	}
	return statusItem{Text: strings.Join(names, ", ")}
}

func backlogItems(b status.LaneBacklog) []statusItem {
	if !b.Known {
		return []statusItem{{Text: "–"}, {Text: "–"}}
	}
	return []statusItem{{Text: formatCount(b.Records)}, {Text: formatDuration(b.Delay)}}
}
