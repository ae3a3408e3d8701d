package browser

import (
	"flag"
	"os"
)

// axe is the path of the script axe.min.js of axe-core. The script is not in the repository, because
// its licence is the Mozilla Public License, and only this test needs it.
var axe = flag.String("axe", "", "check each page of the console with this script of axe-core too (make axe)")

// findWithAxe returns the violations that axe-core finds in the page, of any impact. Without the flag
// -axe it returns none.
func (b *tab) findWithAxe() []string {
	b.t.Helper()
	if *axe == "" {
		return nil
	}
	script, err := os.ReadFile(*axe)
	if err != nil {
		b.t.Fatal(err)
	}
	if !evaluate[bool](b, string(script)+"\n;typeof axe.run === 'function'") {
		b.t.Fatalf("%s: got no function axe.run, want the script of axe-core", *axe)
	}
	return evaluate[[]string](b, `axe.run(document).then(result => result.violations.flatMap(rule =>
		rule.nodes.map(node => ['axe', rule.impact, rule.id, node.failureSummary, node.html.slice(0, 200)].join(': '))))`)
}
