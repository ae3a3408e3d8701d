package console

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/status"
)

// processesPage is the data of the page of processes.
type processesPage struct {
	livePage
	processes status.Processes
}

func (processesPage) livePath() string { return root + "/live?page=processes" }

// jsonBody returns the JSON form of the page, which contains only the processes.
func (p processesPage) jsonBody() any { return p.processes }

func showProcesses(c *Console, w http.ResponseWriter, r *http.Request, _ access.Client) {
	ctx, cancel := requestContext(r)
	defer cancel()
	found, err := c.Cluster.Processes(ctx)
	if err != nil {
		c.unavailable(w, r, "The processes can't be read: Redis does not answer.", err)
		return
	}
	f := newLiveStatus(c.Clock())
	f.addProcessList(found)
	c.render(w, r, http.StatusOK, "processes", "Processes", processesPage{livePage{liveStatus: f}, found})
}

// addProcessList adds the table of the running processes, and a message about their versions.
func (f *liveStatus) addProcessList(p status.Processes) {
	versions := p.Versions()
	message := statusItem{Text: fmt.Sprintf("%s, all of the version %s.", plural(len(p.All), "process runs", "processes run"), strings.Join(versions, ", ")), Tone: toneOK}
	switch {
	case len(p.All) == 0:
		message = statusItem{Text: "No process has reported in the last minute.", Tone: toneBad}
	case len(versions) > 1:
		message = statusItem{Text: "The processes run different versions: " + strings.Join(versions, ", ") + ".", Tone: toneWarn}
	}
	f.Items["versions"] = message
	rows := [][]statusItem{}
	for _, one := range p.All {
		report := statusItem{Text: "reports", Tone: toneOK}
		if age := p.At.Sub(one.At); age > status.MaxReportAge {
			report = statusItem{Text: "no report for " + formatDuration(age), Tone: toneBad}
		}
		version := statusItem{Text: one.Build()}
		if len(versions) > 1 && one.Build() != versions[len(versions)-1] {
			version.Tone = toneWarn
		}
		last := statusItem{Text: "none"}
		if e := one.LastError; e != nil {
			last = statusItem{Text: formatAgo(e.At, p.At) + ": " + displayText(e.Text, maxErrorShown), Tone: map[string]string{"ERROR": toneBad}[e.Level]}
		}
		rows = append(rows, []statusItem{
			{Text: displayText(one.Name, 60)},
			{Text: one.Role},
			version,
			{Text: formatDuration(p.At.Sub(one.Started))},
			report,
			{Text: partitionsText(one.Partitions)},
			{Text: status.FormatInt(one.InFlight)},
			last,
		})
	}
	f.addTable("processes", "Processes that have reported in the last minute", "None.", []column{
		textColumn("Process"), textColumn("Role").explained("role"), textColumn("Version"), numberColumn("Uptime"), textColumn("State"), textColumn("Partitions"), numberColumn("In flight"), textColumn("Last error"),
	}, rows)
}

// partitionsText formats partitions by topic, for example "nexon.update-priority-high 0–11, 13, 14".
func partitionsText(all map[string][]int32) string {
	var texts []string
	for _, topic := range slices.Sorted(maps.Keys(all)) {
		texts = append(texts, topic+" "+rangesText(slices.Sorted(slices.Values(all[topic]))))
	}
	return strings.Join(texts, "; ")
}

// rangesText formats sorted numbers. Three or more consecutive numbers are a range: "0–11, 13, 14".
func rangesText(numbers []int32) string {
	var texts []string
	for len(numbers) > 0 {
		n := 1
		for n < len(numbers) && numbers[n] == numbers[n-1]+1 {
			n++
		}
		if n < 3 {
			n = 1
			texts = append(texts, strconv.Itoa(int(numbers[0])))
		} else {
			texts = append(texts, fmt.Sprintf("%d–%d", numbers[0], numbers[n-1]))
		}
		numbers = numbers[n:]
	}
	return strings.Join(texts, ", ")
}
