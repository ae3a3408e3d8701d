// Package release has no code: it holds what releases are made with, and tests that
// .goreleaser.yaml fits goreleaser's own types.
package release
