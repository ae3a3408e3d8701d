// Package console serves the pages on which operators observe and control freshet: budgets,
// backlogs, prefetching, dead letters, settings and the audit.
//
// A sampler reads the state of all sources once a second while pages with live content are open. A
// page is first rendered as HTML with the latest sample. Then the browser receives the same texts
// as server-sent events, and updates the page:
//
//	services ──read──▶ sampler ──sample──▶ statusOf ──▶ page (HTML, at load)
//	                   (1 a second)           └───────▶ /console/live (JSON, each second)
//
// Each request passes these steps:
//
//	step          failure
//	cross-site    403: another site's page sent the form
//	identify      303 to the login page, or 401: no valid token or cookie
//	permission    403: view needs the scope inspect, changes need admin
//	rate limit    429: too many requests; administrators have no limit
//	parse form    400, 413 or 415
//	handler       303 to a page with a notice, or the page itself
//
// A replay or purge of dead letters has two steps. The dry run (GET /console/dlq/plan) counts the
// dead letters that match the filter and were written before now. The form that starts the job
// (POST /console/dlq/start) contains that count. Example: the dry run counts 12,254. If 12,300
// match at the start, the response is 409 and nothing is replayed.
package console
