package deploy

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// object is a JSON object. Its JSON has sorted keys, so that a board always gives the same text.
type object = map[string]any

type list = []any

var datasource = object{"type": "prometheus", "uid": "${datasource}"}

// grafana returns the JSON of a board in the format of Grafana 11. Newer Grafana versions convert
// this format when they load the dashboard.
func (b board) grafana() ([]byte, error) {
	var panels list
	id, y := 0, 0
	place := func(p object, x, w, h int) {
		id++
		p["id"], p["gridPos"] = id, object{"x": x, "y": y, "w": w, "h": h}
		panels = append(panels, p)
	}
	for _, r := range b.rows {
		place(object{"type": "row", "title": r.title, "collapsed": false, "panels": list{}}, 0, 24, 1)
		y++
		x := 0
		for _, p := range r.panels {
			if x+p.width > 24 {
				x, y = 0, y+height
			}
			place(p.grafana(), x, p.width, height)
			x += p.width
		}
		y += height
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(object{
		"uid": b.uid, "title": b.title, "description": b.description, "tags": list{"freshet"},
		"schemaVersion": 39, "version": 1, "editable": true, "graphTooltip": 1, "refresh": "30s", "timezone": "browser",
		"time": object{"from": "now-1h", "to": "now"}, "templating": object{"list": b.templating()}, "panels": panels,
		"annotations": object{"list": list{}},
		"links": list{object{
			"title": "freshet", "type": "dashboards", "tags": list{"freshet"}, "asDropdown": false, "includeVars": true, "keepTime": true,
		}},
	})
	return text.Bytes(), err
}

func (b board) templating() list {
	variables := list{object{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}}
	for _, of := range b.variables {
		label := strings.TrimSuffix(of[strings.LastIndex(of, " ")+1:], ")")
		v := object{
			"name": label, "label": label, "type": "query", "datasource": datasource, "definition": of,
			"query": object{"query": of, "refId": "variable"}, "refresh": 2, "sort": 1, "multi": true, "includeAll": true,
			"current": object{"text": list{"All"}, "value": list{"$__all"}},
		}
		if label == "source" {
			// Grafana lists only sources for which a limiter has exported a metric. With the
			// pattern ".*", the choice "All" also includes sources that are not listed yet.
			v["allValue"] = ".*"
		}
		variables = append(variables, v)
	}
	return variables
}

func (p panel) grafana() object {
	kind := p.kind
	if kind == "" {
		kind = "timeseries"
	}
	var targets list
	for i, a := range p.queries {
		// A panel with a single value uses an instant query. The last value of a range query could
		// belong to a series that has ended, such as a former state of the limiter.
		now := kind == stat || kind == bars
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "datasource": datasource, "editorMode": "code",
			"expr": a.expr, "legendFormat": a.legend, "range": !now, "instant": now,
		})
	}
	defaults := object{"unit": p.unit, "custom": p.custom(kind), "mappings": p.mappings(), "thresholds": p.thresholds()}
	switch {
	case len(p.states) > 0:
		defaults["color"] = object{"mode": "thresholds"}
	case kind == "timeseries":
		defaults["color"] = object{"mode": "palette-classic"}
		defaults["min"] = 0
	case kind == bars:
		defaults["color"] = object{"mode": "continuous-YlRd"}
		defaults["min"] = 0
	default:
		defaults["color"] = object{"mode": "fixed", "fixedColor": "text"}
	}
	if p.share {
		defaults["max"] = 1
	}
	return object{
		"type": kind, "title": p.title, "description": p.description, "datasource": datasource, "targets": targets,
		"fieldConfig": object{"defaults": defaults, "overrides": p.overrides(kind)}, "options": p.options(kind),
	}
}

func (p panel) overrides(kind string) list {
	colours := p.colours
	if kind == "timeseries" {
		colours = laneColours
	}
	overrides := list{}
	for _, c := range colours {
		overrides = append(overrides, object{
			"matcher":    object{"id": "byRegexp", "options": c.pattern},
			"properties": list{object{"id": "color", "value": object{"mode": "fixed", "fixedColor": c.name}}},
		})
	}
	return overrides
}

func (p panel) custom(kind string) object {
	switch kind {
	case timeline:
		return object{"fillOpacity": 80, "lineWidth": 0}
	case "timeseries":
		custom := object{
			"lineWidth": 1, "fillOpacity": 0, "showPoints": "never", "spanNulls": false,
			"stacking":        object{"mode": "none", "group": "A"},
			"thresholdsStyle": object{"mode": "off"},
		}
		if p.stacked {
			custom["fillOpacity"], custom["stacking"] = 40, object{"mode": "normal", "group": "A"}
		}
		if len(p.lines) > 0 {
			custom["thresholdsStyle"] = object{"mode": "dashed"}
		}
		return custom
	}
	return object{}
}

func (p panel) thresholds() object {
	steps := list{object{"color": "green", "value": nil}}
	for _, l := range p.lines {
		steps = append(steps, object{"color": l.colour, "value": l.at})
	}
	for _, s := range p.states {
		switch {
		case s.colour == "":
		case s.value > 0:
			steps = append(steps, object{"color": s.colour, "value": s.value})
		default:
			steps[0] = object{"color": s.colour, "value": nil}
		}
	}
	return object{"mode": "absolute", "steps": steps}
}

func (p panel) mappings() list {
	if len(p.states) == 0 {
		return list{}
	}
	texts := object{}
	for i, s := range p.states {
		word := object{"index": i, "text": s.text}
		if s.colour != "" {
			word["color"] = s.colour
		}
		texts[strconv.Itoa(s.value)] = word
	}
	return list{object{"type": "value", "options": texts}}
}

func (p panel) options(kind string) object {
	last := object{"calcs": list{"lastNotNull"}, "fields": "", "values": false}
	switch kind {
	case timeline:
		return object{
			"mergeValues": true, "showValue": "auto", "alignValue": "left", "rowHeight": 0.9, "tooltip": object{"mode": "single"},
			"legend": object{"showLegend": false, "displayMode": "list", "placement": "bottom"},
		}
	case stat:
		return object{
			"reduceOptions": last, "colorMode": "background", "graphMode": "none", "textMode": "value_and_name",
			"justifyMode": "auto", "orientation": "auto", "wideLayout": true,
		}
	case bars:
		return object{
			"reduceOptions": last, "orientation": "horizontal", "displayMode": "basic", "valueMode": "color", "showUnfilled": true,
			"namePlacement": "left", "sizing": "auto", "minVizHeight": 16, "minVizWidth": 8, "maxVizHeight": 40,
		}
	}
	return object{
		"tooltip": object{"mode": "multi", "sort": "desc"},
		"legend":  object{"showLegend": true, "displayMode": "list", "placement": "bottom", "calcs": list{}},
	}
}

// updateGolden is the flag -update. With it, the golden-file tests write the files that they
// otherwise compare.
var updateGolden = flag.Bool("update", false, "write the golden files")

func TestDashboards_MatchGoldenFiles(t *testing.T) {
	for _, b := range []board{pipeline, readers, process} {
		text, err := b.grafana()
		if err != nil {
			t.Fatal(err)
		}
		golden := "grafana/dashboards/" + b.uid + ".json"
		if *updateGolden {
			if err := os.WriteFile(filepath.FromSlash(golden), text, 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if there, err := files.ReadFile(golden); err != nil || !bytes.Equal(there, text) {
			t.Errorf("deploy/%s: got another text than the definition gives (%v); write it with: go test ./deploy -update", golden, err)
		}
	}
}
