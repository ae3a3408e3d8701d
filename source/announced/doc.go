// Package announced reads the quota state that upstreams report in response headers and bodies:
// remaining calls, limits, resets, costs and retry delays. Its functions are pure and accept
// any input. Rules read configured places; Detect finds the limits of headers without a rule.
//
// # Formats
//
//	format                | example                                      | setting of Rule
//	separate headers      | X-RateLimit-Remaining: 42                    | Limit, Remaining, Used, Reset
//	pair                  | X-Shopify-Shop-Api-Call-Limit: 32/40         | Usage
//	structured field      | RateLimit: "daily";r=50;t=30                 | Field, PolicyField, Item
//	list by window        | X-App-Rate-Limit: 20:1,100:120               | List, Counts, Window
//	member of a JSON body | {"usage": {"total_tokens": 120}}             | body:usage.total_tokens
//
// A reset may be a number of seconds, an epoch in seconds or milliseconds, a duration such as
// 6m0s, or a date. Times are relative to the Date header of the response, because the clock of
// the upstream may differ from ours.
//
// # Example
//
// At 12:00:00.400 by our clock a response arrives with
//
//	Date: Mon, 02 Mar 2026 12:00:05 GMT
//	X-RateLimit-Remaining: 42
//	X-RateLimit-Reset: 1772452865
//
// The epoch is 12:01:05, which is 60 s after Date. Both times are truncated to seconds. The
// Notice therefore has Remaining 42, Reset 60 s and Slack 2 s: the window ends by our clock
// between 12:01:00.4 and 12:01:02.4. That the clock of the upstream is 5 s ahead has no effect.
package announced
