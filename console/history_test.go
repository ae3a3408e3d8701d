package console

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/source"
)

// overviewJSON returns the JSON of the overview page.
func overviewJSON(t *testing.T, r *rig) (f liveStatus) {
	t.Helper()
	got := r.do("GET", root, nil, "Accept", "application/json")
	if got.status != http.StatusOK {
		t.Fatalf("status: got %d, want 200", got.status)
	}
	if err := json.Unmarshal([]byte(got.body), &f); err != nil {
		t.Fatalf("body: got %v for %.200s, want JSON", err, got.body)
	}
	return f
}

func TestOverview_ReturnsJSON(t *testing.T) {
	f := overviewJSON(t, newRig(t))
	for _, source := range []string{"github", "nexon"} {
		if got := len(f.History[source].Times); got != 720 {
			t.Errorf("samples of %s: got %d, want 720", source, got)
		}
	}
	if got := f.Items["state.nexon"].Text; got != "flowing" {
		t.Errorf("state of nexon: got %q, want flowing", got)
	}
}

func TestOverview_ReturnsUnknownAsNull(t *testing.T) {
	got := newRig(t).do("GET", root, nil, "Accept", "application/json").body
	if want := ",null,null,"; !strings.Contains(got, want) || strings.Contains(got, "NaN") {
		t.Errorf("body: got %.200s, want %q in it and no NaN", got, want)
	}
}

func TestOverview_BrowsersGetHTML(t *testing.T) {
	for _, accept := range []string{"", "*/*", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html, application/json"} {
		if got := newRig(t).do("GET", root, nil, "Accept", accept).header.Get("Content-Type"); !strings.HasPrefix(got, "text/html") {
			t.Errorf("content type for Accept %q: got %q, want text/html", accept, got)
		}
	}
}

func TestOverview_JSONRequiresPermission(t *testing.T) {
	r := newRig(t)
	r.loginRequired = true
	if got := r.do("GET", root, nil, "Accept", "application/json", "Authorization", "Bearer "+string(access.Read)); got.status == http.StatusOK || strings.Contains(got.body, "history") {
		t.Errorf("response to a client without the scope inspect: got %d %.200s, want a rejection", got.status, got.body)
	}
}

func TestHistoryTables_ContainTheCharts(t *testing.T) {
	f := overviewJSON(t, newRig(t))
	for table, want := range map[string]int{"calls.nexon": 3 + len(source.CallOutcomes), "readers.nexon": 5, "backlog.nexon": 5} {
		rows := f.Rows[table]
		if len(rows) < 12 || len(rows) > 13 {
			t.Fatalf("rows of %s: got %d, want one for each 5 min of an hour", table, len(rows))
		}
		if got := len(rows[0]); got != want {
			t.Errorf("cells in a row of %s: got %d, want %d", table, got, want)
		}
		if got := rows[0][0].Text; got != "12:00–12:05" {
			t.Errorf("first period of %s: got %q, want the newest, 12:00–12:05", table, got)
		}
	}
	states := func(source string) (all []string) {
		for _, row := range f.Rows["calls."+source] {
			all = append(all, row[len(row)-1].Text)
		}
		return all
	}
	for source, want := range map[string]string{"nexon": "flowing, backing-off, ramping", "github": "breaker-open, flowing"} {
		if got := states(source); !slices.Contains(got, want) {
			t.Errorf("states of %s: got %q, want %q in it", source, got, want)
		}
	}
}

func TestHistoryTables_AreSentOnlyWithNewSamples(t *testing.T) {
	r := newRig(t)
	after := map[string]int64{}
	for i, want := range []bool{true, false} {
		f := liveStatus{Items: map[string]statusItem{}, Rows: map[string][][]statusItem{}, Tables: map[string]statusTable{}}
		f.addHistory(r.Overview, []string{"nexon"}, after)
		if _, got := f.Rows["calls.nexon"]; got != want {
			t.Errorf("event %d: got a table %t, want %t", i, got, want)
		}
	}
}
