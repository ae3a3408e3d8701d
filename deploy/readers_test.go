package deploy

var readers = board{
	uid: "freshet-readers", title: "freshet: what readers see",
	about:     "What the query service answers, how fresh it is, how fast, and who was refused.",
	variables: []string{"label_values(freshet_rate_limiter_limit, source)"},
	rows: []row{
		{"Freshness", []panel{
			{
				title: "Reads by what the reader was told", unit: perSec, wide: 12, stacked: true,
				about: "FRESH: checked within the facet's freshFor. STALE: older, and a refresh is asked for. UPDATING: nothing is stored yet. NOT_FOUND: the upstream has none. Normal: mostly FRESH. STALE that grows: refreshes don't keep up; see the pipeline's lag and limiter.",
				asks:  one(rate("freshness", `reads_total{`+ofSource+`}`), "{{freshness}}"),
			},
			{
				title: "Part of reads that were fresh", unit: share, wide: 12, share: true,
				about: "By facet. Normal: steady, and as high as the facet's freshFor and its readers allow. A fall in all facets of a source: its refreshes wait. In one facet: its endpoint fails. No line: nobody reads it.",
				asks: one(partOf(rate("source, facet", `reads_total{freshness="FRESH", `+ofSource+`}`), rate("source, facet", `reads_total{`+ofSource+`}`)),
					"{{source}} {{facet}}"),
			},
			{
				title: "Age of snapshots at read", unit: seconds, wide: 12,
				about: "How long ago what the reader got was checked. Normal: p50 within the facet's freshFor; p95 of those that are seldom read may be much older. A p50 that rises with the clock: nothing is refreshed any more.",
				asks:  quantiles(`snapshot_age_at_read_seconds{`+ofSource+`}`, "{{source}} {{facet}}", "source, facet", 50, 95),
			},
			{
				title: "Where answers came from", unit: perSec, wide: 12, stacked: true,
				about: "Normal: memory for what is read often, store for the rest. older: the database did not answer, and what is remembered was served with its age. All from store: settles are not heard, or memory is too small for what is read.",
				asks:  one(rate("from", `snapshots_read_total`), "{{from}}"),
			},
		}},
		{"Answers", []panel{
			{
				title: "Time to answer", unit: seconds, wide: 8, lines: []line{warn(.1)},
				about: "All routes. Normal: p95 below 100 ms, the line, whatever the upstream does. Above: the database is slow, or the process is short of CPU. Who asks to wait for a refresh is counted with the wait, so p99 may be that.",
				asks:  quantiles(`http_request_duration_seconds`, "", "", 50, 95, 99),
			},
			{
				title: "Time to answer by route, p95", unit: seconds, wide: 8, lines: []line{warn(.1)},
				about: "Normal: reads below 100 ms, the line; routes that wait or stream are as long as their clients let them. One read above the others: many entities at once, or large ones.",
				asks:  quantiles(`http_request_duration_seconds`, "{{method}} {{route}}", "method, route", 95),
			},
			{
				title: "Answers by class of status", unit: perSec, wide: 8, stacked: true,
				about: "Normal: 2xx and 3xx. 4xx: unknown entities or clients without access; see below. 5xx: the database is away and memory has nothing, or a fault of ours; the log has each.",
				asks:  answers(),
			},
			{
				title: "Part of answers that are errors", unit: share, wide: 12, share: true,
				about: "5xx of all answers. Normal: 0. More: 503 with the reads' breaker open is the database; anything else is to be found in the log by its status.",
				asks: one(part("("+rate("", `http_request_duration_seconds_count{status=~"5.."}`)+" or vector(0))",
					rate("", `http_request_duration_seconds_count`)), "5xx"),
			},
			{
				title: "Refreshes that readers asked for", unit: perSec, wide: 12, stacked: true,
				about: "Wishes of HIGH by what coalescing decided. Normal: most are covered by one under way. ERROR: readers get old snapshots and nothing is refreshed, since Redis or Kafka refuses. HELD: they look at entities that failed.",
				asks:  one(rate("outcome", `coalesced_total{priority="HIGH", `+ofSource+`}`), "{{outcome}}"),
			},
		}},
		{"Waiting and following", []panel{
			{
				title: "Clients that wait", unit: number, wide: 8,
				about: "Clients that wait for a refresh or follow an entity. Normal: goes with the number of visitors. A sudden rise: refreshes take longer. A sudden fall: settles are not heard, or a process was restarted.",
				asks:  one(total("", `waiting_clients`), "waiting"),
			},
			{
				title: "Settles heard", unit: number, wide: 8, kind: timeline, states: []status{{0, "no", "red"}, {1, "yes", "green"}},
				about: "By process. Normal: yes. No: the line to Redis is lost; what is remembered is believed for a second only, so the database has more to do, and who waits may wait in vain.",
				asks:  one(lowest("instance", `settle_subscription_connected`), "{{instance}}"),
			},
			{
				title: "Breaker of reads", unit: number, wide: 8, kind: timeline, states: breaker,
				about: "By process. Normal: closed. Open: nobody waits for the database; what is remembered is served with its age, all else is answered 503. It is tried every other second.",
				asks:  one(highest("instance", `reads_circuit_breaker_state`), "{{instance}}"),
			},
		}},
		{"Access", []panel{
			{
				title: "Refused for who asks", unit: perMin, wide: 8, stacked: true,
				about: "By code. Normal: a few expired tokens. Many INVALID_TOKEN: a client with a wrong or revoked key, or somebody tries keys.",
				asks:  one(minutely("code", `access_refused_total`), "{{code}}"),
			},
			{
				title: "Refused for how much", unit: perMin, wide: 8, stacked: true,
				about: "By the limit that was met. Normal: 0 to a few. Many: one client asks for more than it may; the log says which.",
				asks:  one(minutely("limit", `access_limited_total`), "{{limit}}"),
			},
			{
				title: "API keys: time since they were read", unit: seconds, wide: 8, lines: []line{warn(60)},
				about: "The process that has waited longest. Normal: some seconds. Above a minute, the line: the database can't be read for keys; those known stay in force, and a revocation is not known yet.",
				asks:  one("time() - "+lowest("", `access_api_keys_read_timestamp_seconds`), "longest"),
			},
		}},
	},
}

func answers() []ask {
	var asks []ask
	for _, class := range []string{"2", "3", "4", "5"} {
		asks = append(asks, ask{expr: rate("", `http_request_duration_seconds_count{status=~"`+class+`.."}`), legend: class + "xx"})
	}
	return asks
}
