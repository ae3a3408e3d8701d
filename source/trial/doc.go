// Package trial makes one real call of a configured source and reports how freshet reads the
// response: its class and the setting that decided it, the limits in its headers, the stored
// content, the hash, and the settings to change.
//
// A trial uses the same planning, fetching, classifying and extracting as a worker (package source).
// It stores nothing and does not pass the limiter, so it needs no Redis, Kafka or database. It fetches
// only the first page of a paged document. A budget of permits bounds its calls:
//
//	Call   one call for each document, and one more for each redirect that it follows
//	Run    Call once, or twice to find members that change without a change of the entity
//
// # Example
//
// The facet "product" has one document and ignore: [product.requestId]. Two calls return
//
//	{"id": 42, "requestId": "a1", "now": 100}
//	{"id": 42, "requestId": "b2", "now": 101}
//
// Run reports that product.requestId and product.now differ, and that product.now changes the hash
// although the product is the same. It suggests the setting `ignore`: [product.requestId,
// product.now].
package trial
