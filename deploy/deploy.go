// Package deploy holds what operators load into their own tools, Grafana's
// dashboards and Prometheus' rules, and reads it: which metrics a panel or an
// alert asks for is tested, and can be asked of a Prometheus that watches freshet.
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

// Panel is a panel of a dashboard with what it asks Prometheus for.
type Panel struct {
	Dashboard, Row, Title string
	// Exprs are PromQL: Grafana's variables are replaced.
	Exprs []string
}

// Rule is one rule of Prometheus: Record or Alert is its name. Severity and
// Runbook are an alert's label severity and annotation runbook_url.
type Rule struct {
	Group, Record, Alert, Expr, Severity, Runbook string
}

// document is what is read of a dashboard.
type document struct {
	Title      string
	Panels     []element
	Templating struct{ List []variable }
}

type element struct {
	Type, Title string
	Targets     []struct{ Expr string }
	Panels      []element // of a row that is collapsed
}

type variable struct {
	Name, Type string
	Query      json.RawMessage // a string, or an object that holds one
}

// Panels returns every panel of every dashboard that asks for something, and,
// as a panel each, what the dashboards' variables take their values from. A range
// that Grafana would choose becomes interval, as "5m".
func Panels(interval string) ([]Panel, error) {
	var panels []Panel
	err := each("grafana/dashboards/*.json", func(name string, text []byte) error {
		var d document
		if err := json.Unmarshal(text, &d); err != nil {
			return err
		}
		fill := d.filler(interval)
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

// filler replaces Grafana's variables; those of the dashboard stand in matchers
// of regular expressions, where they become anything.
func (d *document) filler(interval string) *strings.Replacer {
	var pairs []string
	for _, name := range []string{"__rate_interval", "__interval", "__range"} { // the longer of two that begin alike comes first
		pairs = append(pairs, "${"+name+"}", interval, "$"+name, interval)
	}
	for _, v := range d.Templating.List {
		pairs = append(pairs, "${"+v.Name+"}", ".*", "$"+v.Name, ".*")
	}
	return strings.NewReplacer(pairs...)
}

var labelValues = regexp.MustCompile(`^label_values\((.+), *[a-zA-Z_]+\)$`)

// metric returns what the variable's values are read from, if it is a query for
// the values of a metric's label.
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

// Rules returns every rule that Prometheus is given.
func Rules() ([]Rule, error) {
	var rules []Rule
	err := each("prometheus/rules/*.yml", func(_ string, text []byte) error {
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
					return fmt.Errorf("group %s has a rule without a name or an expression", group.Name)
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

// each reads the embedded files of a pattern.
func each(pattern string, read func(name string, text []byte) error) error {
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
