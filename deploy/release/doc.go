// Package release has the files for releases and no code. Its tests check .goreleaser.yaml against
// the types of goreleaser.
package release
