package deploy

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documentedMetrics contains the metrics that docs/metrics.md lists: labels and kind by name. A
// documented name that ends in an ellipsis is the prefix of a family of metrics.
type documentedMetrics struct {
	labels   map[string][]string
	kinds    map[string]string
	families map[string][]string
}

var quoted = regexp.MustCompile("`([^`]+)`")

func readMetricsPage(t *testing.T) documentedMetrics {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	d := documentedMetrics{map[string][]string{}, map[string]string{}, map[string][]string{}}
	var common []string
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "## "):
			common = nil
		case strings.HasPrefix(line, "All have the label"):
			common = quotedNames(line)
		}
		cells := strings.Split(strings.TrimSpace(line), "|")
		if !strings.HasPrefix(line, "| `") || len(cells) != 6 {
			continue
		}
		for _, name := range quotedNames(cells[1]) {
			labels := append(quotedNames(cells[3]), common...)
			if begins, is := strings.CutSuffix(name, "…"); is {
				if begins != "go_" && begins != "process_" {
					begins = namespace + begins
				}
				d.families[begins] = labels
				continue
			}
			d.labels[namespace+name], d.kinds[namespace+name] = labels, strings.TrimSpace(cells[2])
		}
	}
	return d
}

func quotedNames(text string) []string {
	var names []string
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}

// labelsOf returns the labels of a metric, and whether docs/metrics.md lists the metric.
func (d documentedMetrics) labelsOf(name string) ([]string, bool) {
	if labels, found := d.labels[name]; found {
		return labels, true
	}
	for begins, labels := range d.families {
		if strings.HasPrefix(name, begins) {
			return labels, true
		}
	}
	return nil, false
}

// everywhere lists labels that any metric may have, because Prometheus or the histogram format adds
// them.
var everywhere = []string{"le", "job", "instance", "quantile", "alertname", "severity"}

// faults returns the metrics and labels in an expression that docs/metrics.md does not list. A name
// with a colon must be the name of a recording rule; its labels are not checked.
func (d documentedMetrics) faults(expr string, recorded map[string]bool) []string {
	var found []string
	fault := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	has := func(name, label string) bool {
		labels, _ := d.labelsOf(name)
		return strings.Contains(name, ":") || slices.Contains(labels, label)
	}
	all := tokens(expr)
	// label_replace and label_join add new labels, so the labels in an expression that calls one of
	// these functions are not checked.
	made := strings.Contains(expr, "label_replace(") || strings.Contains(expr, "label_join(")
	for i, t := range all {
		switch {
		case t.kind == metric && strings.Contains(t.text, ":"):
			if !recorded[t.text] {
				fault("no rule records %s", t.text)
			}
		case t.kind == metric && t.text != "up" && t.text != "ALERTS":
			if _, is := d.labelsOf(family(t.text)); !is {
				fault("no metric %s", t.text)
			} else if kind := d.kinds[family(t.text)]; (kind == "histogram") != (family(t.text) != t.text) && kind != "" {
				fault("%s is used as another kind than a %s", t.text, kind)
			}
		case t.kind != label || slices.Contains(everywhere, t.text) || made:
		case t.of == "by":
			for _, name := range aggregatedMetrics(all, i) {
				if !has(name, t.text) {
					fault("%s has no label %s to aggregate by", name, t.text)
				}
			}
		case slices.Contains(modifiers, t.of):
			if !slices.ContainsFunc(metricsOf(all), func(name string) bool { return has(name, t.text) }) {
				fault("nothing has the label %s of %s", t.text, t.of)
			}
		case !has(family(t.of), t.text):
			fault("%s has no label %s", t.of, t.text)
		}
	}
	return found
}

func metricsOf(all []token) []string {
	var names []string
	for _, t := range all {
		if t.kind == metric && t.text != "up" && t.text != "ALERTS" {
			names = append(names, family(t.text))
		}
	}
	return names
}

// aggregatedMetrics returns the metrics that an aggregation reads. Example: in "sum by (a) (m)" it
// returns m. It also accepts the form "sum(m) by (a)". `at` is the index of any label in the list
// after "by"; in the example, this label is "a".
func aggregatedMetrics(all []token, at int) []string {
	closed := at + slices.IndexFunc(all[at:], func(t token) bool { return t.kind == sign && t.text == ")" })
	if next := closed + 1; next < len(all) && all[next].kind == sign && all[next].text == "(" {
		return metricsOf(all[next:matchingParenthesis(all, next, 1)])
	}
	opened := at
	for all[opened].kind != modifier {
		opened--
	}
	return metricsOf(all[matchingParenthesis(all, opened-1, -1):opened])
}

// matchingParenthesis returns the index of the parenthesis that matches the parenthesis at the
// index `at`. It searches forwards if `step` is 1, and backwards if `step` is -1.
func matchingParenthesis(all []token, at, step int) int {
	depth := 0
	for ; at >= 0 && at < len(all); at += step {
		switch {
		case all[at].kind != sign:
		case all[at].text == "(":
			depth++
		case all[at].text == ")":
			depth--
		}
		if depth == 0 {
			return at
		}
	}
	return max(0, min(at, len(all)))
}

func TestQueries_UseDocumentedMetrics(t *testing.T) {
	d := readMetricsPage(t)
	if len(d.labels) < 50 || len(d.families) < 5 || !slices.Contains(d.labels["freshet_settled_total"], "source") {
		t.Fatalf("docs/metrics.md: got %d metrics and %d families, want the tables in their known format", len(d.labels), len(d.families))
	}
	panels, err := Panels("5m")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := Rules()
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string]bool{}
	for _, r := range rules {
		recorded[r.Record] = true
	}
	for _, p := range panels {
		for _, expr := range p.Exprs {
			for _, fault := range d.faults(expr, recorded) {
				t.Errorf("%s, %s, %s: %s\n%s", p.Dashboard, p.Row, p.Title, fault, expr)
			}
		}
	}
	for _, r := range rules {
		for _, fault := range d.faults(r.Expr, recorded) {
			t.Errorf("rule %s%s: %s\n%s", r.Record, r.Alert, fault, r.Expr)
		}
	}
}

func TestFaults_FindUndocumentedMetrics(t *testing.T) {
	d := readMetricsPage(t)
	recorded := map[string]bool{"a:b:c": true}
	for expr, want := range map[string]string{
		`sum by (priority) (rate(freshet_settled_total{end="x", source=~"a,b{"}[5m])) / on (priority) a:b:c > 1e3`: "",
		`histogram_quantile(0.95, sum by (le) (rate(freshet_update_latency_seconds_bucket[5m])))`:                  "",
		`sum(freshet_dlq_message_count offset 1h) by (topic) # (x`:                                                 "",
		`freshet_kafka_client_connects_total{client="a"} and on () up{job="x"} == bool 1 or vector(0)`:             "",
		`freshet_nothing`:                   "no metric freshet_nothing",
		`settled_total`:                     "no metric settled_total",
		`rate(freshet_settled[5m])`:         "no metric freshet_settled",
		`freshet_update_latency_seconds`:    "another kind than a histogram",
		`freshet_reads_total{route="x"}`:    "freshet_reads_total has no label route",
		`a:b:d`:                             "no rule records a:b:d",
		`sum(freshet_low_yielding) by (to)`: "no label to to aggregate by",
		`sum by (facet) (freshet_reads_total) / sum by (facet) (freshet_low_yielding)`: "freshet_low_yielding has no label facet",
		`freshet_reads_total / on (end) freshet_low_yielding`:                          "nothing has the label end",
		`freshet_kafka_client_connects_total{node_id="1"}`:                             "has no label node_id",
	} {
		faults := strings.Join(d.faults(expr, recorded), "; ")
		if want == "" && faults != "" || !strings.Contains(faults, want) {
			t.Errorf("faults of %s: got %q, want %q", expr, faults, want)
		}
	}
}

func TestFamily_KnowsEveryHistogram(t *testing.T) {
	for name, kind := range readMetricsPage(t).kinds {
		if is := family(name+"_sum") == name; kind == "histogram" && !is {
			t.Errorf("family of %s_sum: got another name, want %[1]s", name)
		}
		if family(name) != name {
			t.Errorf("family of %s: got %s, want the same name", name, family(name))
		}
	}
}

func TestMetrics_ReturnsNamesOfExpression(t *testing.T) {
	got := Metrics(`histogram_quantile(0.5, sum by (le) (rate(freshet_db_batch_size_bucket{doing="freshet_no"}[5m]))) +
		freshet_db_batch_size_sum > a:b:rate5m and freshet_dlq_message_count unless go_goroutines`)
	if want := []string{"freshet_db_batch_size", "a:b:rate5m", "freshet_dlq_message_count"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
