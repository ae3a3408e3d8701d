package deploy

import (
	"encoding/json"
	"strings"
	"testing"
)

// shown is what the checks read of a dashboard's JSON.
type shown struct {
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
	err := each("grafana/dashboards/*.json", func(name string, text []byte) error {
		var d shown
		if err := json.Unmarshal(text, &d); err != nil {
			return err
		}
		if d.UID+".json" != name || uids[d.UID] || d.Title == "" || d.SchemaVersion < 39 || len(d.Tags) == 0 {
			t.Errorf("%s: uid %q, title %q, schema %d, tags %q", name, d.UID, d.Title, d.SchemaVersion, d.Tags)
		}
		uids[d.UID] = true
		if d.Refresh != "30s" || d.Time.From != "now-1h" || d.Time.To != "now" {
			t.Errorf("%s shows %s to %s every %s", name, d.Time.From, d.Time.To, d.Refresh)
		}
		if v := d.Templating.List; len(v) == 0 || v[0].Name != "datasource" || v[0].Type != "datasource" {
			t.Errorf("%s does not ask first which Prometheus to read", name)
		}
		ids := map[int]bool{}
		taken := map[[2]int]string{}
		bottom := 0
		for _, p := range d.Panels {
			says := func(what string) { t.Errorf("%s, panel %d %q: %s", name, p.ID, p.Title, what) }
			if p.ID == 0 || ids[p.ID] {
				says("its id is not its own")
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" || x > 23 {
						says("it lies over " + other + " or beyond the edge")
					}
					taken[[2]int{x, y}] = p.Title + " "
				}
			}
			bottom = max(bottom, p.GridPos.Y+p.GridPos.H)
			if p.Title == "" {
				says("no title")
			}
			if p.Type == "row" {
				continue
			}
			if p.FieldConfig.Defaults.Unit == "" {
				says("no unit")
			}
			if !strings.Contains(p.Description, "Normal: ") {
				says("its description does not say what is normal")
			}
			if len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" || p.Datasource.Type != "prometheus" {
				says("it asks nothing, or not the Prometheus that was chosen")
			}
			refs := map[string]bool{}
			for _, target := range p.Targets {
				if target.Expr == "" || target.LegendFormat == "" || target.Datasource.UID != "${datasource}" || refs[target.RefID] {
					says("query " + target.RefID + " lacks something")
				}
				refs[target.RefID] = true
			}
		}
		if len(taken) != 24*bottom {
			t.Errorf("%s has gaps: %d of %d places are taken", name, len(taken), 24*bottom)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(uids) < 3 {
		t.Errorf("only %d dashboards", len(uids))
	}
}

func TestPipelineDashboard_HasRowsOfADR013(t *testing.T) {
	want := []string{"Rate limit overview", "Kafka lag trend", "Processing SLA", "Circuit breaker status", "Dead letters", "Prefetch"} // the last is ours
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
		t.Errorf("the rows are %q, want %q", rows, want)
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
				t.Errorf("%s, %s: %s", p.Dashboard, p.Title, expr)
			}
		}
	}
	if variables != 3 || len(panels) < 60 {
		t.Errorf("%d panels, %d of variables", len(panels), variables)
	}
	d := document{}
	d.Templating.List = []variable{{Name: "source"}}
	got := d.filler("7m").Replace(`rate(x{source=~"$source",t=~"${source}[.]a"}[$__rate_interval]) + y[$__range] + z[${__interval}]`)
	if want := `rate(x{source=~".*",t=~".*[.]a"}[7m]) + y[7m] + z[7m]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
