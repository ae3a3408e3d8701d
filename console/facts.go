package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
)

// fact is something that is true at the moment, in words. Tone is ok, warn, bad or empty;
// it never says more than the words do.
type fact struct {
	Text string `json:"text"`
	Tone string `json:"tone,omitempty"`
	// Part is how much of something is used, from 0 to 100; nil: it is no such thing.
	Part *int `json:"part,omitempty"`
}

// facts are what the live pages say, by where it stands.
type facts struct {
	At     string                 `json:"at"`
	Facts  map[string]fact        `json:"facts"`
	Rows   map[string][][]fact    `json:"rows"`
	Points map[string][]point     `json:"points,omitempty"`
	Tables map[string]headedTable `json:"-"`
}

// headedTable is a table whose rows are live.
type headedTable struct {
	ID, Caption string
	Heads       []string
	Numbers     []bool // which columns are of numbers
	Rows        [][]fact
	Empty       string // what stands there without rows
}

const (
	toneOK   = "ok"
	toneWarn = "warn"
	toneBad  = "bad"

	day = 24 * time.Hour
	// behindWarn and behindBad are from when on a lane is behind, and far behind.
	behindWarn, behindBad = time.Minute, 10 * time.Minute
	// standsAfter is from when on a lane stands on which nobody works. Before, what has just
	// come to an idle lane may not have been sampled again.
	standsAfter = 20 * time.Second
)

// factsOf says in words what a sample knows of the sources, and of the rest.
func (c *Console) factsOf(n *sample, sources []string) facts {
	f := facts{At: n.At.UTC().Format("15:04:05") + " UTC", Facts: map[string]fact{}, Rows: map[string][][]fact{}, Tables: map[string]headedTable{}}
	f.wrong(n, sources)
	for _, source := range sources {
		of := n.Sources[source]
		f.Facts["says."+source] = fact{Text: budgetSays(source, of.Limits, of.Rates, n.At)}
		f.Facts["state."+source] = stateOf(of.Limits)
		f.table("lanes."+source, "How far the lanes of "+source+" are", "", []string{"Lane", "Calls / s", "May", "Records", "Behind by"}, "01110", lanesOf(of))
		f.schedule(source, of, n.At)
		f.quota(source, of, n.At)
		if of.Limits == nil {
			f.table("policies."+source, "Policies of "+source, "They could not be read.", policyHeads, "000110", nil)
			f.table("processes."+source, "Who waits for a permit of "+source, "They could not be read.", processHeads, "00111", nil)
			f.table("scopes."+source, "Parts of "+source, "They could not be read.", scopeHeads, "0011", nil)
			continue
		}
		f.table("policies."+source, "Policies of "+source, "It has not been called yet.", policyHeads, "000110", policiesOf(of, n.At))
		f.table("processes."+source, "Who waits for a permit of "+source, "No process tells of itself: no worker runs.", processHeads, "00111", processesOf(of.Limits))
		f.table("scopes."+source, "Parts of "+source+" that have a limit of their own", "No limit is of a part alone.", scopeHeads, "0011", scopesOf(of.Limits, n.At))
	}
	f.table("reads", "What "+shown(c.Process, 60)+" told its readers in the last 5 min, and how old that was; each process tells of its own", "Nobody has read.",
		[]string{"Source", "Reads", "Fresh", "Stale", "Fetching", "Absent", "Half within", "95 % within"}, "01111111", readsOf(n.Reads, sources))
	f.table("depends", "What this process leans on", "Nothing.", []string{"Name", "State"}, "00", dependsOf(n.Depends))
	f.Facts["weather"] = fact{Text: c.weatherTitle(n.Weather)}
	return f
}

var (
	policyHeads  = []string{"Policy", "Used", "Share", "Left", "Left for LOW", "Besides"}
	processHeads = []string{"Process", "Lane", "Waiting", "Longest", "Granted", "Why"}
	scopeHeads   = []string{"Policy", "Of", "Left", "Under way", "State"}
)

func (f *facts) table(id, caption, empty string, heads []string, numbers string, rows [][]fact) {
	t := headedTable{ID: id, Caption: caption, Heads: heads, Rows: rows, Empty: empty}
	for i := range heads {
		t.Numbers = append(t.Numbers, i < len(numbers) && numbers[i] == '1')
	}
	f.Rows[id] = rows
	if rows == nil {
		f.Rows[id] = [][]fact{}
	}
	f.Tables[id] = t
}

// wrong lists what is wrong now, the worst first.
func (f *facts) wrong(n *sample, sources []string) {
	rows := [][]fact{}
	add := func(tone, format string, args ...any) {
		rows = append(rows, []fact{{Text: fmt.Sprintf(format, args...), Tone: tone}})
	}
	for _, d := range n.Depends {
		if d.Error != "" {
			add(toneBad, "%s does not answer: %s", shown(d.Name, keyShown), shown(d.Error, errorShown))
		}
	}
	for _, source := range sources {
		of := n.Sources[source]
		if of.Limits == nil {
			add(toneBad, "%s: what its limiter does could not be read; if Redis does not answer, nothing is called.", source)
		}
		for _, h := range hindrances(of.Limits, n.At) {
			if h.Of != ofFirst { // it is told of a lane that stands
				add(h.Tone, "%s: %s.", source, h.Says)
			}
		}
		for _, l := range of.Lanes {
			switch {
			case !l.Known:
				add(toneWarn, "%s: how far its %s lane is behind is not known.", source, l.Lane)
			case stands(l):
				why, tone := whyStands(of.Limits, of.Lanes, l, n.At)
				add(tone, "%s: %s in its %s lane, and nobody has worked on any for %s%s.", source, several(l.Records, "record waits", "records wait"), l.Lane, span(l.Unworked), why)
			case l.Records > 0 && l.WaitKnown && behind(l) >= behindWarn:
				add(laneTone(l), "%s: its %s lane is %s behind, with %s.", source, l.Lane, span(behind(l)), several(l.Records, "record", "records"))
			}
		}
		if of.Sched.unscheduled() {
			add(toneBad, "%s: no scheduler runs, so that nothing is prefetched.", source)
		}
		if of.Died > 0 {
			add(toneWarn, "%s: %s since yesterday are open.", source, several(of.Died, "dead letter", "dead letters"))
		}
	}
	slices.SortStableFunc(rows, func(a, b []fact) int { return strings.Compare(a[0].Tone, b[0].Tone) }) // bad stands before warn
	f.Rows["wrong"] = rows
	f.Facts["wrong"] = fact{Text: "Nothing is wrong.", Tone: toneOK}
	if len(rows) > 0 {
		f.Facts["wrong"] = fact{Text: several(len(rows), "thing needs", "things need") + " a look.", Tone: rows[0][0].Tone}
	}
}

// stateOf is what a source's limiter does, in a word.
func stateOf(v *limiter.View) fact {
	if v == nil {
		return fact{Text: "unknown", Tone: toneBad}
	}
	switch v.State {
	case stateFlowing, stateUnused:
		return fact{Text: v.State, Tone: toneOK}
	case stateStopped, stateProbing, StateStopping:
		return fact{Text: v.State, Tone: toneBad}
	}
	return fact{Text: v.State, Tone: toneWarn}
}

// stands reports whether records wait in a lane and nobody works on them.
func stands(l Lane) bool {
	return l.Known && l.Records > 0 && !l.WaitKnown && l.Unworked >= standsAfter
}

// behind is how far a lane is behind, of which that is known. The throughput is that of a
// minute, within which who works may have stopped.
func behind(l Lane) time.Duration { return max(l.Wait, l.Unworked) }

func laneTone(l Lane) string {
	switch {
	case !l.Known:
		return toneWarn
	case stands(l):
		return toneBad
	case l.Records > 0 && !l.WaitKnown:
		return "" // the next samples tell
	case l.Records == 0 || behind(l) < behindWarn:
		return toneOK
	case behind(l) < behindBad:
		return toneWarn
	}
	return toneBad
}
