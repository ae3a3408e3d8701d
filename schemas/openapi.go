package schemas

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // for the go:embed directives of this file
	"encoding/base64"
)

// OpenAPI is the specification of the HTTP API, in OpenAPI 3.1.
//
//go:embed openapi.yaml
var OpenAPI []byte

// OpenAPIServer is the URL of the server in OpenAPI. A query service replaces it with its own URL.
const OpenAPIServer = "http://127.0.0.1:8080"

// OpenAPIJSON is OpenAPI as JSON. TestOpenAPIJSON_MatchesDocument generates it from OpenAPI when it
// runs with -update.
//
//go:embed openapi.json
var OpenAPIJSON []byte

// OpenAPIPage is the specification as one HTML page without scripts or external resources.
// TestPage_MatchesDocument generates it from OpenAPI when it runs with -update.
//
//go:embed openapi.html
var OpenAPIPage []byte

// OpenAPIPageCSP is the Content-Security-Policy of OpenAPIPage.
var OpenAPIPageCSP = StyleOnlyCSP(OpenAPIPage)

// StyleOnlyCSP returns the Content-Security-Policy for a page that loads nothing. It allows only the
// page's own style sheet, the element style, by its hash.
func StyleOnlyCSP(page []byte) string {
	_, rest, _ := bytes.Cut(page, []byte("<style>"))
	style, _, _ := bytes.Cut(rest, []byte("</style>"))
	sum := sha256.Sum256(style)
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}
