package deploy

import (
	"fmt"
	"strings"
)

// The dashboards are defined in Go. `go test ./deploy -update` writes the JSON that Grafana
// provisions.

type board struct {
	uid, title, description string
	variables               []string // one query for each variable: label_values(METRIC, source) gives the variable "source"
	rows                    []row
}

type row struct {
	title  string
	panels []panel
}

// panel is one panel of a dashboard. Its description states the normal values and the causes of
// other values.
type panel struct {
	title, description string
	unit               string
	width              int    // width in columns; a row of the dashboard has 24 columns
	kind               string // type of the panel in Grafana; empty means timeseries
	queries            []query
	lines              []line
	stacked            bool
	share              bool     // the values are shares from 0 to 1, so the axis ends at 1
	states             []status // texts that the panel shows in place of values
	colours            []colour // colours of the panel's time series
}

type query struct{ expr, legend string }

// line is a horizontal line in a panel. It marks the threshold `at`.
type line struct {
	at     float64
	colour string
}

// status is the text that a panel shows in place of a value, and the colour of that text. If the
// panel also defines a colour for the time series, the colour of the time series is used.
type status struct {
	value        int
	text, colour string
}

// colour is the colour of all series with a legend that matches the pattern.
type colour struct{ pattern, name string }

func warn(at float64) line     { return line{at, "orange"} }
func critical(at float64) line { return line{at, "red"} }

// breaker lists the texts for the values of a circuit breaker's gauge.
var breaker = []status{{0, "closed", "green"}, {1, "half-open", "yellow"}, {2, "open", "red"}}

// limiterStates lists the colours of the limiter's states.
var limiterStates = []colour{
	{"/(flowing|unused)$/", "green"},
	{"/(ramping|quiet-period|restoring-count)$/", "yellow"},
	{"/(backing-off|breaker-open)$/", "orange"},
	{"/stopped$/", "red"},
}

// laneColours lists the colours of the lanes HIGH and LOW. Every graph uses these colours.
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

// by returns the part " by (a, b) " of a PromQL query for the labels "a, b". If labels is empty, it
// returns an empty string.
func by(labels string) string {
	if labels == "" {
		return ""
	}
	return " by (" + labels + ") "
}

// rate returns a query for the rate of a counter per second, summed by the labels. The parameter `of`
// is the counter's name without the namespace, with optional matchers.
func rate(labels, of string) string {
	return fmt.Sprintf("sum%s(rate(%s[$__rate_interval]))", by(labels), metricName(of))
}

// perMinute returns the query of rate, converted to events per minute: adr-013 states its
// thresholds per minute.
func perMinute(labels, of string) string { return "60 * " + rate(labels, of) }

// increase returns a query for the increase of a counter during a range such as "5m", summed by the
// labels.
func increase(labels, of, over string) string {
	return fmt.Sprintf("sum%s(increase(%s[%s]))", by(labels), metricName(of), over)
}

func aggregate(how, labels, of string) string { return how + by(labels) + "(" + metricName(of) + ")" }

// maxBy returns a query for the maximum of a gauge over all processes. Panels use it for gauges
// that have the same value in all processes, and to show the worst process.
func maxBy(labels, of string) string { return aggregate("max", labels, of) }
func minBy(labels, of string) string { return aggregate("min", labels, of) }
func sumBy(labels, of string) string { return aggregate("sum", labels, of) }

// ratio returns the query a / b. The query has no value at times when b is 0.
func ratio(a, b string) string { return fmt.Sprintf("%s / (%s > 0)", a, b) }

// ratioOrZero returns the query a / b, in which "a" counts as 0 while it has no series.
func ratioOrZero(a, b string) string { return ratio(fmt.Sprintf("(%s or 0 * %s)", a, b), b) }

// quantiles returns one query for each quantile in qs, in percent, of a histogram. The parameter
// `labels` lists the labels that distinguish the series.
func quantiles(of, legend, labels string, qs ...int) []query {
	metric, matchers, _ := strings.Cut(of, "{")
	if matchers != "" {
		matchers = "{" + matchers
	}
	if labels != "" {
		labels = ", " + labels
	}
	var all []query
	for _, q := range qs {
		all = append(all, query{
			expr:   fmt.Sprintf("histogram_quantile(0.%02d, %s)", q, rate("le"+labels, metric+"_bucket"+matchers)),
			legend: strings.TrimSpace(fmt.Sprintf("%s p%d", legend, q)),
		})
	}
	return all
}

// mean returns a query for the mean of a histogram's values.
func mean(labels, of string) string {
	metric, matchers, _ := strings.Cut(of, "{")
	return ratio(rate(labels, metric+"_sum{"+matchers), rate(labels, metric+"_count{"+matchers))
}

// metricName adds the namespace to the name of a metric of freshet.
func metricName(of string) string {
	if strings.HasPrefix(of, "go_") || strings.HasPrefix(of, "process_") {
		return of
	}
	return namespace + of
}

// oneQuery returns a list with one query.
func oneQuery(expr, legend string) []query { return []query{{expr, legend}} }

func joinQueries(all ...[]query) []query {
	var joined []query
	for _, a := range all {
		joined = append(joined, a...)
	}
	return joined
}
