package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// redacted takes the place of a secret in whatever is printed.
const redacted = "REDACTED"

// secretPart is a part of a setting's value that may be a secret.
type secretPart struct {
	text string
	// strong parts are secrets for certain enough to be searched for in every line that is
	// logged; the others only in errors about the configuration.
	strong bool
}

var (
	secretName = regexp.MustCompile(`(?i)(pass|pwd|secret|token|credential|cookie|signature|session|auth|api.?key|access.?key|private|^sig$|^key$|.[_-]key$|Key$)`)
	// nonSecretNames are settings whose names look like those of secrets.
	nonSecretNames = []string{"key", "keys", "keyPattern", "auth", "tokens", "access", "credentials", "low", "high"}
	// nonSecretHeaders are headers whose values are no secrets.
	nonSecretHeaders = []string{"Accept", "Accept-Language", "Accept-Charset", "User-Agent", "Content-Type", "Cache-Control", "X-Github-Api-Version", "Prefer"}
	// nonSecretParameters are parameters of a connection to PostgreSQL that are no secrets.
	nonSecretParameters = regexp.MustCompile(`^(sslmode|sslrootcert|sslcert|sslkey|application_name|connect_timeout|target_session_attrs|search_path|statement_timeout|default_query_exec_mode|host|port|user|dbname|options|pool_[a-z_]+)$`)

	userinfo    = regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://([^\s/?#"']*):([^\s"']*)@`)
	password    = regexp.MustCompile(`:([^\s"':]+)@`) // also of what is no URL by a mistake
	userOnly    = regexp.MustCompile(`https?://([^\s/?#@:"']+)@`)
	assignment  = regexp.MustCompile(`(?i)([a-z0-9_.-]+)\s*=\s*('[^']*'|[^\s&'"#;]+)`)
	scheme      = regexp.MustCompile(`(?i)\b(?:bearer|basic|token|digest)\s+([^\s"',;]+)`)
	longWord    = regexp.MustCompile(`[A-Za-z0-9_+=~-]{16,}`)
	placeholder = regexp.MustCompile(`\{[A-Za-z0-9_-]+\}`)
	variable    = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)
)

// looksRandom reports whether a word looks like a token: names have fewer digits.
func looksRandom(word string) bool {
	digits, letters := 0, 0
	for _, r := range word {
		switch {
		case r >= '0' && r <= '9':
			digits++
		case r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z':
			letters++
		}
	}
	return len(word) >= 16 && digits >= 3 && letters >= 3
}

// isSecretName reports whether a member, parameter or header of that name holds a secret.
func isSecretName(name string) bool {
	return secretName.MatchString(name) && !slices.Contains(nonSecretNames, name)
}

// isUnder reports whether a setting lies below one of that name, or is it. A name may be
// misspelt at its end.
func isUnder(path []string, name string) bool {
	return slices.ContainsFunc(path, func(p string) bool {
		return strings.HasPrefix(strings.ToLower(p), strings.ToLower(name[:len(name)-1]))
	})
}

// findSecrets returns the parts of a setting's value that may be secrets. path is the names of
// the settings around it, and its own at the end.
func findSecrets(path []string, value string) (all []secretPart) {
	name := ""
	if len(path) > 0 {
		name = path[len(path)-1]
	}
	add := func(text string, strong bool) {
		if text = strings.Trim(text, `'"`); text != "" && placeholder.ReplaceAllString(text, "") != "" {
			all = append(all, secretPart{text, strong})
		}
	}
	// By its form, wherever it stands: a setting may be misspelt.
	for _, m := range append(userinfo.FindAllStringSubmatch(value, -1), password.FindAllStringSubmatch(value, -1)...) {
		add(m[len(m)-1], true)
		if plain, err := url.PathUnescape(m[len(m)-1]); err == nil {
			add(plain, true)
		}
	}
	for _, m := range userOnly.FindAllStringSubmatch(value, -1) {
		add(m[1], true)
	}
	for _, m := range assignment.FindAllStringSubmatch(value, -1) {
		if isSecretName(m[1]) || (isUnder(path, "database") || strings.Contains(value, "postgres")) && !nonSecretParameters.MatchString(m[1]) {
			add(m[2], true)
			if plain, err := url.QueryUnescape(m[2]); err == nil {
				add(plain, true)
			}
		}
	}
	for _, m := range scheme.FindAllStringSubmatch(value, -1) {
		add(m[1], looksRandom(m[1]) || len(m[1]) >= 8)
	}
	for _, word := range longWord.FindAllString(value, -1) {
		if looksRandom(word) && !isUnder(path, "keyPattern") && !isUnder(path, "keys") && !variable.MatchString(word) {
			add(word, true)
		}
	}
	// By its setting.
	switch {
	case name == "secretEnv":
		if !variable.MatchString(value) {
			add(value, true)
		}
	case strings.HasSuffix(name, "File"):
		if _, err := os.Stat(value); err != nil && !strings.ContainsAny(value, "/.") {
			add(value, true)
		}
	case isUnder(path, "body"):
		for _, part := range findBodySecrets(value) {
			add(part.text, part.strong)
		}
	case isUnder(path, "headers"):
		if !slices.Contains(nonSecretHeaders, http.CanonicalHeaderKey(name)) {
			add(value, isSecretName(name))
		}
	case isUnder(path, "variables") || isUnder(path, "params"):
		if !placeholder.MatchString(value) || isSecretName(name) {
			add(value, isSecretName(name))
		}
	case (name == "url" || name == "directURL") && !strings.Contains(value, "://") && !strings.Contains(value, "="):
		add(value, true) // no URL: it may be the password alone
	case name != "query" && (strings.Contains(value, "\n") || strings.HasPrefix(value, "{") && strings.Contains(value, `"`)): // of a misspelt body
		for _, part := range findBodySecrets(value) {
			add(part.text, part.strong)
		}
	case isSecretName(name) && !strings.Contains(value, "://"):
		add(value, true)
	}
	return all
}

// findBodySecrets returns the values of a body: in what is not known as JSON all of it.
func findBodySecrets(body string) (all []secretPart) {
	var walk func(name string, v any)
	walk = func(name string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, value := range v {
				walk(name, value)
			}
		case []any:
			for _, value := range v {
				walk(name, value)
			}
		case string:
			if !placeholder.MatchString(v) || isSecretName(name) {
				all = append(all, secretPart{v, isSecretName(name)})
			}
		}
	}
	var v any
	if err := json.Unmarshal([]byte(body), &v); err == nil {
		walk("", v)
		return all
	}
	if form, err := url.ParseQuery(body); err == nil && strings.Contains(body, "=") && !strings.ContainsAny(placeholder.ReplaceAllString(body, ""), " \n{\"") {
		for name := range form {
			walk(name, form.Get(name))
		}
		return all
	}
	for line := range strings.Lines(body) {
		all = append(all, secretPart{strings.TrimSpace(line), false})
	}
	return all
}

// redactValue returns a setting's value without the parts that may be secrets.
func redactValue(value string, path ...string) string {
	return replaceSecrets(value, findSecrets(path, value), func(secretPart) bool { return true })
}

// replaceSecrets returns a text without those of the secrets, the longest first.
func replaceSecrets(text string, secrets []secretPart, these func(secretPart) bool) string {
	secrets = slices.Clone(secrets)
	slices.SortStableFunc(secrets, func(a, b secretPart) int { return len(b.text) - len(a.text) })
	for _, s := range secrets {
		if !these(s) {
			continue
		}
		for _, form := range []string{s.text, url.QueryEscape(s.text), strings.Trim(escapeJSON(s.text), `"`)} {
			text = strings.ReplaceAll(text, form, redacted)
		}
	}
	return text
}

func escapeJSON(text string) string {
	out, _ := json.Marshal(text) // a string has no value that can't be written
	return string(out)
}

// masker keeps the secrets of a configuration out of what is printed.
type masker struct {
	mu      sync.Mutex
	secrets []secretPart
}

// minSecretLength is the length from which on a secret is searched for, in bytes.
const minSecretLength = 4

func (m *masker) add(all ...secretPart) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range all {
		if len(f.text) >= minSecretLength && !slices.Contains(m.secrets, f) {
			m.secrets = append(m.secrets, f)
		}
	}
}

// text returns the text without secrets; all: also without those that are searched for only
// in errors about the configuration.
func (m *masker) text(text string, all bool) string {
	m.mu.Lock()
	secrets := m.secrets
	m.mu.Unlock()
	return replaceSecrets(text, secrets, func(f secretPart) bool { return all || f.strong && len(f.text) >= 6 })
}

// maskedError is an error whose text has no secrets.
type maskedError struct {
	text string
	err  error
}

func (e maskedError) Error() string { return e.text }
func (e maskedError) Unwrap() error { return e.err }

// maskError returns an error about the configuration without secrets in its text.
func (m *masker) maskError(err error) error {
	if err == nil {
		return nil
	}
	if text := m.text(err.Error(), true); text != err.Error() {
		return maskedError{text, err}
	}
	return err
}

// writer returns a writer that masks what is written, a line or a record at a time.
func (m *masker) writer(to io.Writer) io.Writer { return maskingWriter{m, to} }

type maskingWriter struct {
	m  *masker
	to io.Writer
}

// Write implements io.Writer.
func (w maskingWriter) Write(p []byte) (int, error) {
	if text := w.m.text(string(p), false); text != string(p) {
		if _, err := io.WriteString(w.to, text); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	return w.to.Write(p)
}

// learn takes in the secrets of a configuration file and of the environment.
func (m *masker) learn(file []byte, env []string) {
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, envPrefix) && !strings.HasSuffix(name, "_FILE") {
			m.add(findSecrets(settingPathOf(name), value)...)
		}
	}
	parsed, err := parser.ParseBytes(file, 0)
	m.learnLines(string(file), err != nil)
	if err != nil {
		return
	}
	for _, doc := range parsed.Docs {
		if doc.Body != nil {
			m.learnNode(nil, doc.Body)
		}
	}
}

// settingPathOf returns a path for the variable of a setting, as secretsOf takes it.
func settingPathOf(variable string) []string {
	switch {
	case strings.Contains(variable, "DATABASE"):
		return []string{"database", "url"}
	case strings.HasSuffix(variable, "SECRET_ENV"):
		return []string{"secretEnv"}
	case strings.HasSuffix(variable, "TOKEN"):
		return []string{"token"}
	}
	return []string{strings.ToLower(variable)}
}

func (m *masker) learnNode(path []string, n ast.Node) {
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			m.learnNode(path, v)
		}
	case *ast.MappingValueNode:
		m.learnNode(append(slices.Clone(path), strings.Trim(n.Key.String(), `'"`)), n.Value)
	case *ast.SequenceNode:
		for _, v := range n.Values {
			m.learnNode(path, v)
		}
	case *ast.AnchorNode:
		m.learnNode(path, n.Value)
	case *ast.TagNode:
		m.learnNode(path, n.Value)
	case *ast.LiteralNode:
		m.learnText(path, n.Value.Value)
	case ast.ScalarNode:
		m.learnText(path, n.GetToken().Value)
	}
}

func (m *masker) learnText(path []string, value string) {
	m.add(findSecrets(path, value)...)
	if strings.Contains(value, "\n") { // an excerpt shows its lines
		for line := range strings.Lines(value) {
			for _, f := range findSecrets(path, strings.TrimSpace(line)) {
				m.add(f)
			}
		}
	}
}

var yamlMember = regexp.MustCompile(`(?:^|[{,\s-])["']?([A-Za-z][A-Za-z0-9_.-]*)["']?\s*:`)

// yamlPunctuation are what may stand around a value in YAML.
const yamlPunctuation = " \t\r\n\"'{}[],|>*&!:"

// yamlNamedLine is how a line begins that has a name.
var yamlNamedLine = regexp.MustCompile(`^[\s-]*["']?[A-Za-z][A-Za-z0-9_.-]*["']?\s*:`)

// yamlSecretName is the name of a setting that holds secrets, whose colon may be missing.
var yamlSecretName = regexp.MustCompile(`^[\s-]*["']?(headers|body|variables|params|url|directURL|secretEnv|prefix)\b["']?`)

// learnLines takes in the secrets of a file line by line, for it may be one that can't be
// parsed, or not as it was meant. A value reaches from its name to the end of the line, and
// over the deeper lines behind it. In a broken file a line without a name of its own may
// belong to any setting.
func (m *masker) learnLines(text string, broken bool) {
	type open struct {
		indent int
		name   string
	}
	var around []open
	var last []string // the path of the last name: what follows may be its value
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		indent := len(line) - len(strings.TrimLeft(line, " \t-"))
		for len(around) > 0 && trimmed != "" && around[len(around)-1].indent >= indent {
			around = around[:len(around)-1]
		}
		path := make([]string, 0, len(around)+4)
		for _, o := range around {
			path = append(path, o.name)
		}
		m.add(findSecrets(path, trimmed)...)
		m.add(findSecrets(last, strings.Trim(trimmed, yamlPunctuation))...)
		if broken && !yamlNamedLine.MatchString(line) && !strings.HasPrefix(trimmed, "#") {
			m.add(secretPart{trimmed, false})
		}
		members := yamlMember.FindAllStringSubmatchIndex(line, -1)
		if at := yamlSecretName.FindStringSubmatchIndex(line); at != nil && (len(members) == 0 || members[0][2] != at[2]) {
			members = append([][]int{at}, members...)
		}
		for i, at := range members {
			name, end := line[at[2]:at[3]], len(line)
			path = append(path, name)
			m.add(findSecrets(path, strings.Trim(line[at[1]:end], yamlPunctuation))...)
			if i+1 < len(members) {
				end = members[i+1][2]
				m.add(findSecrets(path, strings.Trim(line[at[1]:end], yamlPunctuation))...)
			}
			last = slices.Clone(path)
			if i == 0 {
				around = append(around, open{indent, name})
			}
		}
	}
}
