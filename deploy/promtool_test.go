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

// run runs a program of the monitoring tools, and fails with what it says.
func run(t *testing.T, pack, program string, args ...string) string {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), servicetest.Program(t, program, pack), args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", program, strings.Join(args, " "), err, said)
	}
	return string(said)
}

func promtool(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "prometheus", "promtool", args...)
}

func amtool(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "prometheus-alertmanager", "amtool", args...)
}

// glob returns the files of a pattern, of which there must be some.
func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("no file is %s: %v", pattern, err)
	}
	return names
}

// read reads a file of YAML.
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

// alerts returns all alerts by their names.
func alerts(t *testing.T) map[string]alert {
	t.Helper()
	all := map[string]alert{}
	for _, name := range glob(t, "prometheus/rules/*.yml") {
		for _, group := range read[struct{ Groups []struct{ Rules []alert } }](t, name).Groups {
			for _, r := range group.Rules {
				if _, twice := all[r.Alert]; twice {
					t.Errorf("there are two alerts %s", r.Alert)
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
		told := strings.TrimSpace(amtool(t, "config", "routes", "test", "--config.file="+config, "severity="+severity))
		if !strings.HasSuffix("\n"+told, "\n"+receiver) { // it may warn before
			t.Errorf("%s is told to %s, not to %s", severity, told, receiver)
		}
	}
	if secret := regexp.MustCompile(`(?m)^\s*-?\s*(api_url|routing_key|service_key|password|url|credentials|bearer_token):`).FindString(text(t, config)); secret != "" {
		t.Errorf("%q may hold a secret: name a file", secret)
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
					t.Errorf("%s: %s: there is no alert %s", name, c.Name, check.Alert)
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
			t.Errorf("%s: a case fires it: %t; a case does not: %t", name, fires[name], silent[name])
		}
	}
}

func TestAlerts_HaveSeverityTextsAndRunbook(t *testing.T) {
	all := alerts(t)
	if len(all) < 30 {
		t.Fatalf("only %d alerts", len(all))
	}
	for name, a := range all {
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("%s: the severity is %q", name, a.Labels["severity"])
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s: a summary or a description is missing", name)
		}
		if want := "https://github.com/freshet/freshet/blob/main/docs/runbook.md#" + strings.ToLower(name); a.Annotations["runbook_url"] != want {
			t.Errorf("%s: the runbook is %s, not %s", name, a.Annotations["runbook_url"], want)
		}
	}
}

func TestRunbook_HasOneSectionForEachAlert(t *testing.T) {
	all, book := alerts(t), text(t, "../docs/runbook.md")
	sections := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(book, -1) {
		if _, there := all[m[1]]; !there || sections[m[1]] {
			t.Errorf("the section %s has no alert, or stands twice", m[1])
		}
		sections[m[1]] = true
	}
	listed := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (critical|warning|info) \| (.*) \|$`).FindAllStringSubmatch(book, -1) {
		for _, link := range regexp.MustCompile(`\[(\w+)\]\(#(\w+)\)`).FindAllStringSubmatch(m[2], -1) {
			if listed[link[1]] = m[1]; link[2] != strings.ToLower(link[1]) {
				t.Errorf("the link to %s leads to %s", link[1], link[2])
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !sections[name] || listed[name] != all[name].Labels["severity"] {
			t.Errorf("%s: it has a section: %t; it is listed as %q and is %q", name, sections[name], listed[name], all[name].Labels["severity"])
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
				some := false
				for name := range all {
					if regexp.MustCompile("^(" + alternative + ")$").MatchString(name) {
						found[name], some = true, true
					}
				}
				if !some {
					t.Errorf("no alert is %s", alternative)
				}
			}
		}
		return found
	}
	for _, r := range read[rules](t, "alertmanager/alertmanager.yml").Inhibit {
		sources, targets := matching(r.Sources), matching(r.Targets)
		for name := range sources {
			if targets[name] {
				t.Errorf("%s silences its own kind: %v", name, r)
			}
		}
	}
}
