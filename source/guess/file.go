package guess

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/trial"
)

// MaxLines is the maximum number of lines of a written configuration.
const MaxLines = 25

// sourceGuess describes one source that is written to the configuration file.
type sourceGuess struct {
	name, base string
	auth       source.Auth
	policies   []policy
	facets     []facetGuess
}

// facetGuess is one facet of the written configuration. Its only document has the name of the facet.
type facetGuess struct {
	name, path, keyPattern string
	keyFrom                string // YAML comment that explains the keyPattern
	paging                 *source.Paging
	conditional            bool
	freshFor               time.Duration
	freshFrom              string
	ignore                 []string
}

// writer collects the lines of the configuration.
type writer struct{ lines []string }

func (w *writer) line(depth int, comment, format string, args ...any) {
	text := strings.Repeat("  ", depth) + fmt.Sprintf(format, args...)
	if comment = trial.Printable(comment); comment != "" {
		text += " # " + comment
	}
	w.lines = append(w.lines, text)
}

// write returns the configuration. `head` are comments before it. If the roomy layout has more than
// MaxLines lines, write uses a compact layout, in which each facet and each list takes one line.
func write(head []string, sources []sourceGuess) []byte {
	for _, compact := range []bool{false, true} {
		w := &writer{}
		for _, text := range head {
			w.lines = append(w.lines, "# "+trial.Printable(text))
		}
		w.lines = append(w.lines, "sources:")
		for _, s := range sources {
			s.write(w, compact)
		}
		if len(w.lines) <= MaxLines || compact {
			return []byte(strings.Join(w.lines, "\n") + "\n")
		}
	}
	return nil
}

func (s sourceGuess) write(w *writer, compact bool) {
	w.line(1, "readers use this name: /v1/"+s.name+"/…", "%s:", s.name)
	base := s.base
	if !plainURL.MatchString(base) {
		base = quoted(base)
	}
	w.line(2, "", "baseURL: %s", base)
	if a := s.auth; a.Header+a.Query != "" {
		text := "header: " + quoted(a.Header)
		if a.Query != "" {
			text = "query: " + quoted(a.Query)
		}
		if a.Prefix != "" {
			text += ", prefix: " + quoted(a.Prefix)
		}
		w.line(2, "the credential is read from this variable", "auth: {%s, secretEnv: %s}", text, a.SecretEnv)
	}
	var rules, policies, comments []string
	for _, p := range s.policies {
		if p.rule.String() != "{}" {
			p.rule.Policy = p.name
			rules = append(rules, p.rule.String())
		}
		policies = append(policies, p.yaml())
		comments = append(comments, strings.TrimPrefix(mark(p.check)+strings.TrimPrefix(p.from, "CHECK "), " "))
	}
	switch {
	case len(rules) == 0:
	case compact:
		w.line(2, "the headers that report the limit", "announced: [%s]", strings.Join(rules, ", "))
	default:
		w.line(2, "the headers that report the limit", "announced:")
		for _, rule := range rules {
			w.line(3, "", "- %s", rule)
		}
	}
	if compact {
		w.line(2, strings.Join(slices.Compact(comments), "; "), "quota: {policies: [%s]}", strings.Join(policies, ", "))
	} else {
		w.line(2, "", "quota:")
		w.line(3, "highReserve: calls for reads that wait", "policies:")
		for i, p := range policies {
			w.line(4, comments[i], "- %s", p)
		}
	}
	w.line(2, "", "facets:")
	for _, f := range s.facets {
		f.write(w, compact)
	}
	if !compact {
		w.line(2, "refreshes before readers request the entity", "# prefetch: {facets: {%s: {mode: adaptive}}}", s.facets[0].name)
	}
}

func (f facetGuess) write(w *writer, compact bool) {
	document := "path: " + quoted(f.path)
	if p := f.paging; p != nil {
		text := "link: true"
		if !p.Link {
			text = "cursor: " + quoted(p.Cursor) + ", param: " + quoted(p.Param)
		}
		if p.Items != "" {
			text += ", items: " + quoted(p.Items)
		}
		document += ", paging: {" + text + "}"
	}
	document = fmt.Sprintf("{%s: {%s}}", f.name, document)
	var ignore []string
	for _, path := range f.ignore {
		ignore = append(ignore, quoted(path))
	}
	if compact {
		text := fmt.Sprintf("keyPattern: %s, documents: %s, freshFor: %s", quoted(f.keyPattern), document, schemas.FormatDuration(f.freshFor))
		if f.conditional {
			text += ", conditional: true"
		}
		if len(ignore) > 0 {
			text += ", ignore: [" + strings.Join(ignore, ", ") + "]"
		}
		w.line(3, f.keyFrom, "%s: {%s}", f.name, text)
		return
	}
	w.line(3, "", "%s:", f.name)
	w.line(4, f.keyFrom, "keyPattern: %s", quoted(f.keyPattern))
	w.line(4, "", "documents: %s", document)
	if f.conditional {
		w.line(4, "sends the ETag; the API answers 304", "conditional: true")
	}
	if len(ignore) > 0 {
		w.line(4, "CHECK differed between two calls; not in the hash", "ignore: [%s]", strings.Join(ignore, ", "))
	}
	w.line(4, f.freshFrom, "freshFor: %s", schemas.FormatDuration(f.freshFor))
}

func mark(check bool) string {
	if check {
		return "CHECK "
	}
	return ""
}

// plain matches text that YAML reads as a string without quotes, also within {…}.
var plain = regexp.MustCompile(`^[A-Za-z/][0-9A-Za-z/_.-]*$`)

// plainURL matches a base URL that needs no quotes in a line of its own.
var plainURL = regexp.MustCompile(`^https?://[0-9A-Za-z.-]+(:[0-9]+)?$`)

// quoted returns a text as a YAML string. JSON strings are YAML strings.
func quoted(text string) string {
	if plain.MatchString(text) && !slices.Contains([]string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}, strings.ToLower(text)) {
		return text
	}
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(text) != nil { // cannot fail: every string can be encoded
		return `""`
	}
	return strings.TrimSuffix(out.String(), "\n")
}
