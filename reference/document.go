package reference

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
)

// WriteTables writes the settings in Markdown: a heading and a table for each top-level section, and
// for the elements of each map and list of sections.
func (s *Setting) WriteTables(out *strings.Builder) {
	for _, f := range s.Fields {
		f.writeSection(out, 2)
	}
}

// writeSection writes the heading and the table of a section, and then its maps and lists of sections.
func (s *Setting) writeSection(out *strings.Builder, level int) {
	section, maps, meaning := s, []*Setting{}, s.Doc
	if s.Element != nil {
		section = s.Element
		meaning = strings.TrimSpace(meaning + " " + descriptions[section.kind.String()])
	}
	fmt.Fprintf(out, "\n%s %s\n\n%s\n\n| setting | type | default | meaning |\n|---|---|---|---|\n", strings.Repeat("#", level), section.Path, cell(meaning))
	section.writeRows(out, section.Path, &maps)
	for _, m := range maps {
		m.writeSection(out, min(level+1, 4))
	}
}

// writeRows writes a row for each setting of a section and of its inner sections. A row shows the
// path of the setting relative to the path in the heading. Maps and lists of sections also get a
// table of their own, so writeRows appends them to the parameter `maps`.
func (s *Setting) writeRows(out *strings.Builder, heading string, maps *[]*Setting) {
	for _, f := range s.Fields {
		if f.Fields != nil {
			fmt.Fprintf(out, "| `%s` | section |  | %s |\n", strings.TrimPrefix(f.Path, heading+"."), cell(f.Doc))
			f.writeRows(out, heading, maps)
			continue
		}
		meaning := f.Doc
		if f.Element != nil && f.Element.Fields != nil {
			*maps = append(*maps, f)
			meaning += " See [" + f.Element.Path + "](#" + anchor(f.Element.Path) + ")."
		}
		fmt.Fprintf(out, "| `%s` | %s | %s | %s |\n", strings.TrimPrefix(f.Path, heading+"."), f.noun(), f.defaultCell(), cell(meaning))
	}
}

// noun returns the words that name the type of a setting in a table, such as "list of sections".
func (s *Setting) noun() string {
	switch {
	case s.kind.Kind() == reflect.Interface:
		return "any value"
	case s.IsList && s.Element.Fields != nil:
		return "list of sections"
	case s.IsList:
		return "list: " + s.Element.noun()
	case s.Element != nil && s.Element.Fields != nil:
		return "sections by name"
	case s.Element != nil:
		return s.Element.noun() + " by name"
	}
	if len(s.form.Enum) > 0 {
		var words []string
		for _, word := range s.form.Enum {
			if word != "" && word != strings.ToUpper(word) || s.form.Hint == "" && word != "" {
				words = append(words, "`"+word+"`")
			}
		}
		return strings.Join(words, ", ")
	}
	return strings.TrimPrefix(s.form.Name, "a ")
}

// defaultCell returns the default as the content of a table's cell, or an empty string if the
// setting has no default.
func (s *Setting) defaultCell() string {
	plain := s.plainDefault()
	if plain == nil {
		return ""
	}
	if n, ok := plain.(float64); ok {
		return fmt.Sprintf("`%g`", n)
	}
	if list, ok := plain.([]any); ok {
		words := make([]string, len(list))
		for i, one := range list {
			words[i] = fmt.Sprint(one)
		}
		return "`[" + strings.Join(words, ", ") + "]`"
	}
	text, err := yaml.Marshal(plain)
	if err != nil {
		return ""
	}
	return "`" + strings.Trim(strings.TrimSpace(string(text)), `"`) + "`"
}

// cell returns a text as the content of a table's cell.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "<", "&lt;").Replace(text)
}

// anchor returns the anchor of a heading, as GitHub makes it.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(".[]`", r) {
			return -1
		}
		return r
	}, strings.ToLower(heading))
}
