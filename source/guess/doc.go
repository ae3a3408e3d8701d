// Package guess writes a first configuration for an API from example URLs and the responses to them.
// `freshet init` prints it.
//
// Run makes at most MaxCalls calls, each with at most one redirect within the host: one for each URL,
// and a second one for the same URL while calls are left. Calls use package source, like the calls of a
// worker. Nothing is called again after a response that is not content, and no secret of a URL or of an
// option is written into the configuration or a note.
//
//	input                          | setting
//	scheme and host                | baseURL; each host is one source
//	an id in the path or the query | {key} in the document's path, and keyPattern
//	user:password@, api_key=…      | auth, with the name of an environment variable
//	limits in headers              | announced and quota
//	ETag, Last-Modified            | conditional, if the second call gets a 304
//	Cache-Control: max-age         | freshFor
//	Link: rel=next, next_cursor    | paging
//	members that differ            | ignore
//
// # Example
//
// The URL https://api.shop.example/products/42?api_key=abc123 becomes the source "shop" with the
// facet "product", the path /products/{key}, keyPattern [0-9]{1,20} and
// auth: {query: api_key, secretEnv: SHOP_KEY}. Of the headers X-RateLimit-Limit: 600 and
// X-RateLimit-Reset: 43, the reset is at most a minute away, so the window becomes 1m. A note says
// that the window is a guess.
package guess
