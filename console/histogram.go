package console

import (
	"fmt"
	"slices"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/status"
)

// histogram is a diagram of horizontal bars. The page also shows its numbers as a table.
type histogram struct {
	Title, Caption, Unit string
	Bars                 []histogramBar
	Legend               [][2]string // class and label of each part
}

// histogramBar is one bar. Its parts follow each other from left to right.
type histogramBar struct {
	Label string
	Href  string // URL of the page that the bar links to; empty: there is no link
	Total int64
	Parts []barPart
}

// barPart is a part of a bar, in percent of the longest bar.
type barPart struct {
	Class       string
	From, Width string
}

// newHistogram returns a histogram. counts has one list for each bar, with one number for each entry
// of the legend.
func newHistogram(title, caption, unit string, labels []string, legend [][2]string, counts [][]int64) histogram {
	h := histogram{Title: title, Caption: caption, Unit: unit, Legend: legend}
	longest := int64(1)
	for i, label := range labels {
		bar := histogramBar{Label: label}
		for _, n := range counts[i] {
			bar.Total += n
		}
		longest = max(longest, bar.Total)
		h.Bars = append(h.Bars, bar)
	}
	for i := range h.Bars {
		from := int64(0)
		for j, n := range counts[i] {
			if n > 0 {
				h.Bars[i].Parts = append(h.Bars[i].Parts, barPart{legend[j][0], percentOf(from, longest), percentOf(n, longest)})
			}
			from += n
		}
	}
	return h
}

func percentOf(n, of int64) string { return fmt.Sprintf("%.2f", 100*float64(n)/float64(of)) }

// latencyBounds are the upper bounds of the bars of durations in milliseconds; latencyLabels are the
// labels.
var (
	latencyBounds = []float64{10, 30, 100, 300, 1000, 3000}
	latencyLabels = []string{"< 10 ms", "10–30 ms", "30–100 ms", "100–300 ms", "0.3–1 s", "1–3 s", "≥ 3 s"}
)

// latencyHistograms returns a histogram of the durations of calls for each source, by outcome.
func latencyHistograms(calls []status.SharedCall) (all []histogram) {
	bySource := map[string][]status.SharedCall{}
	var names []string
	for _, c := range calls {
		if bySource[c.Source] == nil {
			names = append(names, c.Source)
		}
		bySource[c.Source] = append(bySource[c.Source], c)
	}
	slices.Sort(names)
	var legend [][2]string
	for _, outcome := range source.CallOutcomes {
		legend = append(legend, [2]string{"c-" + outcome, outcome})
	}
	for _, name := range names {
		counts := make([][]int64, len(latencyLabels))
		for i := range counts {
			counts[i] = make([]int64, len(legend))
		}
		for _, c := range bySource[name] {
			bar, _ := slices.BinarySearchFunc(latencyBounds, c.MS, func(bound, ms float64) int {
				if bound <= ms {
					return -1
				}
				return 1
			})
			if outcome := slices.Index(source.CallOutcomes[:], c.Outcome); outcome >= 0 {
				counts[bar][outcome]++
			}
		}
		all = append(all, newHistogram(name, "Durations of the listed calls of "+name, "Duration", latencyLabels, legend, counts))
	}
	return all
}
