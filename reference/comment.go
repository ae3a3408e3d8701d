package reference

import (
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// commentWidth is the maximum width of a comment in characters, without its indent.
const commentWidth = 90

// Comment returns a YAML text with the description of each setting as a comment above the setting. In
// a map or a list with several elements, only the settings of the first element get comments.
func (s *Setting) Comment(text []byte) ([]byte, error) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, err
	}
	c := commenter{comments: map[int]string{}, seen: map[*Setting]bool{}}
	for _, document := range file.Docs {
		c.add(s, document.Body)
	}
	var out strings.Builder
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		for _, wrapped := range wrap(c.comments[n], commentWidth) {
			out.WriteString(indent + "# " + wrapped + "\n")
		}
		out.WriteString(line)
	}
	return []byte(out.String()), nil
}

type commenter struct {
	comments map[int]string // comments by line number; each comment is written above its line
	seen     map[*Setting]bool
}

// add collects the comments of the settings below a node.
func (c *commenter) add(s *Setting, node ast.Node) {
	if list, ok := node.(*ast.SequenceNode); ok && s.IsList {
		for _, element := range list.Values {
			c.add(s.Element, element)
		}
		return
	}
	entries, ok := node.(ast.MapNode)
	if !ok || s.Fields == nil && s.Element == nil {
		return
	}
	for it := entries.MapRange(); it.Next(); {
		key := it.Key().GetToken()
		child := s.Element
		if s.Fields != nil {
			child = s.field(key.Value)
		}
		if child == nil {
			continue
		}
		line := key.Position.Line
		if child.Doc != "" && !c.seen[child] && c.comments[line] == "" {
			c.seen[child], c.comments[line] = true, strings.ReplaceAll(child.Doc, "`", "")
		}
		c.add(child, it.Value())
	}
}

// wrap breaks a text into lines of at most width characters. Only a word that is longer than width
// gives a longer line.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
