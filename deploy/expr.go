package deploy

import (
	"regexp"
	"slices"
	"strings"
)

// namespace is the prefix of the metrics of freshet.
const namespace = "freshet_"

// Metrics returns the metrics of freshet and the recording rules in a PromQL expression. For a
// series of a histogram it returns the name of the histogram.
func Metrics(expr string) []string {
	var names []string
	for _, t := range tokens(expr) {
		if t.kind != metric || !strings.HasPrefix(t.text, namespace) && !strings.Contains(t.text, ":") {
			continue
		}
		if name := family(t.text); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// ofHistogram matches the series of a histogram (_bucket, _sum, _count) and captures the
// histogram's name, which ends in a unit. A name that ends in _count, but has no unit before that
// suffix, is a counter or gauge.
var ofHistogram = regexp.MustCompile(`^([^:]*_(?:seconds|size|bytes|ratio))_(?:bucket|sum|count)$`)

func family(name string) string {
	if m := ofHistogram.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return name
}

type kind int

const (
	metric   kind = iota
	label         // a label in a matcher such as {a="b"}, or in a list of labels such as by (a)
	modifier      // a word such as by or on, which precedes a list of labels
	function      // the name of a function or of an aggregation operator
	sign          // the token is a parenthesis or a brace
)

type token struct {
	kind kind
	text string
	of   string // for the label a in m{a="b"}: the metric m; for the label a in by (a): the word by
}

var (
	lexer     = regexp.MustCompile("(\"(?:[^\"\\\\]|\\\\.)*\"|'(?:[^'\\\\]|\\\\.)*'|`[^`]*`)|(\\[[^\\]]*\\])|(#[^\n]*)|([0-9][0-9a-zA-Z_.]*)|([a-zA-Z_:][a-zA-Z0-9_:]*)|([(){},])")
	modifiers = []string{"by", "without", "on", "ignoring", "group_left", "group_right"}
	words     = []string{"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan", "start", "end"}
)

// tokens returns the names, parentheses and braces of a PromQL expression, in order. It does not
// check the syntax; a test checks the expressions with promtool.
func tokens(expr string) []token {
	var found []token
	matches := lexer.FindAllStringSubmatch(expr, -1)
	last, list := "", "" // `last` is the name of the metric before the current position; inside a list of labels, `list` is the metric or modifier to which the labels belong
	for i, m := range matches {
		name, mark := m[5], m[6]
		next := ""
		if i+1 < len(matches) {
			next = matches[i+1][6]
		}
		switch {
		case mark != "":
			switch {
			case mark == "{":
				list = last
			case mark == "(" && len(found) > 0 && found[len(found)-1].kind == modifier:
				list = found[len(found)-1].text
			case mark == "}" || mark == ")":
				list = ""
			}
			if mark != "," {
				found = append(found, token{kind: sign, text: mark})
			}
		case name == "":
		case list != "":
			found = append(found, token{label, name, list})
		case slices.Contains(modifiers, strings.ToLower(name)):
			found = append(found, token{kind: modifier, text: strings.ToLower(name)})
		case slices.Contains(words, strings.ToLower(name)):
		case next == "(" || i+1 < len(matches) && slices.Contains(modifiers, matches[i+1][5]) && aggregates(name):
			found = append(found, token{kind: function, text: name})
		default:
			found = append(found, token{kind: metric, text: name})
			last = name
		}
	}
	return found
}

// aggregates reports whether a name is an aggregation operator of PromQL.
func aggregates(name string) bool {
	return slices.Contains([]string{
		"sum", "min", "max", "avg", "count", "group", "stddev", "stdvar",
		"topk", "bottomk", "quantile", "count_values",
	}, strings.ToLower(name))
}
