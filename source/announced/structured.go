package announced

import "strings"

// item is one item of a structured field (RFC 9651), such as "daily";r=50;t=30. It has only the
// parameters that this package uses.
type item struct{ name, r, t, q, w string }

// maxField bounds the length of a structured field in bytes. A header of ten megabytes of
// commas would otherwise become a list of hundreds of megabytes.
const maxField = 16 << 10

// parseItems parses the list of a structured field. It returns false if a string has no closing
// quote or the field is too long.
func parseItems(text string) ([]item, bool) {
	if len(text) > maxField {
		return nil, false
	}
	parts, ok := SplitOutsideQuotes(text, ',')
	if !ok {
		return nil, false
	}
	list := make([]item, len(parts))
	for i, part := range parts {
		parameters, _ := SplitOutsideQuotes(part, ';')
		list[i].name = unquote(strings.TrimSpace(parameters[0]))
		for _, parameter := range parameters[1:] {
			name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
			switch name {
			case "r":
				list[i].r = value
			case "t":
				list[i].t = value
			case "q":
				list[i].q = value
			case "w", "window":
				list[i].w = value
			}
		}
	}
	return list, true
}

// unquote returns the content of a quoted string. It returns an unquoted token unchanged.
func unquote(text string) string {
	if len(text) < 2 || text[0] != '"' || text[len(text)-1] != '"' {
		return text
	}
	return unescape.Replace(text[1 : len(text)-1])
}

var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// SplitOutsideQuotes splits a structured field at separators outside of quoted strings. It
// returns false if a string has no closing quote.
func SplitOutsideQuotes(text string, separator byte) (parts []string, ok bool) {
	from, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch {
		case quoted && text[i] == '\\':
			i++
		case text[i] == '"':
			quoted = !quoted
		case text[i] == separator && !quoted:
			parts = append(parts, text[from:i])
			from = i + 1
		}
	}
	return append(parts, text[from:]), !quoted
}
