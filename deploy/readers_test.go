package deploy

var readers = board{
	uid: "freshet-readers", title: "freshet: readers",
	description: "Responses of the query services: freshness, latency, waiting clients and rejected requests.",
	variables:   []string{"label_values(freshet_rate_limiter_limit, source)"},
	rows: []row{
		{"Freshness", []panel{
			{
				title: "Reads by freshness", unit: perSec, width: 12, stacked: true,
				description: "FRESH: checked within the freshFor of its facet. STALE: older, and a refresh is enqueued. UPDATING: nothing is stored yet. NOT_FOUND: the upstream has no such entity. Normal: mostly FRESH. Growing STALE: refreshes are too slow; see lag and limiter of the pipeline.",
				queries:     oneQuery(rate("freshness", `reads_total{`+ofSource+`}`), "{{freshness}}"),
			},
			{
				title: "Ratio of fresh reads", unit: share, width: 12, share: true,
				description: "By facet. Normal: constant, at the value that freshFor and the readers allow. A fall in all facets of a source: its refreshes wait. In one facet: its endpoint fails. No line: no reads.",
				queries: oneQuery(ratioOrZero(rate("source, facet", `reads_total{freshness="FRESH", `+ofSource+`}`), rate("source, facet", `reads_total{`+ofSource+`}`)),
					"{{source}} {{facet}}"),
			},
			{
				title: "Age of snapshots at read", unit: seconds, width: 12,
				description: "Time since the last check of the returned snapshot. Normal: p50 within the freshFor of the facet; p95 of rarely read entities may be much larger. A p50 that rises with the clock: nothing is refreshed.",
				queries:     quantiles(`snapshot_age_at_read_seconds{`+ofSource+`}`, "{{source}} {{facet}}", "source, facet", 50, 95),
			},
			{
				title: "Reads by origin", unit: perSec, width: 12, stacked: true,
				description: "Normal: memory for entities that are read often, store for the rest. fallback: the database did not respond, and an expired cache entry was served with its age. Only store: the subscription for messages about ended requests is lost, or the cache is too small.",
				queries:     oneQuery(rate("from", `snapshots_read_total`), "{{from}}"),
			},
		}},
		{"Responses", []panel{
			{
				title: "Response time", unit: seconds, width: 8, lines: []line{warn(.1)},
				description: "All routes. Normal: p95 below 100 ms, the line, independent of the upstream. Above: the database is slow, or the process lacks CPU. Requests with ?wait include the wait, which may explain p99.",
				queries:     quantiles(`http_request_duration_seconds`, "", "", 50, 95, 99),
			},
			{
				title: "Response time by route, p95", unit: seconds, width: 8, lines: []line{warn(.1)},
				description: "Normal: reads below 100 ms, the line; routes that wait or stream take as long as their clients allow. One read above the others: many entities at once, or large ones.",
				queries:     quantiles(`http_request_duration_seconds`, "{{method}} {{route}}", "method, route", 95),
			},
			{
				title: "Responses by status class", unit: perSec, width: 8, stacked: true,
				description: "Normal: 2xx and 3xx. 4xx: unknown entities or clients without access; see below. 5xx: the database is unavailable and the cache has no entry, or a bug; the log has each.",
				queries:     answers(),
			},
			{
				title: "Ratio of errors", unit: share, width: 12, share: true,
				description: "Ratio of 5xx responses. Normal: 0. More: 503 with an open circuit breaker of reads is the database; search other statuses in the log.",
				queries: oneQuery(ratio("("+rate("", `http_request_duration_seconds_count{status=~"5.."}`)+" or vector(0))",
					rate("", `http_request_duration_seconds_count`)), "5xx"),
			},
			{
				title: "Refreshes requested by readers", unit: perSec, width: 12, stacked: true,
				description: "HIGH update requests by outcome. Normal: most are covered by one in flight. ERROR: readers get old snapshots and nothing is refreshed, because Redis or Kafka fails. HELD: clients read entities that failed.",
				queries:     oneQuery(rate("outcome", `coalesced_total{priority="HIGH", `+ofSource+`}`), "{{outcome}}"),
			},
		}},
		{"Waiting clients", []panel{
			{
				title: "Waiting clients", unit: number, width: 8,
				description: "Clients that wait for a refresh or stream events. Normal: follows the number of visitors. A sudden rise: refreshes take longer. A sudden fall: the subscription for messages about ended requests is lost, or a process was restarted.",
				queries:     oneQuery(sumBy("", `waiting_clients`), "waiting"),
			},
			{
				title: "Settle subscription", unit: number, width: 8, kind: timeline, states: []status{{0, "lost", "red"}, {1, "connected", "green"}},
				description: "By process. Normal: connected. lost: the Redis subscription is lost; the cache TTL is one second, so the database has more reads, and waiting clients may time out.",
				queries:     oneQuery(minBy("instance", `settle_subscription_connected`), "{{instance}}"),
			},
			{
				title: "Circuit breaker of reads", unit: number, width: 8, kind: timeline, states: breaker,
				description: "By process. Normal: closed. Open: reads do not wait for the database; cached snapshots are served with their age, other reads get 503. A probe is sent every two seconds.",
				queries:     oneQuery(maxBy("instance", `reads_circuit_breaker_state`), "{{instance}}"),
			},
		}},
		{"Access", []panel{
			{
				title: "Rejected by authentication", unit: perMin, width: 8, stacked: true,
				description: "By code. Normal: a few expired tokens. Many token-invalid: a client with a wrong or revoked key, or somebody guesses keys.",
				queries:     oneQuery(perMinute("code", `access_refused_total`), "{{code}}"),
			},
			{
				title: "Rejected by limits", unit: perMin, width: 8, stacked: true,
				description: "By limit. Normal: 0 to a few. Many: one client exceeds its limit; the log names it.",
				queries:     oneQuery(perMinute("limit", `access_limited_total`), "{{limit}}"),
			},
			{
				title: "API keys: time since the last read", unit: seconds, width: 8, lines: []line{warn(60)},
				description: "The process with the oldest read. Normal: some seconds. Above a minute, the line: the keys cannot be read from the database; known keys stay valid, and revocations are not known yet.",
				queries:     oneQuery("time() - "+minBy("", `access_api_keys_read_timestamp_seconds`), "longest"),
			},
		}},
		{"Webhooks", []panel{
			{
				title: "Deliveries of webhooks", unit: perMin, width: 12, stacked: true,
				description: "By webhook and result. Normal: accepted, and some unknown-event or unknown-key. bad-signature: a wrong secret or forged deliveries. unavailable: Redis, Kafka or the database did not accept them, and the upstream has to repeat them.",
				queries:     oneQuery(perMinute("source, name, result", `hooks_total{`+ofSource+`}`), "{{source}} {{name}} {{result}}"),
			},
			{
				title: "Time from a delivery to the snapshot", unit: seconds, width: 6,
				description: "With the delay of the rule. Normal: the delay and some seconds. More: the LOW lane has a backlog, or the upstream is slow; see lag and limiter of the pipeline.",
				queries:     quantiles(`hook_to_stored_seconds{`+ofSource+`}`, "{{source}} {{name}}", "source, name", 50, 95),
			},
			{
				title: "Time since the last delivery", unit: seconds, width: 6,
				description: "With a valid signature. Normal: depends on the upstream. No line: none since the start of the processes. A rise to hours: the upstream has disabled the webhook; see its list of deliveries.",
				queries:     oneQuery("time() - ("+maxBy("source, name", `hook_last_timestamp_seconds{`+ofSource+`}`)+" > 0)", "{{source}} {{name}}"),
			},
		}},
	},
}

// answers returns queries for the rate of HTTP responses: one query for each class of status codes,
// such as 2xx.
func answers() []query {
	var all []query
	for _, class := range []string{"2", "3", "4", "5"} {
		all = append(all, query{expr: rate("", `http_request_duration_seconds_count{status=~"`+class+`.."}`), legend: class + "xx"})
	}
	return all
}
