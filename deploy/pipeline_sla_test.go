package deploy

// This file contains further rows of the pipeline dashboard, such as the row "Processing SLA".

var sla = row{"Processing SLA", []panel{
	latencyPanel("HIGH: processing time", "update_process_duration_seconds", "HIGH", 3,
		"From the dispatch of a record to its end, including the wait for a permit. Normal: p95 below 3 s, the line. Above: see whether the upstream, the database or the wait for a permit is slow."),
	latencyPanel("LOW: processing time", "update_process_duration_seconds", "LOW", 3,
		"From the dispatch of a record to its end, including the wait for a permit. Normal: below 3 s, the line, with a small backlog; longer with a large one because of the wait for a permit."),
	latencyPanel("HIGH: time from request to snapshot", "update_latency_seconds", "HIGH", 3,
		"From the update request to its stored snapshot: the time that a user waits. Normal: p95 below 3 s, the line. Above, with a low processing time on the left: records wait in Kafka. It compares the clocks of two machines."),
	latencyPanel("LOW: time from request to snapshot", "update_latency_seconds", "LOW", 1800,
		"From the update request to its stored snapshot. Normal: below 30 minutes, the line, also during a round of background work."),
	{
		title: "Errors by reason", unit: perMin, width: 6, stacked: true, lines: []line{warn(10)},
		description: "Failed attempts by class, and dead letters by reason (in capitals). Normal: below 10 a minute, the line. auth: the credential is refused. quota: the upstream requests a backoff. transient for all entities: the upstream is unhealthy. bad-content: its responses changed.",
		queries:     oneQuery(perMinute("reason", `update_process_error_total{`+ofSource+`}`), "{{reason}}"),
	},
	{
		title: "Failure ratio", unit: share, width: 6, share: true,
		description: "Ratio of requests that ended as a retry or a dead letter. Normal: below 1 %. More: see the reasons on the left. During an outage of the upstream it stays low, because requests wait and do not fail.",
		queries: oneQuery(ratioOrZero(rate("priority", `settled_total{end=~"retrying|dead_letter", `+ofSource+`}`),
			rate("priority", `settled_total{`+ofSource+`}`)), "{{priority}}"),
	},
	{
		title: "Requests by end", unit: perSec, width: 6, stacked: true,
		description: "Normal: touched (unchanged) and changed in the proportion of the data; skipped if much is requested twice. Many rewritten: the extraction changed. None: no worker processes requests.",
		queries:     oneQuery(rate("end", `settled_total{`+ofSource+`}`), "{{end}}"),
	},
	{
		title: "Skipped requests", unit: perSec, width: 6,
		description: "SATISFIED: a fetch after the request has satisfied it. SUPERSEDED: a HIGH request replaced it. FAILED: a later failure holds the entity. Normal: few; many after a rebalance, when records are read again.",
		queries:     oneQuery(rate("verdict", `obsolete_event_skipped_total{`+ofSource+`}`), "{{verdict}}"),
	},
	{
		title: "Upstream: response time, p95", unit: seconds, width: 6,
		description: "Time from a call to the end of its response, by class. Normal: the value that the upstream documents. Slower for all classes: the upstream or the network. Fast failures beside slow responses: the upstream sheds load.",
		queries:     quantiles(`upstream_duration_seconds{`+ofSource+`}`, "{{class}}", "class", 95),
	},
	{
		title: "Upstream: responses by class", unit: perSec, width: 6, stacked: true,
		description: "Normal: ok and not-modified, a few not-found. quota: the upstream limits calls. auth: the credential. transient or permanent for most: after 20 such calls the circuit breaker of the source opens.",
		queries:     oneQuery(rate("class", `upstream_duration_seconds_count{`+ofSource+`}`), "{{class}}"),
	},
	{
		title: "Batch size of writes", unit: number, width: 6,
		description: "Mean number of results in one write. Normal: near 1 with little work, larger with more. Large and slow (see the p95 of the database below): the database limits the rate.",
		queries:     oneQuery(mean("priority", `db_batch_size{`+ofSource+`}`), "{{priority}}"),
	},
	{
		title: "Records in flight", unit: number, width: 6,
		description: "Records between dispatch and end. Normal: it varies. Constant at its maximum: all slots are used, by waits for permits or by a hanging component. 0 with a lag: no partitions are assigned, or a circuit breaker pauses the workers.",
		queries:     oneQuery(sumBy("priority", `records_in_flight{`+ofSource+`}`), "{{priority}}"),
	},
}}

// latencyPanel returns a panel with the latency of one lane as p50, p95 and p99. The panel draws a
// warning line at the latency `bound`, in seconds.
func latencyPanel(title, histogram, lane string, bound float64, about string) panel {
	return panel{
		title: title, description: about, unit: seconds, width: 6, lines: []line{warn(bound)},
		queries: quantiles(histogram+`{priority="`+lane+`", `+ofSource+`}`, "{{priority}}", "priority", 50, 95, 99),
	}
}

var circuits = row{"Circuit breaker status", []panel{
	{
		title: "Circuit breakers now", unit: number, width: 6, kind: stat, states: breaker,
		description: "The worst state of all processes. Normal: closed. Database open: nothing is fetched, because nothing can be written. Redis open: no refresh is enqueued. Reads open: only cached snapshots are served. Half-open: single probes.",
		queries:     breakers,
	},
	{
		title: "Circuit breakers", unit: number, width: 10, kind: timeline, states: breaker,
		description: "The states over time. Normal: closed. Half-open for a short time after open: the dependency recovers. Open and half-open in turn: only some calls succeed. Nothing is lost, and no action is needed once the breaker is closed.",
		queries:     breakers,
	},
	{
		title: "Limiter", unit: number, width: 8, kind: timeline, states: []status{{1, "yes", ""}}, colours: limiterStates,
		description: "The states of the limiter over time. Normal: flowing or unused. Another state for minutes: the panel Limiter state explains it.",
		queries:     oneQuery(maxBy("source, state", `rate_limiter_state{`+ofSource+`}`)+" == 1", "{{source}} {{state}}"),
	},
	{
		title: "Redis: commands, p95", unit: seconds, width: 8, lines: []line{warn(.05)},
		description: "Round trips by script or command. Normal: some milliseconds, and below 50 ms, the line. One above the others: that script, or a slow shard. All: Redis, its disk, or the network.",
		queries:     quantiles(`redis_command_duration_seconds`, "{{command}}", "command", 95),
	},
	{
		title: "Database: write of a batch, p95", unit: seconds, width: 8, lines: []line{warn(1)},
		description: "One batch including its retries. Normal: below 0.1 s; 1 s, the line, is too long. Writes above 2 s count as failures, and the circuit breaker opens. Check locks, disk and connections of the database.",
		queries:     quantiles(`db_upsert_duration_seconds{`+ofSource+`}`, "{{priority}}", "priority", 95),
	},
	{
		title: "Failed operations with retries", unit: perMin, width: 8,
		description: "Failed operations on the database, Redis or Kafka. Normal: 0. Otherwise their records are retried, nothing is lost, and the lag grows until the operation succeeds.",
		queries:     oneQuery(perMinute("operation", `dependency_failures_total{`+ofSource+`}`), "{{operation}}"),
	},
	{
		title: "Failure ratio of Redis calls for permits", unit: share, width: 12, share: true,
		description: "Normal: 0. Without a response there is no permit, and without a permit no call to the upstream. Permits are granted again within two seconds after Redis has recovered.",
		queries: oneQuery(ratioOrZero(rate("source", `rate_limiter_redis_failures_total{`+ofSource+`}`),
			rate("source", `rate_limiter_redis_calls_total{`+ofSource+`}`)), "{{source}}"),
	},
	{
		title: "Processes by version", unit: number, width: 12,
		description: "Processes that Prometheus scrapes. Normal: all started processes, of one version. Two versions: an upgrade is in progress, or stopped half-way. Fewer: an instance is missing.",
		queries:     oneQuery(aggregate("count", "version", `build_info`), "{{version}}"),
	},
}}

var breakers = joinQueries(
	oneQuery(maxBy("", `db_circuit_breaker_state{`+ofSource+`}`), "Database"),
	oneQuery(maxBy("", `redis_circuit_breaker_state`), "Redis"),
	oneQuery(maxBy("", `reads_circuit_breaker_state`), "Reads"),
)
