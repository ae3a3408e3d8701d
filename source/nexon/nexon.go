// Package nexon contains the configuration of the Nexon Open API and a test that the
// configuration classifies the API's responses correctly. The API needs no Go code: an entity is
// one document, and rules of the configuration distinguish the errors.
package nexon

import _ "embed" // embeds the file nexon.yaml in Config

// Config is the content of sources.nexon in the configuration file.
//
//go:embed nexon.yaml
var Config []byte
