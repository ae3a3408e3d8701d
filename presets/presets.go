// Package presets contains configurations for well-known upstreams. Each file is the content of
// sources.<name> in the configuration file. It may override settings of another preset (`preset: NAME`).
// Tests run each preset against a simulated upstream that enforces the documented quotas of the real one
// (package simulator/contract).
package presets

import (
	"bytes"
	"embed"
	"fmt"
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
	all := map[string][]byte{"nexon": nexon.Config}
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		panic(err) // cannot happen: the pattern is valid
	}
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			panic(err) // cannot happen: the file is embedded
		}
		all[strings.TrimSuffix(name, ".yaml")] = text
	}
	return all
}

// Names returns the names of all presets, sorted.
func Names() []string { return slices.Sorted(maps.Keys(All())) }

// File returns a preset as a complete configuration file. The parameter name is the name of its only
// source.
func File(name string, preset []byte) []byte {
	var out strings.Builder
	if bytes.Contains(preset, []byte("token:")) {
		out.WriteString("secrets: {keyFile: /etc/freshet/keys} # encrypts tokens; write it with: echo \"2026-11 $(openssl rand -base64 32)\"\n")
	}
	fmt.Fprintf(&out, "sources:\n  %s:\n", name)
	for line := range strings.Lines(string(preset)) {
		if strings.TrimSpace(line) != "" {
			out.WriteString("    ")
		}
		out.WriteString(line)
	}
	return []byte(out.String())
}
