package deploy

import (
	"encoding/json"
	"strings"
	"testing"
)

// dashboardJSON has the fields of a dashboard's JSON that the test checks.
type dashboardJSON struct {
	UID, Title, Refresh string
	Time                struct{ From, To string }
	Tags                []string
	SchemaVersion       int
	Templating          struct {
		List []struct{ Name, Type string }
	}
	Panels []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		FieldConfig              struct{ Defaults struct{ Unit string } }
		Datasource               struct{ Type, UID string }
		Targets                  []struct {
			RefID, Expr, LegendFormat string
			Datasource                struct{ UID string }
		}
	}
}

func TestDashboards_PanelsAreCompleteAndDoNotOverlap(t *testing.T) {
	uids := map[string]bool{}
	err := readEach("grafana/dashboards/*.json", func(name string, text []byte) error {
		var d dashboardJSON
		if err := json.Unmarshal(text, &d); err != nil {
			return err
		}
		if d.UID+".json" != name || uids[d.UID] || d.Title == "" || d.SchemaVersion < 39 || len(d.Tags) == 0 {
			t.Errorf("%s: got uid %q, title %q, schemaVersion %d, tags %q; want the uid of the file name, a title, at least 39, tags", name, d.UID, d.Title, d.SchemaVersion, d.Tags)
		}
		uids[d.UID] = true
		if d.Refresh != "30s" || d.Time.From != "now-1h" || d.Time.To != "now" {
			t.Errorf("%s: got the time range %s to %s, refresh %s; want now-1h to now, 30s", name, d.Time.From, d.Time.To, d.Refresh)
		}
		if v := d.Templating.List; len(v) == 0 || v[0].Name != "datasource" || v[0].Type != "datasource" {
			t.Errorf("%s: got the variables %v, want the data source first", name, v)
		}
		ids := map[int]bool{}
		taken := map[[2]int]string{}
		bottom := 0
		for _, p := range d.Panels {
			fault := func(text string) { t.Errorf("%s, panel %d %q: %s", name, p.ID, p.Title, text) }
			if p.ID == 0 || ids[p.ID] {
				fault("got no id or a duplicate, want a unique id")
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" || x > 23 {
						fault("overlaps with " + other + "or exceeds the width")
					}
					taken[[2]int{x, y}] = p.Title + " "
				}
			}
			bottom = max(bottom, p.GridPos.Y+p.GridPos.H)
			if p.Title == "" {
				fault("got no title")
			}
			if p.Type == "row" {
				continue
			}
			if p.FieldConfig.Defaults.Unit == "" {
				fault("got no unit")
			}
			if !strings.Contains(p.Description, "Normal: ") {
				fault(`got no "Normal: " in the description`)
			}
			if len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" || p.Datasource.Type != "prometheus" {
				fault("got no query, or another data source than the chosen one")
			}
			refs := map[string]bool{}
			for _, target := range p.Targets {
				if target.Expr == "" || target.LegendFormat == "" || target.Datasource.UID != "${datasource}" || refs[target.RefID] {
					fault("query " + target.RefID + ": got no expression, no legend, another data source or a duplicate refId")
				}
				refs[target.RefID] = true
			}
		}
		if len(taken) != 24*bottom {
			t.Errorf("%s: got %d cells with panels, want all %d", name, len(taken), 24*bottom)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(uids) < 3 {
		t.Errorf("dashboards: got %d, want at least 3", len(uids))
	}
}

func TestPipelineDashboard_HasRowsOfADR013(t *testing.T) {
	want := []string{"Rate limit overview", "Kafka lag trend", "Processing SLA", "Circuit breaker status", "Dead letters", "Prefetch", "Collections"} // adr-013 requires the first five rows
	panels, err := Panels("5m")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, p := range panels {
		if p.Dashboard == pipeline.title && p.Row != "" && (len(rows) == 0 || rows[len(rows)-1] != p.Row) {
			rows = append(rows, p.Row)
		}
	}
	if strings.Join(rows, "; ") != strings.Join(want, "; ") {
		t.Errorf("rows: got %q, want %q", rows, want)
	}
}

func TestPanels_ReplaceGrafanaVariables(t *testing.T) {
	panels, err := Panels("7m")
	if err != nil {
		t.Fatal(err)
	}
	variables := 0
	for _, p := range panels {
		if strings.HasPrefix(p.Title, "variable ") {
			variables++
		}
		for _, expr := range p.Exprs {
			if strings.Contains(expr, "$") {
				t.Errorf("%s, %s: got a variable in %s, want none", p.Dashboard, p.Title, expr)
			}
		}
	}
	if variables != 3 || len(panels) < 60 {
		t.Errorf("got %d panels and %d variables, want at least 60 and 3", len(panels), variables)
	}
	d := dashboard{}
	d.Templating.List = []variable{{Name: "source"}}
	got := d.variableReplacer("7m").Replace(`rate(x{source=~"$source",t=~"${source}[.]a"}[$__rate_interval]) + y[$__range] + z[${__interval}]`)
	if want := `rate(x{source=~".*",t=~".*[.]a"}[7m]) + y[7m] + z[7m]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
