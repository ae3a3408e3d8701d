// Package js contains freshet.js, the browser module that calls the HTTP API of a query service, and
// its TypeScript types. The console serves and uses the module. docs/clients.md shows its use, and
// e2e/browser tests it in Chromium.
package js

import _ "embed"

// Module is the text of freshet.js.
//
//go:embed freshet.js
var Module []byte
