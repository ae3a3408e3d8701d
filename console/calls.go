package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/status"
)

const (
	// maxCallsShown, maxSlowShown and maxFailedShown are the maximum numbers of rows of the tables.
	maxCallsShown, maxSlowShown, maxFailedShown = 100, 10, 20
)

// callFilter selects calls.
type callFilter struct {
	Source, Lane, Key string
	// Show is the outcome of the calls to show, or "failed" for all failed calls; empty: all calls
	// are shown.
	Show string
}

const showFailed = "failed"

func callFilterOf(r *http.Request) callFilter {
	get := func(name string) string { return strings.TrimSpace(r.FormValue(name)) }
	return callFilter{Source: get("source"), Lane: get("lane"), Key: get("key"), Show: get("show")}
}

func (f callFilter) matches(c status.SharedCall) bool {
	return (f.Source == "" || f.Source == c.Source) && (f.Lane == "" || f.Lane == string(c.Lane)) &&
		strings.HasPrefix(c.Key, f.Key) && (f.Show == "" || f.Show == c.Outcome || f.Show == showFailed && c.Failed())
}

// callsPage is the data of the page of calls.
type callsPage struct {
	livePage
	Filter    callFilter
	Histogram []histogram // histograms of the durations of calls, one for each outcome
	calls     status.Calls
}

func (p callsPage) livePath() string {
	q := url.Values{"page": {"calls"}, "source": {p.Filter.Source}, "lane": {p.Filter.Lane}, "key": {p.Filter.Key}, "show": {p.Filter.Show}}
	return root + "/live?" + q.Encode()
}

// jsonBody returns the JSON form of the page, which contains only the matching calls.
func (p callsPage) jsonBody() any { return p.calls }

// Shows returns the options of the form field "show": each is a value and its label.
func (callsPage) Shows() [][2]string {
	all := [][2]string{{"", "all calls"}, {showFailed, "failed calls"}}
	for _, outcome := range source.CallOutcomes {
		all = append(all, [2]string{outcome, outcome})
	}
	return all
}

// visibleCalls returns the calls that match the filter and whose entities the client may see.
func visibleCalls(entities Entities, all status.Calls, f callFilter, client access.Client) status.Calls {
	keep := func(calls []status.SharedCall) []status.SharedCall {
		return slices.DeleteFunc(slices.Clone(calls), func(call status.SharedCall) bool {
			return !f.matches(call) || !entities.Sees(client, schemas.Entity{Source: call.Source, Facet: call.Facet, Key: call.Key}, "")
		})
	}
	return status.Calls{Last: keep(all.Last), Failed: keep(all.Failed)}
}

func showCalls(c *Console, w http.ResponseWriter, r *http.Request, client access.Client) {
	ctx, cancel := requestContext(r)
	defer cancel()
	all, _, err := c.lastCalls.Get(ctx, sampleInterval)
	if err != nil {
		c.unavailable(w, r, "The calls can't be read: Redis does not answer.", err)
		return
	}
	p := callsPage{Filter: callFilterOf(r)}
	p.Sources, p.calls = c.Sources, visibleCalls(c.Entities, all, p.Filter, client)
	p.liveStatus = newLiveStatus(c.Clock())
	p.addCalls(p.calls, c.Clock())
	p.Histogram = latencyHistograms(p.calls.Last)
	c.render(w, r, http.StatusOK, "calls", "Calls", p)
}

// addCalls adds the tables of the newest upstream calls.
func (f *liveStatus) addCalls(all status.Calls, now time.Time) {
	skipped := 0
	for _, c := range all.Last {
		skipped += c.Skipped
	}
	text := plural(len(all.Last), "call", "calls") + " of the newest 500 calls of all processes match."
	if skipped > 0 {
		text += fmt.Sprintf(" A process lists at most 50 calls a second: %s more calls are not listed.", status.FormatInt(skipped))
	}
	f.Items["calls"] = statusItem{Text: text}
	columns := []column{
		textColumn("When"), textColumn("Entity").explained("entity"), textColumn("Outcome"), numberColumn("ms"), numberColumn("Waited ms").explained("permit"), numberColumn("Bytes"),
		textColumn("Changed"), textColumn("Lane").explained("lane"), numberColumn("Attempt"), textColumn("Process"),
	}
	rows := func(calls []status.SharedCall, limit int) (rows [][]statusItem) {
		for _, c := range calls[:min(limit, len(calls))] {
			rows = append(rows, callRow(c, now))
		}
		return rows
	}
	slowest := slices.Clone(all.Last)
	slices.SortStableFunc(slowest, func(a, b status.SharedCall) int { return cmp.Compare(b.MS, a.MS) })
	f.addTable("calls", "The newest calls", "No call matches. Calls of the last hour are kept.", columns, rows(all.Last, maxCallsShown))
	f.addTable("slowest", "The slowest of these calls", "No call matches.", columns, rows(slowest, maxSlowShown))
	f.addTable("failed", "The newest failed calls", "No failed call matches.", columns, rows(all.Failed, maxFailedShown))
}

func callRow(c status.SharedCall, now time.Time) []statusItem {
	outcome := statusItem{Text: c.Outcome, Tone: toneOK}
	if c.Status != 0 && c.Outcome != strconv.Itoa(c.Status) {
		outcome.Text = strconv.Itoa(c.Status)
	}
	if c.Class != "" && c.Failed() {
		outcome.Text += " " + c.Class
	}
	switch {
	case c.Outcome == "404":
		outcome.Tone = ""
	case c.Failed():
		outcome.Tone = toneBad
	}
	entity := statusItem{Text: c.Source + "/" + c.Facet + "/" + displayText(c.Key, maxReasonShown), Href: entityPath(schemas.Entity{Source: c.Source, Facet: c.Facet, Key: c.Key})}
	return []statusItem{
		{Text: formatTime(c.At, now)},
		entity, outcome,
		{Text: formatRate(c.MS)},
		{Text: formatRate(c.WaitedMS)},
		{Text: status.FormatInt(c.Bytes)},
		{Text: map[bool]string{true: "yes"}[c.Changed]},
		{Text: string(c.Lane)},
		{Text: strconv.Itoa(c.Attempt)},
		{Text: displayText(c.Process, 60)},
	}
}

// entityPath returns the URL of the page of an entity.
func entityPath(e schemas.Entity) string {
	return root + "/lookup?" + url.Values{"facet": {e.Source + "/" + e.Facet}, "key": {e.Key}}.Encode()
}
