// Command sbom writes the modules of a Go program as CycloneDX JSON: the modules that the linker
// recorded, with their checksums, and the standard library. Modules that are only in go.mod are not
// listed. The output is reproducible.
//
//	sbom -version v1.2.3 freshet > freshet.cdx.json
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	version := flag.String("version", "", "version of the program, if the binary has none")
	to := flag.String("o", "", "file to write (default stdout)")
	flag.Parse()
	if err := run(flag.Args(), *version, *to); err != nil {
		fmt.Fprintln(os.Stderr, "sbom: "+err.Error())
		os.Exit(1)
	}
}

func run(args []string, version, to string) error {
	if len(args) != 1 {
		return fmt.Errorf("got %d programs, want one", len(args))
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("%w; the file must be a Go binary", err)
	}
	bom, err := bill(info, version)
	if err != nil {
		return err
	}
	if to == "" {
		return write(os.Stdout, bom)
	}
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	if err := write(file, bom); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

func write(to io.Writer, bom *cdx.BOM) error {
	return cdx.NewBOMEncoder(to, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
}

// bill returns the software bill of materials (SBOM) of a program.
func bill(info *buildinfo.BuildInfo, version string) (*cdx.BOM, error) {
	if version == "" {
		version = info.Main.Version
	}
	program := module(info.Main.Path, version)
	program.Type = cdx.ComponentTypeApplication
	parts := []cdx.Component{module("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		part, err := dependency(m)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	all := make([]string, len(parts))
	for i, p := range parts {
		all[i] = p.BOMRef
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &program}
	bom.Components = &parts
	bom.Dependencies = &[]cdx.Dependency{{Ref: program.BOMRef, Dependencies: &all}}
	return bom, nil
}

func module(path, version string) cdx.Component {
	url := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: url, Name: path, Version: version, PackageURL: url}
}

// dependency returns the SBOM component for a linked module, or for the module that replaces it.
func dependency(m *debug.Module) (cdx.Component, error) {
	if m.Replace != nil {
		m = m.Replace
	}
	part := module(m.Path, m.Version)
	sum, found := strings.CutPrefix(m.Sum, "h1:")
	if !found {
		return part, nil // a module replaced by a local folder has no checksum
	}
	text, err := base64.StdEncoding.DecodeString(sum)
	if err != nil {
		return part, fmt.Errorf("%s: decode the checksum %q: %w", m.Path, m.Sum, err)
	}
	// The checksum is computed as in go.sum: it is the SHA-256 of a list that contains the SHA-256
	// of each file of the module.
	part.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(text)}}
	return part, nil
}
