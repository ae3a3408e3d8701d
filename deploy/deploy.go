// Package deploy has the files that operators load into their tools: Grafana dashboards and
// Prometheus rules. The package reads the queries in these files. Tests compare the queries with
// docs/metrics.md, and run them against a Prometheus that scrapes freshet.
package deploy

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
)

//go:embed grafana/dashboards/*.json prometheus/rules/*.yml
var files embed.FS

// Panel is a panel of a dashboard with its queries.
type Panel struct {
	Dashboard, Row, Title string
	// Exprs are PromQL, with Grafana's variables replaced.
	Exprs []string
}

// Rule is a recording rule or an alerting rule: exactly one of Record and Alert contains its name.
// Severity is the value of an alert's label "severity". Runbook is the value of an alert's annotation
// runbook_url.
type Rule struct {
	Group, Record, Alert, Expr, Severity, Runbook string
}

// dashboard has the decoded fields of a dashboard's JSON.
type dashboard struct {
	Title      string
	Panels     []element
	Templating struct{ List []variable }
}

type element struct {
	Type, Title string
	Targets     []struct{ Expr string }
	Panels      []element // the panels inside a collapsed row
}

type variable struct {
	Name, Type string
	Query      json.RawMessage // the query as a string, or an object that contains the string in its field "query"
}

// Panels returns every panel that has queries, from all dashboards. It adds one panel for each
// dashboard variable that reads its values from a metric. interval, such as "5m", replaces the
// ranges that Grafana would choose.
func Panels(interval string) ([]Panel, error) {
	var panels []Panel
	err := readEach("grafana/dashboards/*.json", func(name string, text []byte) error {
		var d dashboard
		if err := json.Unmarshal(text, &d); err != nil {
			return err
		}
		fill := d.variableReplacer(interval)
		for _, v := range d.Templating.List {
			if metric := v.metric(); metric != "" {
				panels = append(panels, Panel{Dashboard: d.Title, Title: "variable " + v.Name, Exprs: []string{fill.Replace(metric)}})
			}
		}
		row := ""
		var walk func([]element)
		walk = func(elements []element) {
			for _, e := range elements {
				if e.Type == "row" {
					row = e.Title
				}
				walk(e.Panels)
				if len(e.Targets) == 0 {
					continue
				}
				p := Panel{Dashboard: d.Title, Row: row, Title: e.Title}
				for _, target := range e.Targets {
					p.Exprs = append(p.Exprs, fill.Replace(target.Expr))
				}
				panels = append(panels, p)
			}
		}
		walk(d.Panels)
		return nil
	})
	return panels, err
}

// variableReplacer returns a replacer of Grafana's variables in a query. It replaces the built-in
// variables for time ranges by `interval`. It replaces the variables of the dashboard by ".*", because
// the dashboard uses its variables only in regular expression matchers.
func (d *dashboard) variableReplacer(interval string) *strings.Replacer {
	var pairs []string
	// The replacer tries the names in this order. So a longer name must come before a shorter name
	// that is the beginning of the longer name.
	for _, name := range []string{"__rate_interval", "__interval", "__range"} {
		pairs = append(pairs, "${"+name+"}", interval, "$"+name, interval)
	}
	for _, v := range d.Templating.List {
		pairs = append(pairs, "${"+v.Name+"}", ".*", "$"+v.Name, ".*")
	}
	return strings.NewReplacer(pairs...)
}

var labelValues = regexp.MustCompile(`^label_values\((.+), *[a-zA-Z_]+\)$`)

// metric returns the metric that the variable reads its values from, or an empty string.
func (v *variable) metric() string {
	if v.Type != "query" {
		return ""
	}
	var query string
	if json.Unmarshal(v.Query, &query) != nil {
		var object struct{ Query string }
		if json.Unmarshal(v.Query, &object) != nil {
			return ""
		}
		query = object.Query
	}
	if m := labelValues.FindStringSubmatch(query); m != nil {
		return m[1]
	}
	return ""
}

// Rules returns every rule of the rule files.
func Rules() ([]Rule, error) {
	var rules []Rule
	err := readEach("prometheus/rules/*.yml", func(_ string, text []byte) error {
		var d struct {
			Groups []struct {
				Name  string
				Rules []struct {
					Record, Alert, Expr string
					Labels, Annotations map[string]string
				}
			}
		}
		if err := yaml.Unmarshal(text, &d); err != nil {
			return err
		}
		for _, group := range d.Groups {
			for _, r := range group.Rules {
				if cmp.Or(r.Record, r.Alert) == "" || r.Expr == "" {
					return fmt.Errorf("group %s: a rule has no name or no expression", group.Name)
				}
				rules = append(rules, Rule{
					Group: group.Name, Record: r.Record, Alert: r.Alert, Expr: r.Expr,
					Severity: r.Labels["severity"], Runbook: r.Annotations["runbook_url"],
				})
			}
		}
		return nil
	})
	return rules, err
}

// readEach calls the function `read` for each embedded file that matches a pattern.
func readEach(pattern string, read func(name string, text []byte) error) error {
	names, err := fs.Glob(files, pattern)
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err == nil {
			err = read(path.Base(name), text)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
	}
	return nil
}
