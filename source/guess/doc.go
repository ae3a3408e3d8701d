// Package guess writes a first configuration for an API from example URLs and the responses to them.
// `freshet init` prints it.
//
// Run makes at most MaxCalls calls: one for each URL, and then a second call of each URL until MaxCalls
// is reached. Each call follows at most one redirect within its host. Calls use package source, like
// the calls of a worker. A URL is not called again if its first response has no content. No secret of a
// URL or of an option is written into the configuration or a note.
//
//	input                          | setting
//	scheme and host                | baseURL; each host is one source
//	an id in the path or the query | {key} in the document's path, and keyPattern
//	several ids                    | a named group of keyPattern for each, as in OWNER/REPO
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
// auth: {query: api_key, secretEnv: SHOP_KEY}. If the response has the headers X-RateLimit-Limit: 600
// and X-RateLimit-Reset: 43, the reset is less than a minute away, so the written window is 1m. A note
// says that the window is a guess.
package guess
