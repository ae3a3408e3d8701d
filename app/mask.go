package app

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
)

// redacted replaces a secret in all output.
const redacted = "REDACTED"

// secretPart is a part of a setting's value that may be a secret.
type secretPart struct {
	text string
	// strong marks a part that is certainly a secret: it is redacted in every log line. Other
	// parts are redacted only in errors about the configuration.
	strong bool
}

var (
	secretName = regexp.MustCompile(`(?i)(pass|pwd|secret|token|credential|cookie|signature|session|auth|api.?key|access.?key|private|^sig$|^key$|.[_-]key$|Key$)`)
	// nonSecretNames are settings that match secretName but hold no secret.
	nonSecretNames = []string{"key", "keys", "keyPattern", "auth", "tokens", "access", "credentials", "low", "high"}
	// nonSecretHeaders are request headers that hold no secret.
	nonSecretHeaders = []string{"Accept", "Accept-Language", "Accept-Charset", "User-Agent", "Content-Type", "Cache-Control", "X-Github-Api-Version", "Prefer"}
	// nonSecretParameters are PostgreSQL connection parameters that hold no secret.
	nonSecretParameters = regexp.MustCompile(`^(sslmode|sslrootcert|sslcert|sslkey|application_name|connect_timeout|target_session_attrs|search_path|statement_timeout|default_query_exec_mode|host|port|user|dbname|options|pool_[a-z_]+)$`)

	userinfo    = regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://([^\s/?#"']*):([^\s"']*)@`)
	password    = regexp.MustCompile(`:([^\s"':]+)@`) // matches the password before an @, even in a malformed URL
	userOnly    = regexp.MustCompile(`https?://([^\s/?#@:"']+)@`)
	assignment  = regexp.MustCompile(`(?i)([a-z0-9_.-]+)\s*=\s*('[^']*'|[^\s&'"#;]+)`)
	scheme      = regexp.MustCompile(`(?i)\b(?:bearer|basic|token|digest)\s+([^\s"',;]+)`)
	longWord    = regexp.MustCompile(`[A-Za-z0-9_+=~-]{16,}`)
	placeholder = regexp.MustCompile(`\{[A-Za-z0-9_-]+\}`)
	variable    = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)
)

// looksRandom reports whether a word looks like a token: at least 16 characters, with at least 3
// digits and 3 letters. Most names have fewer digits.
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

// isSecretName reports whether a member, parameter or header with this name holds a secret.
func isSecretName(name string) bool {
	return secretName.MatchString(name) && !slices.Contains(nonSecretNames, name)
}

// singularNames lists settings that look like misspelt section names (headers, params, variables,
// body), but are valid settings. The value lists the sections in which the setting exists.
var singularNames = map[string][]string{"header": {"auth", "rules", "webhooks"}, "param": {"paging"}, "variable": {"paging"}, "body": {"webhooks"}}

// isUnder reports whether an element of a setting's path is the given name, or a misspelt form of
// this name. An element is a misspelt form if it begins with the name without its last character and is
// not a setting of its own.
func isUnder(path []string, name string) bool {
	for i, p := range path {
		if slices.ContainsFunc(singularNames[p], func(section string) bool { return slices.Contains(path[:i], section) }) {
			continue
		}
		if strings.HasPrefix(strings.ToLower(p), strings.ToLower(name[:len(name)-1])) {
			return true
		}
	}
	return false
}

// findSecrets returns the parts of a setting's value that may be secrets. path is the path of the
// setting. A value that looks like a secret is found under any path, as names may be misspelt.
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
	// Secrets that are recognised by the form of the value.
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
	// Secrets that are recognised by the name of the setting.
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
		add(value, true) // if the setting "url" holds no URL, its whole value is a secret: it may be only the password
	case name != "query" && (strings.Contains(value, "\n") || strings.HasPrefix(value, "{") && strings.Contains(value, `"`)): // probably a request body in a setting with a misspelt name
		for _, part := range findBodySecrets(value) {
			add(part.text, part.strong)
		}
	case isSecretName(name) && !strings.Contains(value, "://"):
		add(value, true)
	}
	return all
}

// findBodySecrets returns the parts of a request body that may be secrets. In JSON and forms, these are
// each string whose name is the name of a secret (isSecretName), and each string without a placeholder
// such as {key}. In any other body it is every line.
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

// redactValue returns a setting's value. All parts that may be secrets are redacted.
func redactValue(value string, path ...string) string {
	return replaceSecrets(value, findSecrets(path, value), func(secretPart) bool { return true })
}

// replaceSecrets redacts the secrets for which the function `these` returns true, in plain, URL-encoded and
// JSON-escaped form. It replaces longer secrets first: a long secret may contain a shorter secret.
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
	out, _ := json.Marshal(text) // a string can always be encoded
	return string(out)
}

// masker redacts the secrets of a configuration in output. Its methods may be called concurrently.
type masker struct {
	mu      sync.Mutex
	secrets []secretPart
}

// minSecretLength is the length of the shortest secret that is redacted, in bytes. Shorter texts
// also occur by chance in output that holds no secret.
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

// text redacts secrets in a text. If the parameter `all` is true, it redacts every secret that the masker
// has learnt. Otherwise it redacts only strong secrets (secretPart.strong) of at least six bytes.
func (m *masker) text(text string, all bool) string {
	m.mu.Lock()
	secrets := m.secrets
	m.mu.Unlock()
	return replaceSecrets(text, secrets, func(f secretPart) bool { return all || f.strong && len(f.text) >= 6 })
}

// maskedError is an error whose secrets are redacted.
type maskedError struct {
	text string
	err  error
}

func (e maskedError) Error() string { return e.text }
func (e maskedError) Unwrap() error { return e.err }

// maskError redacts the secrets in the text of an error about the configuration.
func (m *masker) maskError(err error) error {
	if err == nil {
		return nil
	}
	if text := m.text(err.Error(), true); text != err.Error() {
		return maskedError{text, err}
	}
	return err
}

// writer returns a writer that redacts secrets. Each Write must hold complete lines.
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
