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

// namespace stands before the names of the document.
const namespace = "freshet_"

// documentedMetric is what docs/metrics.md says of a metric.
type documentedMetric struct {
	kind   string
	labels []string // sorted
	family bool     // all that begin with the name, of whatever kind and labels
}

var (
	quoted     = regexp.MustCompile("`([^`]+)`")
	commonText = regexp.MustCompile("^All have the labels (.*)")
)

// readMetrics reads the document's tables: by name, with the namespace.
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

// quotedNames returns what stands in quotes.
func quotedNames(text string) (all []string) {
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// addedLabels are labels that the metrics' own processes do not write.
var addedLabels = []string{"__name__", "job", "instance", "role", "le"}

// compareMetrics compares the document with series that were seen: what is said and was
// not seen, and what was seen and is not said.
func compareMetrics(said map[string]documentedMetric, seen []map[string]string) (missing, unsaid []string) {
	found := map[string]bool{}
	wrong := map[string]bool{}
	for _, labels := range seen {
		name := labels["__name__"]
		if strings.Contains(name, ":") { // recorded by a rule
			continue
		}
		of, d := findMetric(said, name)
		if of != "" {
			found[of] = true
		} else if strings.HasPrefix(name, namespace) {
			wrong[name] = true
			continue
		}
		has := slices.DeleteFunc(slices.Sorted(maps.Keys(labels)), func(l string) bool { return slices.Contains(addedLabels, l) })
		if of != "" && !d.family && !slices.Equal(has, d.labels) {
			wrong[fmt.Sprintf("%s{%s}, said to have {%s}", of, strings.Join(has, ","), strings.Join(d.labels, ","))] = true
		}
	}
	for name := range said {
		if !found[name] {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing, slices.Sorted(maps.Keys(wrong))
}

// findMetric finds the entry of a series; of a histogram there are several series.
func findMetric(said map[string]documentedMetric, name string) (string, documentedMetric) {
	if d, ok := said[name]; ok && d.kind != "histogram" {
		return name, d
	}
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		short, cut := strings.CutSuffix(name, part)
		if d, ok := said[short]; cut && ok && d.kind == "histogram" {
			return short, d
		}
	}
	for prefix, d := range said {
		if d.family && strings.HasPrefix(name, prefix) {
			return prefix, d
		}
	}
	return "", documentedMetric{}
}

func readMetricsFile(root string) (map[string]documentedMetric, error) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		return nil, err
	}
	said := readMetrics(string(text))
	const least = 40 // or its tables are not read as they are written
	if len(said) < least {
		return nil, fmt.Errorf("docs/metrics.md: only %d metrics are found", len(said))
	}
	return said, nil
}
