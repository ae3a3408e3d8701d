package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// namespace is the prefix of the name of every metric. docs/metrics.md lists the names without it.
const namespace = "freshet_"

// documentedMetric is a metric's entry in docs/metrics.md.
type documentedMetric struct {
	kind   string
	labels []string // names of the metric's labels, sorted
	family bool     // the entry covers all metrics whose names begin with its name, whatever their kind and labels
}

var (
	quoted     = regexp.MustCompile("`([^`]+)`")
	commonText = regexp.MustCompile("^All have the labels (.*)")
)

// readMetrics reads the tables of docs/metrics.md. The names in the result include the namespace.
func readMetrics(text string) map[string]documentedMetric {
	all := map[string]documentedMetric{}
	var common []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "## ") {
			common = nil
		}
		if m := commonText.FindStringSubmatch(line); m != nil {
			common = quotedNames(m[1])
		}
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !strings.HasPrefix(line, "| `") {
			continue
		}
		d := documentedMetric{kind: strings.TrimSpace(cells[2]), labels: slices.Concat(common, quotedNames(cells[3]))}
		slices.Sort(d.labels)
		for _, name := range quotedNames(cells[1]) {
			short, family := strings.CutSuffix(name, "…")
			if !family || short != "go_" && short != "process_" {
				short = namespace + short
			}
			d.family = family
			all[short] = d
		}
	}
	return all
}

// quotedNames returns the texts in backquotes.
func quotedNames(text string) (all []string) {
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// addedLabels lists the labels that Prometheus or the histogram format adds to series.
var addedLabels = []string{"__name__", "job", "instance", "role", "le"}

// compareMetrics compares the metrics in docs/metrics.md with scraped series. It returns the
// documented metrics without a series, and the series that are not documented or have labels that
// the document does not list.
func compareMetrics(documented map[string]documentedMetric, scraped []map[string]string) (missing, undocumented []string) {
	found := map[string]bool{}
	wrong := map[string]bool{}
	for _, labels := range scraped {
		name := labels["__name__"]
		if strings.Contains(name, ":") { // the series is computed by a recording rule, so docs/metrics.md does not list it
			continue
		}
		of, d := findMetric(documented, name)
		if of != "" {
			found[of] = true
		} else if strings.HasPrefix(name, namespace) {
			wrong[name] = true
			continue
		}
		has := slices.DeleteFunc(slices.Sorted(maps.Keys(labels)), func(l string) bool { return slices.Contains(addedLabels, l) })
		if of != "" && !d.family && !slices.Equal(has, d.labels) {
			wrong[fmt.Sprintf("%s{%s}, documented with {%s}", of, strings.Join(has, ","), strings.Join(d.labels, ","))] = true
		}
	}
	for name := range documented {
		if !found[name] {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing, slices.Sorted(maps.Keys(wrong))
}

// findMetric returns the documented metric that a series belongs to, and its name. The series of a
// histogram have the suffixes _bucket, _sum and _count.
func findMetric(documented map[string]documentedMetric, name string) (string, documentedMetric) {
	if d, ok := documented[name]; ok && d.kind != "histogram" {
		return name, d
	}
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		short, cut := strings.CutSuffix(name, part)
		if d, ok := documented[short]; cut && ok && d.kind == "histogram" {
			return short, d
		}
	}
	for prefix, d := range documented {
		if d.family && strings.HasPrefix(name, prefix) {
			return prefix, d
		}
	}
	return "", documentedMetric{}
}

// notConfigured lists the prefixes of metrics of features that the observed processes do not use:
// credentials that renew themselves, credits, and static files. These metrics have no series without the
// features.
var notConfigured = []string{
	namespace + "credential_refusals_", namespace + "credential_renewal", namespace + "credential_stopped", namespace + "credential_token_",
	namespace + "credits_", namespace + "reaper_", namespace + "static_files",
}

// readMetricsFile returns the metrics of docs/metrics.md that the observed processes have.
func readMetricsFile(root string) (map[string]documentedMetric, error) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		return nil, err
	}
	documented := readMetrics(string(text))
	maps.DeleteFunc(documented, func(name string, _ documentedMetric) bool {
		return slices.ContainsFunc(notConfigured, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
	const minMetrics = 40 // if fewer metrics are found, readMetrics does not understand the tables' format
	if len(documented) < minMetrics {
		return nil, fmt.Errorf("docs/metrics.md: found %d metrics, want at least %d", len(documented), minMetrics)
	}
	return documented, nil
}
