package nexon

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/sourcetest"
)

func config(t *testing.T) source.Config {
	t.Helper()
	var c struct {
		source.Config `yaml:",inline"`
		Quota         any `yaml:"quota"`
		Workers       any `yaml:"workers"`
		Prefetch      any `yaml:"prefetch"`
	}
	if err := yaml.UnmarshalWithOptions(Config, &c, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	return c.Config
}

// body returns the simulated document, before or after a change of the content.
func body(t *testing.T, changed bool, query string) string {
	t.Helper()
	s := simulator.New(simulator.Config{Seed: 1})
	defer s.Close()
	if changed {
		if err := s.Control(simulator.Control{ChangePercent: 100}); err != nil {
			t.Fatal(err)
		}
	}
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/maplestory/v1/character/item-equipment?ocid=90f1a2b3"+query, nil))
	text, err := io.ReadAll(rec.Result().Body)
	if err != nil || rec.Code != http.StatusOK {
		t.Fatal(rec.Code, err)
	}
	return string(text)
}

func TestNexon_PassesSuite(t *testing.T) {
	const name = "item-equipment"
	meaning := func(status int, code string, want source.Class) sourcetest.Response {
		return sourcetest.Response{
			Name: code, Status: status, Header: http.Header{"Content-Type": {"application/json;charset=UTF-8"}},
			Body: fmt.Sprintf(`{"error":{"name":%q,"message":"Please try again later"}}`, code), Want: want,
		}
	}
	good := body(t, false, "")
	if !strings.Contains(good, `"date":null`) {
		t.Fatal("body has no date to ignore")
	}
	sourcetest.Run(t, sourcetest.Suite{
		Config:     config(t),
		Credential: "a-key",
		Facet:      "character-by-ocid",
		Keys:       []string{"90f1a2b3", "A-_z9", strings.Repeat("f", 65)},
		Good:       map[string]string{name: good},
		Same:       map[string]string{name: body(t, false, "&date=2026-01-27")},
		Changed:    map[string]string{name: body(t, true, "")},
		Responses: []sourcetest.Response{
			meaning(500, "OPENAPI00001", source.Transient),
			meaning(403, "OPENAPI00002", source.AuthRefused),
			meaning(400, "OPENAPI00003", source.NotFound),
			meaning(400, "OPENAPI00004", source.Permanent),
			meaning(400, "OPENAPI00005", source.AuthRefused),
			meaning(400, "OPENAPI00006", source.Permanent),
			meaning(429, "OPENAPI00007", source.Quota),
			meaning(400, "OPENAPI00009", source.NotReady),
			meaning(400, "OPENAPI00010", source.Maintenance),
			meaning(503, "OPENAPI00011", source.Maintenance),
			meaning(429, "OPENAPI01007", source.Quota),
			{Name: "an error page with status 200", Status: 200, Header: http.Header{"Content-Type": {"text/html"}}, Body: "<html>", Want: source.BadContent},
			{Name: "the cloud front's own 503", Status: 503, Body: "<html>", Want: source.Transient},
		},
	})
}
