package schemas

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the document and its page
	"encoding/base64"
)

// OpenAPI is the contract of the HTTP API, in OpenAPI 3.1.
//
//go:embed openapi.yaml
var OpenAPI []byte

// OpenAPIPage is the contract for people: one HTML file without scripts and
// without anything to load. A test writes it from OpenAPI.
//
//go:embed openapi.html
var OpenAPIPage []byte

// OpenAPIPageCSP is the Content-Security-Policy to serve OpenAPIPage with: it
// allows the page's own style sheet, by its hash, and nothing else.
var OpenAPIPageCSP = styleOnly(OpenAPIPage)

func styleOnly(page []byte) string {
	_, rest, _ := bytes.Cut(page, []byte("<style>"))
	style, _, _ := bytes.Cut(rest, []byte("</style>"))
	sum := sha256.Sum256(style)
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}
