// Package nexon contains the configuration of the Nexon Open API and a test that the
// configuration classifies the API's responses correctly. It needs no code of its own: an
// entity is one document, and rules distinguish the errors.
package nexon

import _ "embed" // for Config

// Config is the content of sources.nexon in the configuration file.
//
//go:embed nexon.yaml
var Config []byte
