package console

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestTerms_AreThoseOfTheConcepts(t *testing.T) {
	text, err := os.ReadFile("../docs/concepts.md")
	if err != nil {
		t.Fatal(err)
	}
	defined := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$`).FindAllStringSubmatch(string(text), -1) {
		term, _, _ := strings.Cut(row[1], ",")
		defined[term] = strings.NewReplacer("`", "", "*", "").Replace(row[2])
	}
	for term, got := range terms {
		if got != defined[term] {
			t.Errorf("definition of %q: got %q, want %q of docs/concepts.md", term, got, defined[term])
		}
	}
}

func TestTerms_AreShownOnEveryPage(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	for _, l := range navigation {
		d := r.get(l.Path)
		for term := range terms {
			if got := d.textByID("term-" + termID(term)); !strings.Contains(got, terms[term]) {
				t.Errorf("%s: the definition of %q: got %q, want %q", l.Path, term, got, terms[term])
			}
		}
	}
}
