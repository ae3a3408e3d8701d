package links_test

import (
	"errors"
	"fmt"
	"strings"

	"github.com/freshet/freshet/source/links"
)

// The content is chapter 2 of a book. It contains links to other chapters, two links to the same
// chapter, and a link to a file that is no chapter.
func ExampleConfig_Find() {
	config, err := links.Config{Match: `href="/book/([^"]*)"`, Facet: "chapter"}.Compile()
	if err != nil {
		panic(err)
	}
	rules := links.Rules{Own: "chapter-2", Fold: strings.ToLower, Check: func(key string) error {
		if !strings.HasPrefix(key, "chapter-") {
			return errors.New("no chapter")
		}
		return nil
	}}
	content := `<a href="/book/chapter-3"/><a href="/book/Chapter-3"/><a href="/book/chapter-2"/><a href="/book/../cover.png"/><a href="/book/chapter-1"/>`
	found := config.Find([]byte(content), rules)
	fmt.Println(found.Keys, found.Invalid)
	// Output: [chapter-3 chapter-1] 1
}
