package deploy_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/servicetest"
)

// run runs a program and returns its output. If the program fails, the test fails. `pack` is the
// Debian package that contains the program.
func run(t *testing.T, pack, program string, args ...string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), servicetest.Program(t, program, pack), args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", program, strings.Join(args, " "), err, output)
	}
	return string(output)
}

func promtool(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "prometheus", "promtool", args...)
}

func amtool(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "prometheus-alertmanager", "amtool", args...)
}

// glob returns the files that match a pattern. If no file matches, the test fails.
func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("files %s: got none, %v, want some", pattern, err)
	}
	return names
}

// read decodes a YAML file.
func read[T any](t *testing.T, name string) (v T) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text(t, name)), &v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

func text(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

type alert struct {
	Alert               string
	Labels, Annotations map[string]string
}

// alerts returns all alerts by name.
func alerts(t *testing.T) map[string]alert {
	t.Helper()
	all := map[string]alert{}
	for _, name := range glob(t, "prometheus/rules/*.yml") {
		for _, group := range read[struct{ Groups []struct{ Rules []alert } }](t, name).Groups {
			for _, r := range group.Rules {
				if _, twice := all[r.Alert]; twice {
					t.Errorf("alerts called %s: got 2, want 1", r.Alert)
				}
				if r.Alert != "" {
					all[r.Alert] = r
				}
			}
		}
	}
	return all
}

func TestRules_PassPromtool(t *testing.T) {
	promtool(t, append([]string{"check", "rules"}, glob(t, "prometheus/rules/*.yml")...)...)
	promtool(t, "check", "config", "prometheus/prometheus.yml")
}

func TestAlertmanager_RoutesBySeverity(t *testing.T) {
	const config = "alertmanager/alertmanager.yml"
	amtool(t, "check-config", config)
	for severity, receiver := range map[string]string{"critical": "pager", "warning": "chat", "info": "digest"} {
		output := strings.TrimSpace(amtool(t, "config", "routes", "test", "--config.file="+config, "severity="+severity))
		if !strings.HasSuffix("\n"+output, "\n"+receiver) { // amtool may print warnings on the lines before the receiver's name
			t.Errorf("receiver of %s: got %s, want %s", severity, output, receiver)
		}
	}
	if secret := regexp.MustCompile(`(?m)^\s*-?\s*(api_url|routing_key|service_key|password|url|credentials|bearer_token):`).FindString(text(t, config)); secret != "" {
		t.Errorf("alertmanager.yml: got %q, want a file instead of a secret", secret)
	}
}

func TestAlerts_HaveFiringAndSilentCases(t *testing.T) {
	type cases struct {
		Tests []struct {
			Name   string
			Series []struct{ Series string } `yaml:"input_series"`
			Checks []struct {
				Alert  string `yaml:"alertname"`
				Alerts []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	fires, silent, all := map[string]bool{}, map[string]bool{}, alerts(t)
	for _, name := range glob(t, "prometheus/tests/*.yml") {
		for _, c := range read[cases](t, name).Tests {
			for _, check := range c.Checks {
				if _, there := all[check.Alert]; !there {
					t.Errorf("%s: %s: got the unknown alert %s, want one of the rules", name, c.Name, check.Alert)
				}
				if len(check.Alerts) > 0 {
					fires[check.Alert] = true
				} else if len(c.Series) > 0 {
					silent[check.Alert] = true
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !fires[name] || !silent[name] {
			t.Errorf("%s: got a firing case %t, a silent case %t, want both", name, fires[name], silent[name])
		}
	}
}

func TestAlerts_HaveSeverityTextsAndRunbook(t *testing.T) {
	all := alerts(t)
	if len(all) < 30 {
		t.Fatalf("alerts: got %d, want at least 30", len(all))
	}
	for name, a := range all {
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("%s: got severity %q, want critical, warning or info", name, a.Labels["severity"])
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s: got no summary or no description, want both", name)
		}
		if want := "https://github.com/freshet/freshet/blob/main/docs/runbook.md#" + strings.ToLower(name); a.Annotations["runbook_url"] != want {
			t.Errorf("%s: got runbook_url %s, want %s", name, a.Annotations["runbook_url"], want)
		}
	}
}

func TestRunbook_HasOneSectionForEachAlert(t *testing.T) {
	all, book := alerts(t), text(t, "../docs/runbook.md")
	sections := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(book, -1) {
		if _, there := all[m[1]]; !there || sections[m[1]] {
			t.Errorf("section %s of the runbook: got no alert or a duplicate, want one section for each alert", m[1])
		}
		sections[m[1]] = true
	}
	listed := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (critical|warning|info) \| (.*) \|$`).FindAllStringSubmatch(book, -1) {
		for _, link := range regexp.MustCompile(`\[(\w+)\]\(#(\w+)\)`).FindAllStringSubmatch(m[2], -1) {
			if listed[link[1]] = m[1]; link[2] != strings.ToLower(link[1]) {
				t.Errorf("link to %s: got the anchor %s, want %s", link[1], link[2], strings.ToLower(link[1]))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !sections[name] || listed[name] != all[name].Labels["severity"] {
			t.Errorf("%s: got a section %t, listed as %q, want a section, listed as %q", name, sections[name], listed[name], all[name].Labels["severity"])
		}
	}
}

func TestAlertmanager_InhibitsExistingAlerts(t *testing.T) {
	type rules struct {
		Inhibit []struct {
			Sources []string `yaml:"source_matchers"`
			Targets []string `yaml:"target_matchers"`
		} `yaml:"inhibit_rules"`
	}
	all := alerts(t)
	matching := func(matchers []string) map[string]bool {
		found := map[string]bool{}
		for _, m := range matchers {
			pattern, ok := strings.CutPrefix(m, "alertname=")
			if !ok {
				continue
			}
			pattern = strings.Trim(strings.TrimPrefix(pattern, "~"), `"`)
			for alternative := range strings.SplitSeq(pattern, "|") {
				known := false
				for name := range all {
					if regexp.MustCompile("^(" + alternative + ")$").MatchString(name) {
						found[name], known = true, true
					}
				}
				if !known {
					t.Errorf("inhibit_rules: got the unknown alert %s, want one of the rules", alternative)
				}
			}
		}
		return found
	}
	for _, r := range read[rules](t, "alertmanager/alertmanager.yml").Inhibit {
		sources, targets := matching(r.Sources), matching(r.Targets)
		for name := range sources {
			if targets[name] {
				t.Errorf("inhibit_rules: got %s as source and target of %v, want it in one of them", name, r)
			}
		}
	}
}
