package docs

import (
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/freshet/freshet/schemas"
)

var (
	createTable = regexp.MustCompile(`(?m)^CREATE TABLE (?:IF NOT EXISTS )?([a-z_]+)`)
	dropTable   = regexp.MustCompile(`(?m)^DROP TABLE (?:IF EXISTS )?([a-z_]+)`)
	growthRow   = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|")
)

// listTables returns the tables that the migrations of a database create.
func listTables(t *testing.T, database string) []string {
	t.Helper()
	found := map[string]bool{}
	names, err := fs.Glob(schemas.Migrations, "migrations/"+database+"/*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("migrations of %s: got %v, %v, want some", database, names, err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(schemas.Migrations, name)
		if err != nil {
			t.Fatal(err)
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		for _, m := range createTable.FindAllStringSubmatch(up, -1) {
			found[m[1]] = true
		}
		for _, m := range dropTable.FindAllStringSubmatch(up, -1) {
			delete(found, m[1])
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func TestOperatingGuide_ListsTheGrowthOfEveryTable(t *testing.T) {
	text, err := os.ReadFile("capacity.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Growth of the tables\n")
	if !found {
		t.Fatal("docs/capacity.md: got no section Growth of the tables, want one")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for _, m := range growthRow.FindAllStringSubmatch(section, -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(listed)
	for _, database := range []string{"postgres", "sqlite"} {
		if want := listTables(t, database); !slices.Equal(listed, want) {
			t.Errorf("%s: got %q in the guide, want %q", database, listed, want)
		}
	}
}
