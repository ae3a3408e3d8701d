package schemas

import (
	"slices"
	"strings"
)

// part is a piece of a type's description on the page: text, or a link to the schema Href.
type part struct{ Text, Href string }

// rule is a constraint on a value in addition to its type, such as a maximum.
type rule struct {
	Name   string
	Values []string
}

// row is one line in the table of a schema: a member of the schema, or of an object nested in it.
type row struct {
	Depth      int
	Name       string
	Any        bool   // true if the row stands for all other members, and Name is a text such as "any other name"
	Lead       string // if not empty, this row has no member: it is a heading for the rows below it
	Type       []part
	Required   bool
	Deprecated bool
	Rules      []rule
	Text       []block
}

// deepest is the maximum indentation level of rows.
const deepest = 5

func (p *pager) typeOf(s *schema) []part {
	switch {
	case s == nil || s.Always != nil:
		return words("anything")
	case s.Ref != "":
		return []part{p.link(s.Ref)}
	case len(s.AllOf) > 0:
		return p.joined(s.AllOf, " and ")
	case len(s.AnyOf) > 0:
		return p.joined(s.AnyOf, " or ")
	case len(s.OneOf) > 0:
		return p.joined(s.OneOf, " or ")
	case s.Items != nil && slices.Contains(s.Type, "array"):
		parts := append(words("list of "), p.typeOf(s.Items)...)
		if parts[1].Text == "object" {
			parts[1].Text = "objects"
		}
		if slices.Contains(s.Type, "null") {
			parts = append(parts, part{Text: " or null"})
		}
		return parts
	}
	kinds := make([]string, 0, len(s.Type))
	for _, t := range s.Type {
		switch t {
		case "array":
			t = "list"
		case "string":
			if s.Format != "" {
				t = s.Format
			}
		}
		kinds = append(kinds, t)
	}
	if len(kinds) == 0 {
		switch {
		case len(s.Properties) > 0 || s.AdditionalProperties != nil:
			kinds = append(kinds, "object")
		default:
			kinds = append(kinds, "anything")
		}
	}
	return words(strings.Join(kinds, " or "))
}

// joined returns the types of several schemas, with the text `by` between two types. If `by` is "
// or ", the schemas are alternatives. An alternative without members, such as a string, has no rows
// in the table of the page. So its rules, such as a maximum, follow directly after its type.
func (p *pager) joined(of []schema, by string) []part {
	var parts []part
	for i := range of {
		if i > 0 {
			parts = append(parts, part{Text: by})
		}
		parts = append(parts, p.typeOf(&of[i])...)
		if by != " or " || len(p.rowsOf(&of[i], 0)) > 0 {
			continue
		}
		for _, r := range p.rulesOf(&of[i]) {
			parts = append(parts, part{Text: ", " + strings.TrimSpace(r.Name+" "+strings.Join(r.Values, ", "))})
		}
	}
	return parts
}

func words(text string) []part { return []part{{Text: text}} }

// rowsOf lists the members of a schema as rows. A reference to a named schema gives no rows,
// because that schema has its own table.
func (p *pager) rowsOf(s *schema, depth int) []row {
	if s == nil || s.Always != nil || s.Ref != "" {
		return nil
	}
	var rows []row
	for i := range s.AllOf {
		if of := &s.AllOf[i]; of.Ref != "" {
			rows = append(rows, row{Depth: min(depth, deepest), Lead: "the members of", Type: p.typeOf(of)})
		} else {
			rows = append(rows, p.rowsOf(of, depth)...)
		}
	}
	for _, choice := range [][]schema{s.AnyOf, s.OneOf} {
		for i := range choice {
			below := p.rowsOf(&choice[i], depth+1)
			if len(below) > 0 {
				rows = append(rows, row{Depth: min(depth, deepest), Lead: "if it is", Type: p.typeOf(&choice[i]), Text: texts(choice[i].Description)})
				rows = append(rows, below...)
			}
		}
	}
	member := func(name string, anyName bool, of *schema) {
		rows = append(rows, row{
			Depth: min(depth, deepest), Name: name, Any: anyName, Type: p.typeOf(of), Required: slices.Contains(s.Required, name),
			Deprecated: of.Deprecated, Rules: p.rulesOf(of), Text: texts(of.Title, of.Description),
		})
		rows = append(rows, p.rowsOf(of, depth+1)...)
	}
	for i := range s.Properties {
		member(s.Properties[i].Name, false, &s.Properties[i].Value)
	}
	for i := range s.PatternProperties {
		member("names like "+s.PatternProperties[i].Name, true, &s.PatternProperties[i].Value)
	}
	for _, rest := range []*schema{s.AdditionalProperties, s.UnevaluatedProperties} {
		if rest == nil || rest.Always != nil {
			continue
		}
		name := "any name"
		if len(s.Properties)+len(s.PatternProperties) > 0 {
			name = "any other name"
		}
		member(name, true, rest)
	}
	return append(rows, p.rowsOf(s.Items, depth)...)
}

func (p *pager) rulesOf(s *schema) []rule {
	if s == nil || s.Always != nil {
		return nil
	}
	var rules []rule
	add := func(name string, values ...literal) {
		r := rule{Name: name}
		for _, v := range values {
			r.Values = append(r.Values, v.String())
		}
		rules = append(rules, r)
	}
	one := func(name string, value *literal, unit ...string) {
		if value != nil {
			rules = append(rules, rule{strings.Join(append([]string{name, value.String()}, unit...), " "), nil})
		}
	}
	quoted := func(name string, value *literal) {
		if value != nil {
			add(name, *value)
		}
	}
	between := func(least, most *literal, unit ...string) {
		if least != nil && most != nil {
			one(least.String()+" to", most, unit...)
		} else {
			one("at least", least, unit...)
			one("at most", most, unit...)
		}
	}
	if len(s.Enum) > 0 {
		add("one of", s.Enum...)
	}
	quoted("always", s.Const)
	between(s.Minimum, s.Maximum)
	one("more than", s.ExclusiveMinimum)
	one("less than", s.ExclusiveMaximum)
	one("a multiple of", s.MultipleOf)
	between(s.MinLength, s.MaxLength, "characters")
	between(s.MinItems, s.MaxItems, "items")
	between(s.MinProperties, s.MaxProperties, "members")
	for _, flag := range []struct {
		is   bool
		name string
	}{{s.UniqueItems, "each item once"}, {s.ReadOnly, "in answers only"}, {s.WriteOnly, "in requests only"}} {
		if flag.is {
			add(flag.name)
		}
	}
	if s.Pattern != "" {
		rules = append(rules, rule{"pattern", []string{s.Pattern}})
	}
	if s.Format != "" && !slices.Contains(s.Type, "string") {
		rules = append(rules, rule{"format", []string{s.Format}})
	}
	if s.ContentMediaType != "" || s.ContentEncoding != "" {
		rules = append(rules, rule{"holds", []string{strings.TrimSpace(s.ContentEncoding + " " + s.ContentMediaType)}})
	}
	for _, closed := range []*schema{s.AdditionalProperties, s.UnevaluatedProperties} {
		if closed != nil && closed.Always != nil && !*closed.Always {
			add("no other members")
		}
	}
	if s.PropertyNames != nil {
		for _, r := range p.rulesOf(s.PropertyNames) {
			rules = append(rules, rule{"names: " + r.Name, r.Values})
		}
	}
	if s.Discriminator != nil {
		rules = append(rules, rule{"distinguished by", []string{s.Discriminator.PropertyName}})
	}
	if s.Not != nil {
		var not strings.Builder
		for _, t := range p.typeOf(s.Not) {
			not.WriteString(t.Text)
		}
		rules = append(rules, rule{"not " + not.String(), nil})
	}
	if s.Items != nil && len(p.rowsOf(s.Items, 0)) == 0 {
		for _, r := range p.rulesOf(s.Items) {
			rules = append(rules, rule{"each: " + r.Name, r.Values})
		}
	}
	quoted("if missing", s.Default)
	examples := s.Examples
	if s.Example != nil {
		examples = append([]literal{*s.Example}, examples...)
	}
	if len(examples) > 0 {
		add("for example", examples...)
	}
	return rules
}
