// Package nexon describes the Nexon Open API. It holds what configuration can't
// say of it, which at present is nothing: an entity is one document, its errors
// are told apart by rules, and so the package is its configuration and the proof
// that it means what the upstream does.
package nexon

import _ "embed" // for the configuration

// Config is what stands under sources.nexon in a configuration.
//
//go:embed nexon.yaml
var Config []byte
