package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// proseRules are patterns that must not match in comments, log messages and documents.
// docs/concepts.md lists the words to use instead.
var proseRules = []struct {
	name    string
	pattern *regexp.Regexp
}{
	{`name the noun instead of "what …", "who …"`, regexp.MustCompile(`(?i)(?:^|[.;:,(]\s*|\b(?:of|for|from|to|by|with|than|and|or|but|as|in|on|at|about|over|after|before|behind|without|is|are|was|were|says?|takes?|gives?|holds?|keeps?|reads?|returns?|counts?|writes?|sends?|finds?)\s+)(?:what|who|whoever|whatever|whose)\s+(?:is|was|are|were|has|have|had|may|can|could|did|does|do|must|might|will|would|should|the|a|an|it|its|they|he|she|we|that|this|no|nobody|somebody|comes?|goes|lies|stands?|waits?|asks?|asked|reads?|writes?|runs?|needs?|wants?|holds?|fails?|failed|ends?|ended|follows?|belongs?|leaves?|cannot|can't|there|one|each|all|every|of|lives?|sends?|sent|tells?|told|happens?|happened|came|went|becomes?|remains?|changes?|changed|uses?|used|takes?|took|gives?|gave|gets?|got|makes?|made|keeps?|kept|sees?|saw|looks?|calls?|called|probes?)\b`)},
	{`name the noun instead of "those that"`, regexp.MustCompile(`(?i)\bthose (?:that|who|of|for|whose|which)\b`)},
	{"write retried or repeated", regexp.MustCompile(`(?i)\bcom(?:es?|ing) round\b`)},
	{"write dead letter", regexp.MustCompile(`(?i)(?:^|[^\w` + "`" + `])(?:the|a|an|of|no|each|its|these|many|open|some|more)\s+letters?\b`)},
	{"write update request", regexp.MustCompile(`(?i)\bwish(?:es)?\b`)},
	{"write backoff", regexp.MustCompile(`(?i)\bbrak(?:e|es|ed|ing)\b`)},
	{"write unhealthy", regexp.MustCompile(`(?i)\b(?:sick|ailing|ails)\b`)},
	{"write enqueuer, notifier, fault scenario, unconfirmed or blocker", regexp.MustCompile(`(?i)\b(?:doors?|bells?|weather|doubt(?:s|ed|ful)?|hindrances?|foregone|patience|deaf|befalls?|neighbours?)\b`)},
	{"write not found", regexp.MustCompile(`(?i)\b(?:absent|absences?)\b`)},
	{"write publish, dead-letter", regexp.MustCompile(`(?i)\b(?:bur(?:y|ies|ied)|stood back|stands? back)\b`)},
}

// proseNames maps a word that must not occur in exported Go names, SQL names, metrics, YAML keys and HTTP paths to its term.
var proseNames = map[string]string{
	"wish": "request", "wishes": "requests", "door": "enqueuer", "bell": "notifier", "brake": "backoff", "brakes": "backoffs",
	"braked": "backing off", "weather": "fault scenario", "doubt": "unconfirmed", "hindrance": "blocker",
	"foregone": "not found", "patience": "timeout", "letter": "dead letter", "letters": "dead letters", "untold": "unrecorded",
	"ceiling": "rate cap", "ceilings": "rate caps", "sick": "unhealthy",
	"absent": "not found", "absence": "not found", "absences": "not found",
}

var (
	proseSpan  = regexp.MustCompile("`[^`]*`|https?://\\S+")
	proseWord  = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)
	proseIdent = regexp.MustCompile(`(?m)^ *"?([A-Za-z_]+)"?:|\b(?:TABLE|INDEX|VIEW)(?: IF NOT EXISTS)? (\w+)|^    (\w+) +[a-z]|^  (/[\w/{}-]+):|^\| ` + "`(\\w+)`")
)

// findProse returns one line for each violation in a file: file and line, rule, text.
func findProse(path, text string) (found []string) {
	report := func(line int, rule, s string) {
		found = append(found, strings.TrimPrefix(path, "../")+":"+strconv.Itoa(line)+": "+rule+": "+strings.TrimSpace(s))
	}
	sentence := func(line int, s string) {
		s = proseSpan.ReplaceAllString(s, "X")
		for _, r := range proseRules {
			if m := r.pattern.FindString(s); m != "" && !strings.HasSuffix(strings.TrimSpace(s), "?") {
				report(line, r.name, m+" … in "+s)
			}
		}
	}
	name := func(line int, s string) {
		words := proseWord.FindAllString(s, -1)
		for i, w := range words {
			if use, old := proseNames[strings.ToLower(w)]; old && (i == 0 || !strings.EqualFold(words[i-1], "dead")) {
				report(line, "write "+use, s)
			}
		}
	}
	lineOf := func(offset int) int { return 1 + strings.Count(text[:offset], "\n") }
	switch filepath.Ext(path) {
	case ".go":
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			return []string{err.Error()}
		}
		for _, c := range f.Comments {
			sentence(fset.Position(c.Pos()).Line, strings.ReplaceAll(c.Text(), "\n", " "))
		}
		text := func(args ...ast.Expr) {
			if s := firstText(args); s != nil {
				sentence(fset.Position(s.Pos()).Line, strings.Trim(s.Value, `"`))
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr: // if the call writes a log message, check the message
				if fn, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains(logMethods, fn.Sel.Name) {
					text(n.Args...)
				}
			case *ast.KeyValueExpr: // check the messages of an observe.Condition
				if key, ok := n.Key.(*ast.Ident); ok && (key.Name == "Failing" || key.Name == "Recovered") {
					text(n.Value)
				}
			case *ast.FuncDecl:
				name(fset.Position(n.Pos()).Line, n.Name.Name)
			case *ast.TypeSpec:
				name(fset.Position(n.Pos()).Line, n.Name.Name)
			}
			return true
		})
	case ".md", ".sql", ".yaml", ".yml", ".lua":
		for _, m := range proseIdent.FindAllStringSubmatchIndex(text, -1) {
			for g := 2; g < len(m); g += 2 {
				if m[g] >= 0 {
					name(lineOf(m[g]), text[m[g]:m[g+1]])
				}
			}
		}
		fenced, marker := false, map[string]string{".sql": "-- ", ".lua": "-- ", ".yaml": "# ", ".yml": "# "}[filepath.Ext(path)]
		for i, line := range strings.Split(text, "\n") {
			if marker != "" {
				_, line, _ = strings.Cut(line, marker)
			} else if fence := strings.HasPrefix(strings.TrimSpace(line), "```"); fence || fenced {
				fenced = fenced != fence
				continue
			}
			sentence(i+1, strings.TrimLeft(line, "-*#>| "))
		}
	}
	return found
}

func TestProse_FollowsTheRules(t *testing.T) {
	var found []string
	eachFile(t, func(path, text string) {
		if name := filepath.Base(path); name != "CHANGELOG.md" && name != "prose_test.go" {
			found = append(found, findProse(path, text)...)
		}
	})
	if len(found) > 0 {
		t.Errorf("findings: got %d, want 0; docs/concepts.md has the terms, CONTRIBUTING.md the rules\n%s", len(found), strings.Join(found[:min(len(found), *proseMax)], "\n"))
	}
}

func TestProse_FindsPlantedFaults(t *testing.T) {
	for path, text := range map[string]string{
		"a.go":  "package a\n\n// Take returns what is asked for.\nfunc Take() {}\n",
		"b.go":  "package b\n\nfunc f() { log.Warn(\"a sick upstream\") }\n",
		"c.go":  "package c\n\ntype Wish struct{}\n",
		"d.md":  "# D\n\nA retry comes round after a minute.\n",
		"e.sql": "CREATE TABLE letters (id bigint);\n",
		"g.sql": "-- The row is deleted by whoever has the lease.\n",
		"h.lua": "-- The brake has ended.\n",
		"i.go":  "package i\n\nvar c = Condition{Failing: \"the retry comes round\"}\n",
		"f.yml": "ceilings: []\n",
	} {
		if found := findProse(path, text); len(found) != 1 {
			t.Errorf("findings in %s: got %q, want one", path, found)
		}
	}
}
