package app

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/freshet/freshet/reference"
)

// parseFile returns the content of a file, or nil if the file has no settings.
func parseFile(file string, text []byte) (ast.Node, error) {
	parsed, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, explainSyntax(file, err)
	}
	var root ast.Node
	for _, document := range parsed.Docs {
		switch document.Body.(type) {
		case nil, *ast.NullNode, *ast.CommentGroupNode:
			continue
		}
		if root != nil {
			return nil, explainMistakes(file, text, []reference.Mistake{{
				Message: "a second document begins here; write all settings into one document, without the line ---", Token: firstToken(document.Body),
			}})
		}
		root = document.Body
	}
	return root, nil
}

// explainSyntax adds to an error of the YAML parser the line of the file, and a caret below the
// mistake.
func explainSyntax(file string, err error) error {
	return fmt.Errorf("%s:\n%s", file, strings.TrimSpace(yaml.FormatError(err, false, true)))
}

// explainMistakes returns an error that has each mistake with its lines of the file.
func explainMistakes(file string, text []byte, mistakes []reference.Mistake) error {
	var out []string
	for _, m := range mistakes {
		if m.Path != "" {
			m.Message = m.Path + ": " + m.Message
		}
		out = append(out, m.Message, annotate(file, text, m.Token))
	}
	return errors.New(strings.Join(out, "\n"))
}

// settingPath matches the path of a setting at the beginning of each error of Config.check.
var settingPath = regexp.MustCompile(`^[a-zA-Z0-9_-]+((\.[a-zA-Z0-9_-]+)|(\[[0-9]+\]))*`)

// explainCheck adds to each error of Config.check the lines of the file that hold the setting.
func explainCheck(file string, text []byte, err error) error {
	root, parseErr := parseFile(file, text)
	if parseErr != nil || root == nil {
		return err
	}
	var out []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		out = append(out, line)
		if at := findSetting(root, settingPath.FindString(line)); at != nil {
			out = append(out, annotate(file, text, at))
		}
	}
	return errors.New(strings.Join(out, "\n"))
}

// findSetting returns the place of a setting in a file. This is the value of the setting if the value
// is a single value, and otherwise its key. If the file does not have the setting, findSetting returns
// the key of the innermost section on the setting's path that the file has. If there is none, it
// returns nil.
func findSetting(root ast.Node, path string) (at *token.Token) {
	node := root
	for _, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		if anchor, ok := node.(*ast.AnchorNode); ok {
			node = anchor.Value
		}
		key, value := childNode(node, name)
		if value == nil {
			return at
		}
		at, node = key, value
		switch value.(type) {
		case *ast.NullNode, *ast.AnchorNode, *ast.AliasNode:
		case ast.ScalarNode:
			at = value.GetToken()
		}
	}
	return at
}

// childNode returns the key and the value of an entry of a section, or the beginning and the value
// of an element of a list. Both results are nil if the entry or element does not exist.
func childNode(node ast.Node, name string) (*token.Token, ast.Node) {
	if list, ok := node.(*ast.SequenceNode); ok {
		i, err := strconv.Atoi(name)
		if err != nil || i >= len(list.Values) {
			return nil, nil
		}
		return firstToken(list.Values[i]), list.Values[i]
	}
	entries, ok := node.(ast.MapNode)
	if !ok {
		return nil, nil
	}
	for it := entries.MapRange(); it.Next(); {
		if entry := it.KeyValue(); entry.Key.GetToken().Value == name {
			return entry.Key.GetToken(), entry.Value
		}
	}
	return nil, nil
}

// firstToken returns the first token of a node. GetToken does not return it for a section in block
// style: it returns the colon after the section's first key.
func firstToken(node ast.Node) *token.Token {
	if entries, ok := node.(ast.MapNode); ok && node.GetToken().Type == token.MappingValueType {
		if it := entries.MapRange(); it.Next() {
			return it.KeyValue().Key.GetToken()
		}
	}
	return node.GetToken()
}

// contextLines is the number of lines shown before the line with a mistake.
const contextLines = 2

// annotate returns the position of a token, and the lines of the file up to the token, with a caret
// below its first character.
func annotate(file string, text []byte, at *token.Token) string {
	lines := strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
	line, column := at.Position.Line, at.Position.Column
	out := []string{fmt.Sprintf("  %s:%d:%d", file, line, column)}
	for n := max(1, line-contextLines); n <= min(line, len(lines)); n++ {
		mark := " "
		if n == line {
			mark = ">"
		}
		out = append(out, fmt.Sprintf("  %s %3d | %s", mark, n, strings.ReplaceAll(lines[n-1], "\t", " ")))
	}
	return strings.Join(append(out, strings.Repeat(" ", len("  > 123 | ")+column-1)+"^"), "\n")
}
