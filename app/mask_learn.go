package app

import (
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// learn adds the secrets in a configuration file and in the environment to the masker.
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

// settingPathOf returns the path to pass to findSecrets for the value of an environment variable.
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
	if strings.Contains(value, "\n") { // the secrets of each single line are added too, because an error may quote one line of the value
		for line := range strings.Lines(value) {
			for _, f := range findSecrets(path, strings.TrimSpace(line)) {
				m.add(f)
			}
		}
	}
}

var yamlMember = regexp.MustCompile(`(?:^|[{,\s-])["']?([A-Za-z][A-Za-z0-9_.-]*)["']?\s*:`)

// yamlPunctuation holds the characters that may surround a value in YAML.
const yamlPunctuation = " \t\r\n\"'{}[],|>*&!:"

// yamlNamedLine matches a line that begins with a name and a colon.
var yamlNamedLine = regexp.MustCompile(`^[\s-]*["']?[A-Za-z][A-Za-z0-9_.-]*["']?\s*:`)

// yamlSecretName matches the name of a setting that holds secrets; its colon may be missing.
var yamlSecretName = regexp.MustCompile(`^[\s-]*["']?(headers|body|variables|params|url|directURL|secretEnv|prefix)\b["']?`)

// learnLines adds the secrets of a file to the masker line by line: the file may be invalid YAML or
// have an unintended structure. The value of a setting is the text after the setting's name, and the
// following lines with a deeper indentation. If the file is broken (invalid YAML), the value is also the
// whole rest of the line, even if it contains further names, and the next line. In a broken file each
// line without a name counts as a secret, because it may belong to any setting.
func (m *masker) learnLines(text string, broken bool) {
	type open struct {
		indent int
		name   string
	}
	var around []open
	var last []string // path of the last setting name that was read; the next line may hold its value
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
		outer := len(path)
		for i, at := range members {
			if i > 0 && !broken { // remove each name whose value ends before this name; in {b: 1, c: 2}, b is removed before c is added
				between := line[members[i-1][1]:at[2]]
				path = path[:max(outer, len(path)-max(0, 1+strings.Count(between, "}")-strings.Count(between, "{")))]
			}
			name, end := line[at[2]:at[3]], len(line)
			path = append(path, name)
			if broken || i+1 == len(members) {
				m.add(findSecrets(path, strings.Trim(line[at[1]:end], yamlPunctuation))...)
			}
			if i+1 < len(members) {
				end = members[i+1][2]
				m.add(findSecrets(path, strings.Trim(line[at[1]:end], yamlPunctuation))...)
			}
			if last = nil; broken || strings.HasSuffix(trimmed, ":") {
				last = slices.Clone(path)
			}
			if i == 0 {
				around = append(around, open{indent, name})
			}
		}
	}
}
