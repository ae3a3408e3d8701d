// Package presets has configurations of well-known upstreams: each file is what stands
// under sources.<name>. What they say of quotas is tested against upstreams that enforce
// just that.
package presets

import (
	"embed"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/freshet/freshet/source/nexon"
)

//go:embed *.yaml
var files embed.FS

// All returns the presets by name.
func All() map[string][]byte {
	all := map[string][]byte{"nexon-service": nexon.Config}
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		panic(err) // the pattern is ours
	}
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			panic(err) // it is in the program
		}
		all[strings.TrimSuffix(name, ".yaml")] = text
	}
	return all
}

// Names returns their names, sorted.
func Names() []string { return slices.Sorted(maps.Keys(All())) }
