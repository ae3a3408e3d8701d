package deploy

// These rows of the pipeline are in a file of their own for its length.

var sla = row{"Processing SLA", []panel{
	spent("HIGH: from dispatch to end", "update_process_duration_seconds", "HIGH", 3,
		"From a record's dispatch to its end, with its wait for a permit. Normal: p95 below 3 s, the line. Above: see whether the upstream, the database or the wait for a permit is slow."),
	spent("LOW: from dispatch to end", "update_process_duration_seconds", "LOW", 3,
		"From a record's dispatch to its end, with its wait for a permit. Normal: below 3 s, the line, with a small backlog; the wait for a permit makes it longer with a large one."),
	spent("HIGH: from wish to snapshot", "update_latency_seconds", "HIGH", 3,
		"From when a refresh was asked for to its snapshot: what a user waits for. Normal: p95 below 3 s, the line. Above, with the panel on the left still low: records wait in Kafka. It compares the clocks of two machines."),
	spent("LOW: from wish to snapshot", "update_latency_seconds", "LOW", 1800,
		"From when a refresh was asked for to its snapshot. Normal: below 30 minutes, the line, also in the midst of a round of background work."),
	{
		title: "Errors by reason", unit: perMin, wide: 6, stacked: true, lines: []line{warn(10)},
		about: "Failed attempts by class, and dead letters by reason in capitals. Normal: below 10 a minute, the line. auth: the credential is refused. quota: the upstream brakes. transient of everything: it is sick; bad-content: its answers have changed.",
		asks:  one(minutely("reason", `update_process_error_total{`+ofSource+`}`), "{{reason}}"),
	},
	{
		title: "Part of requests that fail", unit: share, wide: 6, share: true,
		about: "Requests that ended as a retry or a dead letter. Normal: below 1 %. More: see the reasons on the left. In an outage of the upstream it stays low, since requests then wait and do not fail.",
		asks: one(partOf(rate("priority", `settled_total{end=~"retrying|dead_letter", `+ofSource+`}`),
			rate("priority", `settled_total{`+ofSource+`}`)), "{{priority}}"),
	},
	{
		title: "Requests by how they ended", unit: perSec, wide: 6, stacked: true,
		about: "Normal: touched (unchanged) and changed in the proportion of the data; skipped when much is asked for twice. Much rewritten: the way in which content is read has changed. Nothing: no worker works.",
		asks:  one(rate("end", `settled_total{`+ofSource+`}`), "{{end}}"),
	},
	{
		title: "Requests that needed no fetch", unit: perSec, wide: 6,
		about: "SATISFIED: a fetch of after the request has answered it. SUPERSEDED: a HIGH one does its work. FAILED: a failure of after it stands. Normal: few; many after a rebalance, when records are read again.",
		asks:  one(rate("verdict", `obsolete_event_skipped_total{`+ofSource+`}`), "{{verdict}}"),
	},
	{
		title: "Upstream: answers, p95", unit: seconds, wide: 6,
		about: "From when a call was sent to the whole of its answer, by what it meant. Normal: what the upstream's own page says. Slower for all classes: the upstream or the way to it. Fast failures beside slow answers: it sheds load.",
		asks:  quantiles(`upstream_duration_seconds{`+ofSource+`}`, "{{class}}", "class", 95),
	},
	{
		title: "Upstream: answers by what they meant", unit: perSec, wide: 6, stacked: true,
		about: "Normal: ok and not-modified, a few not-found. quota: the upstream limits us. auth: the credential. transient or permanent for most: after 20 such calls the source is stopped and probed.",
		asks:  one(rate("class", `upstream_duration_seconds_count{`+ofSource+`}`), "{{class}}"),
	},
	{
		title: "Results written together", unit: number, wide: 6,
		about: "The mean size of a batch. Normal: near 1 with little to do and larger with more. Large and slow (see the database's p95 below): the database limits the rate.",
		asks:  one(mean("priority", `db_batch_size{`+ofSource+`}`), "{{priority}}"),
	},
	{
		title: "Records in flight", unit: number, wide: 6,
		about: "Records between dispatch and end. Normal: goes up and down. Flat at its top: all places are taken, by a wait for permits or by something that hangs. 0 with a lag: workers are not assigned, or held by a breaker.",
		asks:  one(total("priority", `records_in_flight{`+ofSource+`}`), "{{priority}}"),
	},
}}

// spent is p50, p95 and p99 of a lane.
func spent(title, histogram, lane string, bound float64, about string) panel {
	return panel{
		title: title, about: about, unit: seconds, wide: 6, lines: []line{warn(bound)},
		asks: quantiles(histogram+`{priority="`+lane+`", `+ofSource+`}`, "{{priority}}", "priority", 50, 95, 99),
	}
}

var circuits = row{"Circuit breaker status", []panel{
	{
		title: "Breakers now", unit: number, wide: 6, kind: stat, states: breaker,
		about: "The worst that any process tells. Normal: closed. Database open: nothing is fetched, since nothing could be written. Redis open: no refresh is asked for. Reads open: what is in memory is served. Half open: it is being tried.",
		asks:  breakers,
	},
	{
		title: "Breakers", unit: number, wide: 10, kind: timeline, states: breaker,
		about: "The same over time. Normal: green. Short yellow after red is a dependency that comes back; red and yellow in turns is one that answers some calls only. Nothing is lost and nothing has to be done when it is green again.",
		asks:  breakers,
	},
	{
		title: "Limiter", unit: number, wide: 8, kind: timeline, states: []status{{1, "yes", ""}}, colours: limiterStates,
		about: "The states that the limiter was in. Normal: flowing or unused. Anything else for minutes: see the panel Limiter now for what it means.",
		asks:  one(highest("source, state", `rate_limiter_state{`+ofSource+`}`)+" == 1", "{{source}} {{state}}"),
	},
	{
		title: "Redis: commands, p95", unit: seconds, wide: 8, lines: []line{warn(.05)},
		about: "Round trips by script or command. Normal: some milliseconds, and below 50 ms, the line. One above the others: that script, or a slow shard. All: Redis, its disk, or the network.",
		asks:  quantiles(`redis_command_duration_seconds`, "{{command}}", "command", 95),
	},
	{
		title: "Database: a batch of results, p95", unit: seconds, wide: 8, lines: []line{warn(1)},
		about: "One batch with its retries. Normal: below 0.1 s; 1 s, the line, is too long. Above 2 s calls count as failures and the breaker opens. Look at the database's locks, disk and connections.",
		asks:  quantiles(`db_upsert_duration_seconds{`+ofSource+`}`, "{{priority}}", "priority", 95),
	},
	{
		title: "Attempts that hold their records", unit: perMin, wide: 8,
		about: "Failed attempts at the database, Redis or Kafka, by what was tried. Normal: 0. Anything: those records wait and are tried again, nothing is lost, and the lag grows until it ends.",
		asks:  one(minutely("operation", `dependency_failures_total{`+ofSource+`}`), "{{operation}}"),
	},
	{
		title: "Calls to Redis for permits that fail", unit: share, wide: 12, share: true,
		about: "Normal: 0. Without an answer there is no permit, so there is no call to the upstream. Once Redis answers again permits flow within two seconds.",
		asks: one(partOf(rate("source", `rate_limiter_redis_failures_total{`+ofSource+`}`),
			rate("source", `rate_limiter_redis_calls_total{`+ofSource+`}`)), "{{source}}"),
	},
	{
		title: "Processes by version", unit: number, wide: 12,
		about: "Processes of freshet that Prometheus reaches. Normal: as many as were started, of one version. Two versions: an upgrade is under way, or stopped half-way. Fewer: see which instance is gone.",
		asks:  one(aggregate("count", "version", `build_info`), "{{version}}"),
	},
}}

var breakers = all(
	one(highest("", `db_circuit_breaker_state{`+ofSource+`}`), "Database"),
	one(highest("", `redis_circuit_breaker_state`), "Redis"),
	one(highest("", `reads_circuit_breaker_state`), "Reads"),
)
