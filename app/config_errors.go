package app

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// explainDecode adds to a decoding error the line of the file with the invalid value, and a caret
// below that value. If the error has no position, as an error of UnmarshalText, explainDecode finds
// the line by the value that the error quotes.
func explainDecode(file string, text []byte, err error) error {
	if wrong, ok := errors.AsType[*yaml.TypeError](err); ok && wrong.DstType == reflect.TypeFor[time.Duration]() {
		err = &yaml.SyntaxError{Message: fmt.Sprintf("%s is not a duration; %s", wrong.Token.Value, durationHint), Token: wrong.Token}
	}
	if _, placed := errors.AsType[yaml.Error](err); !placed {
		if node := findQuotedScalar(text, err.Error()); node != nil {
			err = &yaml.SyntaxError{Message: addHint(err.Error()), Token: node.GetToken()}
		}
	}
	return fmt.Errorf("%s:\n%s", file, strings.TrimSpace(yaml.FormatError(err, false, true)))
}

const durationHint = "write a duration as in 500ms, 30s or 1h"

// addHint adds the valid forms of the value to an error message of the standard library.
func addHint(message string) string {
	for prefix, right := range map[string]string{
		"time: ":             durationHint,
		"slog: level string": "write debug, info, warn or error",
	} {
		if strings.HasPrefix(message, prefix) {
			return message + "; " + right
		}
	}
	return message
}

// findQuotedScalar returns the first scalar in a file whose value the message quotes, or nil.
func findQuotedScalar(text []byte, message string) ast.Node {
	f, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil
	}
	var found scalarFinder = func(n ast.ScalarNode) bool {
		return strings.Contains(message, strconv.Quote(fmt.Sprint(n.GetValue())))
	}
	for _, doc := range f.Docs {
		if n := found.in(doc.Body); n != nil {
			return n
		}
	}
	return nil
}

type scalarFinder func(n ast.ScalarNode) bool

func (f scalarFinder) in(root ast.Node) (found ast.Node) {
	ast.Walk(visitor(func(n ast.Node) bool {
		if s, ok := n.(ast.ScalarNode); ok && found == nil && f(s) {
			found = n
		}
		return found == nil
	}), root)
	return found
}

type visitor func(n ast.Node) bool

// Visit implements ast.Visitor. It visits the children of node n only if v(n) is true.
func (v visitor) Visit(n ast.Node) ast.Visitor {
	if v(n) {
		return v
	}
	return nil
}

// settingPath matches the path of a setting at the beginning of each error of Config.check.
var settingPath = regexp.MustCompile(`^[a-zA-Z0-9_-]+((\.[a-zA-Z0-9_-]+)|(\[[0-9]+\]))*`)

// explainCheck adds to each error of Config.check the lines of the file that hold the setting.
func explainCheck(file string, text []byte, err error) error {
	var out []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		out = append(out, line)
		if shown := annotateSetting(text, settingPath.FindString(line)); shown != "" {
			out = append(out, "  "+file+":", shown)
		}
	}
	return errors.New(strings.Join(out, "\n"))
}

// annotateSetting returns the lines of the file around a setting. If the file does not have the
// setting, it returns the lines around the closest parent setting in the file.
func annotateSetting(text []byte, path string) string {
	for path != "" {
		var query strings.Builder
		query.WriteByte('$')
		for part := range strings.SplitSeq(path, ".") {
			name, index, isList := strings.Cut(part, "[")
			query.WriteString(".'" + name + "'")
			if isList {
				query.WriteString("[" + index)
			}
		}
		if p, err := yaml.PathString(query.String()); err == nil {
			if shown, err := p.AnnotateSource(text, false); err == nil {
				return strings.TrimRight(string(shown), "\n ")
			}
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return ""
}
