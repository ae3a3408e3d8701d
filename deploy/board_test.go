package deploy

import (
	"fmt"
	"strings"
)

// The dashboards are described here in few words and written as the JSON that
// Grafana provisions, by: go test ./deploy -update.

type board struct {
	uid, title, about string
	variables         []string // label_values queries by the label's name
	rows              []row
}

type row struct {
	title  string
	panels []panel
}

// panel is one panel. What it is said to show says what is normal, and what it
// means if it is not.
type panel struct {
	title, about string
	unit         string
	wide         int    // of 24
	kind         string // timeseries if empty
	asks         []ask
	lines        []line
	stacked      bool
	share        bool     // from 0 to 1
	states       []status // values that have a word
	colours      []colour // of series by name
}

type ask struct{ expr, legend string }

// line is a threshold, drawn.
type line struct {
	at     float64
	colour string
}

// status gives a value a word, and a colour unless the series has one.
type status struct {
	value        int
	text, colour string
}

// colour is that of all series whose legend matches.
type colour struct{ pattern, name string }

func warn(at float64) line     { return line{at, "orange"} }
func critical(at float64) line { return line{at, "red"} }

// The words of a breaker's gauge.
var breaker = []status{{0, "closed", "green"}, {1, "half open", "yellow"}, {2, "open", "red"}}

// The states of a limiter, from a source that flows to one that is stopped.
var limiterStates = []colour{
	{"/(flowing|unused)$/", "green"},
	{"/(ramping|starting quiet|uncounted)$/", "yellow"},
	{"/(backing-off|breaker-open)$/", "orange"},
	{"/stopped$/", "red"},
}

// laneColours are each lane's on every graph.
var laneColours = []colour{{"/^HIGH$/", "orange"}, {"/^LOW$/", "blue"}}

const (
	timeline = "state-timeline"
	stat     = "stat"
	bars     = "bargauge"
	height   = 8
	perMin   = "cpm"
	perSec   = "reqps"
	seconds  = "s"
	number   = "short"
	share    = "percentunit"
	size     = "bytes"
)

// by returns " by (a, b) ", or nothing without labels.
func by(labels string) string {
	if labels == "" {
		return ""
	}
	return " by (" + labels + ") "
}

// rate is a counter's rise a second, summed.
func rate(labels, of string) string {
	return fmt.Sprintf("sum%s(rate(%s[$__rate_interval]))", by(labels), name(of))
}

// minutely is a counter's rise a minute, as the thresholds of adr-013 are stated.
func minutely(labels, of string) string { return "60 * " + rate(labels, of) }

// rise is by how much a counter rose over a time.
func rise(labels, of, over string) string {
	return fmt.Sprintf("sum%s(increase(%s[%s]))", by(labels), name(of), over)
}

func aggregate(how, labels, of string) string { return how + by(labels) + "(" + name(of) + ")" }

// highest is for what all processes tell alike, and for what the worst of them tells.
func highest(labels, of string) string { return aggregate("max", labels, of) }
func lowest(labels, of string) string  { return aggregate("min", labels, of) }
func total(labels, of string) string   { return aggregate("sum", labels, of) }

// part is a of b, and no point where b is 0.
func part(a, b string) string { return fmt.Sprintf("%s / (%s > 0)", a, b) }

// partOf is a of b where a may have no series: none of b is 0.
func partOf(a, b string) string { return part(fmt.Sprintf("(%s or 0 * %s)", a, b), b) }

// quantiles asks for some of a histogram; labels are those that stand in the legend.
func quantiles(of, legend, labels string, qs ...int) []ask {
	metric, matchers, _ := strings.Cut(of, "{")
	if matchers != "" {
		matchers = "{" + matchers
	}
	if labels != "" {
		labels = ", " + labels
	}
	var asks []ask
	for _, q := range qs {
		asks = append(asks, ask{
			expr:   fmt.Sprintf("histogram_quantile(0.%02d, %s)", q, rate("le"+labels, metric+"_bucket"+matchers)),
			legend: strings.TrimSpace(fmt.Sprintf("%s p%d", legend, q)),
		})
	}
	return asks
}

// mean is the mean of a histogram's values.
func mean(labels, of string) string {
	metric, matchers, _ := strings.Cut(of, "{")
	return part(rate(labels, metric+"_sum{"+matchers), rate(labels, metric+"_count{"+matchers))
}

// name puts the namespace before what is of freshet.
func name(of string) string {
	if strings.HasPrefix(of, "go_") || strings.HasPrefix(of, "process_") {
		return of
	}
	return namespace + of
}

// one asks for one thing.
func one(expr, legend string) []ask { return []ask{{expr, legend}} }

func all(asks ...[]ask) []ask {
	var joined []ask
	for _, a := range asks {
		joined = append(joined, a...)
	}
	return joined
}
