package console

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/status"
)

const (
	// maxMarks is the number of the newest audit entries that are examined for marks.
	maxMarks = 100
	// marksTTL is how long the audit entries are cached.
	marksTTL = 5 * time.Second
	// maxStartGap is the maximum time between two starts of processes of one version and role that
	// one mark shows.
	maxStartGap = time.Minute
)

// chartMark is an event that the charts of a source show: a change by an operator, or a start of
// processes.
type chartMark struct {
	At    int64  `json:"at"` // time in Unix seconds
	Label string `json:"label"`
	Text  string `json:"text"`
}

// markLabels are the labels of audited actions in a chart. Other actions have no mark.
var markLabels = map[string]string{"set": "settings", "stop": "stop", "resume": "resume", "fault-scenario": "scenario"}

// marksOf returns the marks of the last hour of each source, the oldest first.
func marksOf(ctx context.Context, changes *status.Cached[[]settings.Entry], n *sample, sources []string) map[string][]chartMark {
	entries, _, _ := changes.Get(ctx, marksTTL) // if the audit can't be read, the charts show the other marks
	all := map[string][]chartMark{}
	for _, source := range sources {
		marks := append(changeMarks(entries, source, n.At.Add(-time.Hour)), startMarks(n.Processes.All, n.At.Add(-time.Hour))...)
		slices.SortStableFunc(marks, func(a, b chartMark) int { return cmp.Compare(a.At, b.At) })
		all[source] = marks
	}
	return all
}

func changeMarks(entries []settings.Entry, source string, since time.Time) (marks []chartMark) {
	for _, e := range entries {
		if label := markLabels[e.Action]; label != "" && (e.Source == source || e.Source == "") && e.At.After(since) {
			row := auditRowOf(e)
			marks = append(marks, chartMark{e.At.Unix(), label, row.Actor + " " + row.Did})
		}
	}
	return marks
}

// startMarks returns a mark for each start of processes. Starts of one version and role that follow
// each other within maxStartGap have one mark.
func startMarks(all []status.Process, since time.Time) (marks []chartMark) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b status.Process) int { return a.Started.Compare(b.Started) })
	counts, last := map[int]int{}, map[string]int{} // counts: number of starts by the index of the mark; last: index of the last mark by version and role
	for _, p := range all {
		if !p.Started.After(since) {
			continue
		}
		kind := p.Role + " " + p.Build()
		i, seen := last[kind]
		if !seen || p.Started.Unix()-marks[i].At > int64(maxStartGap/time.Second) {
			i = len(marks)
			last[kind], marks = i, append(marks, chartMark{At: p.Started.Unix(), Label: "start"})
		}
		counts[i]++
		marks[i].Text = plural(counts[i], "process", "processes") + " started: " + kind
	}
	return marks
}

// addMarks adds the marks of each source, and the tables of the marks.
func (f *liveStatus) addMarks(all map[string][]chartMark, sources []string, now time.Time) {
	f.Marks = all
	for _, source := range sources {
		rows := [][]statusItem{}
		for _, m := range slices.Backward(all[source]) {
			rows = append(rows, []statusItem{{Text: formatTime(time.Unix(m.At, 0), now)}, {Text: m.Label}, {Text: m.Text}})
		}
		f.addTable("marks."+source, "Changes by operators, and starts of processes, of the last hour, newest first", "None.", []column{textColumn("When"), textColumn("Mark"), textColumn("Event")}, rows)
	}
}
