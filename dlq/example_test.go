package dlq_test

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/store/deadletters"
)

// The key in a filter may be given as FACET/KEY, the form in which lists show it.
func ExampleSplitFacetKey() {
	hasFacet := func(name string) bool { return name == "character" }
	fmt.Println(dlq.SplitFacetKey("", "character/anna", hasFacet))
	fmt.Println(dlq.SplitFacetKey("", "anna", hasFacet))
	fmt.Println(dlq.SplitFacetKey("", "guild/anna", hasFacet)) // no facet has the name guild, so the whole text is the key
	// Output:
	// character anna
	//  anna
	//  guild/anna
}

// FormatCursor encodes the time and the position of the last dead letter of a page.
func ExampleFormatCursor() {
	last := deadletters.DeadLetter{
		ID: deadletters.ID{Topic: "nexon.update-dlq", Partition: 3, Offset: 120},
		At: time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC),
	}
	cursor := dlq.FormatCursor(last)
	fmt.Println(cursor)
	after, err := dlq.ParseCursor("nexon", cursor)
	fmt.Println(after.Topic, after.Partition, after.Offset, err)
	// Output:
	// 1769515200000000:3:120
	// nexon.update-dlq 3 120 <nil>
}
