package deploy

const ofSource = `source=~"$source"`

var pipeline = board{
	uid: "freshet-pipeline", title: "freshet: the pipeline",
	description: "From an update request to its stored snapshot: quota, Kafka lag, processing, circuit breakers, dead letters, prefetch and collections. Read it from the top.",
	variables:   []string{"label_values(freshet_rate_limiter_limit, source)"},
	rows:        []row{rateLimit, lag, sla, circuits, deadLetters, prefetch, collections},
}

var rateLimit = row{"Rate limit overview", []panel{
	{
		title: "Limiter state", unit: number, width: 4, kind: stat,
		description: "Normal: flowing, or unused on a quiet day. ramping: calls increase after a backoff. backing-off: the upstream requested a pause. breaker-open: the upstream fails and only probes are sent. stopped: an operator stopped the source; freshet settings audit shows who. quiet-period: Redis lost the state of the limiter, for a second or two. restoring-count: the count of the day is read from the database.",
		states:      []status{{1, "now", ""}}, colours: limiterStates,
		queries: oneQuery(maxBy("source, state", `rate_limiter_state{`+ofSource+`}`)+" == 1", "{{source}}: {{state}}"),
	},
	{
		title: "Open and exhausted scopes", unit: number, width: 4, kind: stat,
		description: "Credentials, endpoints and budgets with an open circuit breaker, and scopes without remaining quota. Normal: no open breaker; exhausted at the end of a window, or always while the whole rate is used. Open: the upstream refuses this scope and its calls wait; freshet limiter lists it. If all are open, nothing is fetched although the limiter is flowing.",
		queries: joinQueries(oneQuery(maxBy("source", `rate_limiter_scope_breakers_open{`+ofSource+`}`), "{{source}} open"),
			oneQuery(maxBy("source", `rate_limiter_scopes_exhausted{`+ofSource+`}`), "{{source}} exhausted")),
	},
	{
		title: "Remaining calls", unit: number, width: 4, kind: stat,
		description: "The calls that each policy allows now, for HIGH (the global budget) and for LOW. Normal: a few for a GCRA window such as second; 0 means that the whole rate is used. A daily policy at 0 for LOW has only the reserve of HIGH left; at 0 for HIGH no call is made until midnight in its time zone.",
		queries:     oneQuery(maxBy("policy, priority", `rate_limiter_remaining{`+ofSource+`}`), "{{policy}} {{priority}}"),
	},
	{
		title: "Calls a second, and the limits", unit: perSec, width: 12,
		description: "Calls of all processes in the last full second, and the limit of each policy divided by its window. The dashed lines are the target of adr-013, 450, and its limit, 500. Normal: below the target. Above the limit of a second: the quota is exceeded; stop the source and look for processes with another quota. At the target for long: more is requested than the quota allows.",
		lines:       []line{warn(450), critical(500)},
		queries: joinQueries(
			oneQuery(sumBy("source", `rate_limiter_rps{`+ofSource+`}`), "{{source}} sent"),
			oneQuery(ratio(maxBy("source, policy", `rate_limiter_limit{`+ofSource+`}`), maxBy("source, policy", `rate_limiter_window_seconds{`+ofSource+`}`)), "{{source}} limit of {{policy}}"),
		),
	},
	{
		title: "Remaining budget", unit: share, width: 8, share: true,
		description: "The remaining part of counted windows, such as a day, for HIGH and for LOW. Normal: it falls evenly and ends slightly above 0. LOW at 0 early: background work waits until the window ends. HIGH at 0: no refresh is made. GCRA windows have no line.",
		queries: oneQuery(maxBy("source, policy, priority", `rate_limiter_remaining{`+ofSource+`}`)+" / on (source, policy) group_left () ("+
			maxBy("source, policy", `rate_limiter_limit{`+ofSource+`}`)+" > 0) and on (source, policy) "+
			maxBy("source, policy", `rate_limiter_used{`+ofSource+`}`), "{{source}} {{policy}} {{priority}}"),
	},
	{
		title: "Used budget by policy", unit: share, width: 8, share: true, lines: []line{warn(.9)},
		description: "The used part of each counted window. Normal: a day rises evenly and ends below 90 %. Steeper than on other days: the panel Permits by lane shows which lane uses it.",
		queries: oneQuery(ratio(maxBy("source, policy", `rate_limiter_used{`+ofSource+`}`), maxBy("source, policy", `rate_limiter_limit{`+ofSource+`}`)),
			"{{source}} {{policy}}"),
	},
	{
		title: "Permits by lane", unit: perSec, width: 8, stacked: true,
		description: "Permits used; each allows one call. Normal: LOW uses the rest of HIGH. Only HIGH for long: users request more than the rest allows. None while calls wait: a backoff, a stop, an open circuit breaker, or no Redis.",
		queries:     oneQuery(rate("priority", `rate_limiter_acquired_total{`+ofSource+`}`), "{{priority}}"),
	},
	{
		title: "Wait for a permit, p95", unit: seconds, width: 8,
		description: "Normal: some milliseconds for HIGH; seconds to minutes for LOW while it has a backlog. HIGH above a second: its share is used, or a backoff delays it.",
		queries:     quantiles(`rate_limiter_wait_seconds{`+ofSource+`}`, "{{priority}}", "priority", 95),
	},
	{
		title: "Waiting calls", unit: number, width: 8,
		description: "Calls that wait for a permit. Normal: near 0 for HIGH; for LOW up to the maximum in flight of its workers. HIGH stays high: see the limiter state.",
		queries:     oneQuery(sumBy("priority", `rate_limiter_waiting{`+ofSource+`}`), "{{priority}}"),
	},
	{
		title: "Rejected permits", unit: perMin, width: 8, lines: []line{warn(10)},
		description: "Permits that were rejected because their time was too far in the future. Nothing is lost; the caller retries. Normal: 0 for HIGH, any number for LOW with a backlog. HIGH above 10 a minute, the line: users request more refreshes than the quota allows.",
		queries:     oneQuery(perMinute("priority", `rate_limiter_rejected_total{`+ofSource+`}`), "{{priority}}"),
	},
	{
		title: "Backoffs and expired permits", unit: perMin, width: 8,
		description: "Normal: no backoffs. Repeated backoffs: another client uses the same quota, or the configured quota is too high; lower it. Expired permits: a few during a stop; many mean that processes lack CPU.",
		queries: joinQueries(oneQuery(perMinute("source", `rate_limiter_backoffs_total{`+ofSource+`}`), "{{source}} backoffs"),
			oneQuery(perMinute("source", `rate_limiter_lapsed_total{`+ofSource+`}`), "{{source}} expired")),
	},
	{
		title: "Ramp after a backoff", unit: share, width: 8, share: true,
		description: "The part of the rate that is used. Normal: 100 %. Less: calls increase after a backoff, from half the rate to the whole within 10 seconds. Less for long: backoffs repeat.",
		queries:     oneQuery(maxBy("source", `rate_limiter_ramp_ratio{`+ofSource+`}`), "{{source}}"),
	},
	{
		title: "Jitter of calls", unit: seconds, width: 8,
		description: "The variation of the delay between a permit and its call. Normal: a few milliseconds. Above quota.jitter the upstream can receive more calls than its limit: look for a busy CPU or a slow network, or raise quota.jitter.",
		queries:     oneQuery(maxBy("source", `rate_limiter_jitter_seconds{`+ofSource+`}`), "{{source}}"),
	},
}}

var lag = row{"Kafka lag trend", []panel{
	{
		title: "HIGH: consumer lag", unit: number, width: 8, lines: []line{warn(1000), critical(5000)},
		description: "HIGH records that are not committed. Normal: near 0 and always below 1,000, the first line. Above: users wait. Above 5,000, the second line, FreshetHighLagCritical fires. No line: the lag could not be measured for 30 seconds.",
		queries:     oneQuery(maxBy("topic", `kafka_consumer_lag{topic=~"${source}[.]update-priority-high"}`), "{{topic}}"),
	},
	{
		title: "LOW: consumer lag", unit: number, width: 8,
		description: "LOW records that are not committed. Normal: it rises with each round of background work and falls again. A continuous rise: more is requested than the share of LOW allows.",
		queries:     oneQuery(maxBy("topic", `kafka_consumer_lag{topic=~"${source}[.]update-priority-low"}`), "{{topic}}"),
	},
	{
		title: "Age of the oldest record", unit: seconds, width: 8, lines: []line{warn(1800)},
		description: "Age of the oldest record that is not committed. Normal: some seconds for HIGH, less than 30 minutes, the line, for LOW. Rising as fast as the clock: no offset is committed; see the circuit breakers and the limiter. Kafka deletes records after 24 hours (HIGH) and 72 hours (LOW).",
		queries:     oneQuery(maxBy("priority", `kafka_consumer_lag_seconds{`+ofSource+`}`), "{{priority}}"),
	},
	{
		title: "Failed publishes", unit: perMin, width: 8, lines: []line{critical(1)},
		description: "Records that Kafka did not acknowledge. Normal: 0. Otherwise brokers are unavailable or the buffer of the producer is full. Locks are rolled back and the next read enqueues a new request, so nothing is lost, but snapshots are stale for longer.",
		queries:     oneQuery(perMinute("", `kafka_producer_send_failed_total`), "not acknowledged"),
	},
	{
		title: "Update requests by outcome", unit: perSec, width: 8, stacked: true,
		description: "PUBLISHED and UPGRADED became records; the others were covered by a request in flight, or held. Normal: many more covered than published if many clients request the same. ERROR: Redis or the buffer of the producer fails. Many HELD: clients request entities that failed before.",
		queries:     oneQuery(rate("outcome", `coalesced_total{`+ofSource+`}`), "{{outcome}}"),
	},
	{
		title: "Covered, upgraded, lock conflicts", unit: perMin, width: 8, lines: []line{warn(100)},
		description: "Update requests that were covered by one in flight, LOW requests that were upgraded to HIGH, and locks that had changed before the ack of Kafka. Normal: conflicts well below 100 a minute, the line. More: acks arrive later than locks expire.",
		queries: joinQueries(oneQuery(perMinute("", `dedup_coalesce_hit_total`), "covered"), oneQuery(perMinute("", `dedup_upgrade_total`), "upgraded"),
			oneQuery(perMinute("", `dedup_lock_conflict_total`), "conflicts")),
	},
	{
		title: "Published and ended records", unit: perSec, width: 12,
		description: "Records that were published, and records that reached an end. Normal: equal over some minutes. More published than ended: the lag grows.",
		queries: joinQueries(oneQuery(rate("priority", `coalesced_total{outcome=~"PUBLISHED|UPGRADED", `+ofSource+`}`), "{{priority}} published"),
			oneQuery(rate("priority", `settled_total{`+ofSource+`}`), "{{priority}} ended")),
	},
	{
		title: "LOW yields", unit: number, width: 12, kind: timeline,
		description: "Whether LOW yields to HIGH and makes only the calls that the quota reserves for it. Normal: no. yes: a new HIGH record would wait more than 10 seconds; LOW continues when it would wait at most 2 seconds.",
		states:      []status{{0, "no", "green"}, {1, "yes", "yellow"}},
		queries:     oneQuery(maxBy("source", `low_yielding{`+ofSource+`}`), "{{source}}"),
	},
}}

var deadLetters = row{"Dead letters", []panel{
	{
		title: "Dead letters on the topic", unit: number, width: 8,
		description: "Records on the dead-letter topic. Kafka deletes each after 168 hours. Normal: few, and falling when they are older than a week.",
		queries:     oneQuery(maxBy("topic", `dlq_message_count{topic=~"${source}[.]update-dlq"}`), "{{topic}}"),
	},
	{
		title: "New dead letters in one hour", unit: number, width: 8, lines: []line{critical(100)},
		description: "Growth of the topic since its minimum in the last hour, as in the alert. Normal: 0 to a few. Above 100, the line: the upstream changed its responses, or a program publishes invalid records.",
		queries: oneQuery("max by (topic) ("+metricName(`dlq_message_count{topic=~"${source}[.]update-dlq"}`)+
			" - min_over_time("+metricName(`dlq_message_count{topic=~"${source}[.]update-dlq"}`)+"[1h]))", "{{topic}}"),
	},
	{
		title: "Reasons in the selected time", unit: number, width: 8, kind: bars,
		description: "Reasons of dead letters. Normal: none, or a few of one reason. UPSTREAM_4XX and PARSE_ERROR: the responses of the upstream changed. UPSTREAM_5XX and UPSTREAM_UNREACHABLE: the upstream fails for single entities. UNDECODABLE and similar: look for the program that published the records.",
		queries:     oneQuery("sort_desc("+increase("reason", `update_process_error_total{reason=~"[A-Z].*", `+ofSource+`}`, "$__range")+" > 0)", "{{reason}}"),
	},
	{
		title: "Dead letters by lane", unit: perMin, width: 8,
		description: "Requests that became dead letters. Normal: hardly any. HIGH: users read entities for which the upstream fails. LOW: background work found them.",
		queries:     oneQuery(perMinute("priority", `settled_total{end="dead_letter", `+ofSource+`}`), "{{priority}}"),
	},
	{
		title: "Suspended entities in one hour", unit: number, width: 8,
		description: "Entities that are no longer prefetched, because their requests failed permanently three times in a row. Normal: 0 to a few. Many: the upstream removed or renamed entities.",
		queries:     oneQuery(increase("source", `entities_suspended_total{`+ofSource+`}`, "1h"), "{{source}}"),
	},
	{
		title: "Retries", unit: perMin, width: 8,
		description: "Failures with a scheduled retry, and retries that were enqueued when due. Normal: the second follows the first by some minutes. Scheduled but not enqueued: the database cannot be read, or no worker runs.",
		queries: joinQueries(oneQuery(perMinute("source", `settled_total{end="retrying", `+ofSource+`}`), "{{source}} scheduled"),
			oneQuery(perMinute("source", `retries_requested_total{`+ofSource+`}`), "{{source}} enqueued")),
	},
}}
